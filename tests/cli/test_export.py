"""An exported run is explained on another machine, word for word, and a tampered one is named."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

import tracks_dagster
from tests.cli.conftest import Call
from tests.cli.reading_commands import FROM_LEDGER, FROM_TRACK
from tests.stories import RUN_ID, Story
from tracks_dagster.track.track import log_key

ROOT = Path(tracks_dagster.__file__).parents[1]
RECORD = f"store/{log_key(f'runs/{RUN_ID}', 5)}"
# They print the time, the alias that is in use, a path, or that rows are missing; sql needs a ledger.
OTHER_ELSEWHERE = ("goodput", "lineage", "blast", "export", "report", "fsck", "sql")


@pytest.fixture
def archive(story: Story, call: Call, tmp_path: Path) -> Path:
    """The story's run, exported."""
    file = tmp_path / "sent" / "run.tar.gz"
    file.parent.mkdir()
    assert call("export", RUN_ID, str(file)).exit_code == 0
    return file


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """The home of another machine, which is not there, and has no store."""
    return tmp_path / "other-home"


def changed(archive: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """Write the archive again, whole, with its members changed."""
    with tarfile.open(archive) as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar if m.isreg()}  # type: ignore[union-attr]
    change(members)
    path = archive.with_name("changed.tar.gz")
    with gzip.open(path, "wb") as packed, tarfile.open(mode="w", fileobj=packed) as tar:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return path


@pytest.mark.parametrize("target", [RUN_ID, f"{RUN_ID}/a01", f"{RUN_ID}/a02", f"{RUN_ID}/a03"])
def test_another_machine_explains_it_in_the_same_words(
    target: str, archive: Path, elsewhere: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = call("explain", target)
    monkeypatch.setenv("TRACKS_HOME", str(elsewhere))
    there = call("explain", "--archive", str(archive), target)
    assert there.exit_code == origin.exit_code == 0
    assert there.stdout == origin.stdout
    monkeypatch.setenv("TRACKS_STORE", str(archive))
    assert call("explain", target).stdout == origin.stdout
    assert not elsewhere.exists()


@pytest.mark.parametrize("stored", [b"{", None], ids=["edited", "lost"])
def test_a_run_whose_track_does_not_hold_is_explained_elsewhere_as_far_as_here(
    stored: bytes | None,
    story: Story,
    call: Call,
    tmp_path: Path,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = log_key(f"runs/{RUN_ID}", 12)
    story.store.delete(key)
    if stored is not None:
        story.store.put(key, stored)
    file = tmp_path / "run.tar.gz"
    result = call("export", RUN_ID, str(file))
    assert result.exit_code == 0
    assert "Its track holds up to record 11." in result.stdout
    origin = call("explain", f"{RUN_ID}/a01")
    monkeypatch.setenv("TRACKS_HOME", str(elsewhere))
    there = call("explain", "--archive", str(file), f"{RUN_ID}/a01")
    assert there.exit_code == origin.exit_code == 1
    assert there.stdout == origin.stdout
    assert "THE RECORD BREAKS at record 12" in there.stdout
    checked = call("fsck", "--archive", str(file), "--json")
    kinds = [each["kind"] for each in json.loads(checked.stdout)["findings"]]
    assert kinds == ["record_missing" if stored is None else "record_broken"]


def test_every_other_reading_command_reads_it_in_the_same_words(
    archive: Path, elsewhere: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = f"{RUN_ID}/a01", f"{RUN_ID}/a03"
    compared = call("diff", *pair).stdout
    asked = [each for each in (*FROM_LEDGER, *FROM_TRACK) if each[0] not in OTHER_ELSEWHERE]

    def answers() -> list[str]:
        """What is judged as of now says of when, as `triage` in its first line."""
        of_now = re.compile(r"as of \S+Z|after \d\S* s|\S+Z(?= on \S+, booted)")
        return [of_now.sub("then", call(*each).stdout) for each in asked]

    origin = answers()
    monkeypatch.setenv("TRACKS_HOME", str(elsewhere))
    assert call("diff", "--archive", str(archive), *pair).stdout == compared
    monkeypatch.setenv("TRACKS_STORE", str(archive))
    assert answers() == origin
    refused = call("note", RUN_ID, "hello")
    assert refused.exit_code == 2
    assert "can only be read" in refused.stderr
    assert not elsewhere.exists()


def test_an_archive_does_not_claim_to_know_who_holds_an_alias_now(
    archive: Path, elsewhere: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(elsewhere))
    monkeypatch.setenv("TRACKS_STORE", str(archive))
    for command in ("lineage", "blast"):
        result = call(command, f"attempt:{RUN_ID}/a02").stdout
        assert "(1 in use as far as this archive knows)" in result
        assert result.count("in use") == result.count("in use as far as this archive knows")


def test_a_run_that_is_not_in_an_archive_is_reported_with_those_that_are(
    archive: Path, elsewhere: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(elsewhere))
    result = call("explain", "--archive", str(archive), "tabul")
    assert result.exit_code == 2
    assert f"there are: {RUN_ID}." in result.stderr
    assert "tracks status" not in result.stderr


def test_a_process_with_nothing_but_the_file_explains_it(
    archive: Path, elsewhere: Path, call: Call
) -> None:
    origin = call("explain", f"{RUN_ID}/a02").stdout
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("TRACKS_", "AWS_"))}
    script = "from tracks_dagster.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "explain", "--archive", archive.name, f"{RUN_ID}/a02"],
        env={
            **kept,
            "HOME": str(elsewhere),
            "PYTHONPATH": str(ROOT),
            "TRACKS_HOME": str(elsewhere),
        },
        cwd=archive.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, origin), done.stderr


def test_the_same_records_give_the_same_file(archive: Path, call: Call) -> None:
    other = archive.with_name("again.tar.gz")
    result = json.loads(call("export", RUN_ID, str(other), "--json").stdout)
    assert other.read_bytes() == archive.read_bytes()
    assert result["member_count"] > 10
    assert result["manifest"]["run_ids"] == [RUN_ID]
    refused = call("export", RUN_ID, str(other))
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert call("export", RUN_ID, str(other), "--force").exit_code == 0


def test_a_run_that_is_not_there_leaves_no_file(story: Story, call: Call, tmp_path: Path) -> None:
    file = tmp_path / "none.tar.gz"
    result = call("export", RUN_ID[:-1], str(file))
    assert result.exit_code == 2
    assert f"did you mean {RUN_ID}" in result.stderr
    assert not file.exists()


@pytest.mark.parametrize("options", [(), ("--with-chunks",)])
def test_a_whole_archive_has_no_findings(
    options: tuple[str, ...], story: Story, call: Call, tmp_path: Path
) -> None:
    file = str(tmp_path / "run.tar.gz")
    assert call("export", RUN_ID, file, *options).exit_code == 0
    checked = call("fsck", "--archive", file, "--json")
    assert checked.exit_code == 0, checked.stdout
    result = json.loads(checked.stdout)
    assert result["findings"] == []
    assert result["checkpoint_count"] == 4


def edit(name: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], object]:
    def change(members: dict[str, bytes]) -> None:
        assert old in members[name]
        members[name] = members[name].replace(old, new)

    return change


TAMPERED: dict[str, tuple[Callable[[dict[str, bytes]], object], set[str], str]] = {
    "a record edited": (
        edit(RECORD, b'"seq":5', b'"seq": 5'),
        {"member_changed", "record_broken"},
        RECORD,
    ),
    "a record taken out": (lambda m: m.pop(RECORD), {"member_missing", "record_missing"}, RECORD),
    "a file put in": (
        lambda m: m.update({"store/runs/other/log/x.json": b"{}"}),
        {"member_added"},
        "store/runs/other/log/x.json",
    ),
    "the manifest edited": (
        edit("MANIFEST.json", b'"format":1', b'"format":2'),
        {"archive_newer"},
        "MANIFEST.json",
    ),
    "the manifest of no shape": (
        edit("MANIFEST.json", b'"members":{', b'"members":5,"other":{'),
        {"archive_unreadable"},
        "MANIFEST.json",
    ),
    "the manifest of endless depth": (
        lambda m: m.update({"MANIFEST.json": b"[" * 100_000}),
        {"archive_unreadable"},
        "MANIFEST.json",
    ),
    "the store's format taken out": (
        lambda m: m.pop("store/format.json"),
        {"member_missing", "archive_unreadable"},
        "store/format.json",
    ),
    "a store of a newer version": (
        edit("store/format.json", b'"format":1', b'"format":2'),
        {"member_changed", "archive_unreadable"},
        "store/format.json",
    ),
    "the manifest taken out": (
        lambda m: m.pop("MANIFEST.json"),
        {"archive_unreadable"},
        "MANIFEST.json",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_archive_is_named_by_fsck(name: str, archive: Path, call: Call) -> None:
    change, kinds, where = TAMPERED[name]
    result = call("fsck", "--archive", str(changed(archive, change)), "--json")
    assert result.exit_code == 1
    findings = json.loads(result.stdout)["findings"]
    assert {finding["kind"] for finding in findings} >= kinds
    assert any(finding["where"] == where for finding in findings)


def test_an_archive_that_was_cut_and_packed_again_is_not_explained(
    archive: Path, call: Call
) -> None:
    def cut(members: dict[str, bytes]) -> None:
        for name in list(members)[-4:]:
            del members[name]

    path = changed(archive, cut)
    for command in (("explain", RUN_ID), ("diff", f"{RUN_ID}/a01", f"{RUN_ID}/a02")):
        result = call(*command, "--archive", str(path))
        assert result.exit_code == 2
        assert "not an export of ours, or cut" in result.stderr


def test_a_hostile_archive_writes_nowhere(
    archive: Path, elsewhere: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = archive.parent.parent / "outside"
    monkeypatch.setenv("TRACKS_HOME", str(elsewhere))
    for name in ("store/../../outside", str(outside), "../outside"):
        path = changed(archive, lambda members, name=name: members.update({name: b"evil"}))  # type: ignore[misc]
        for command in (("explain", RUN_ID), ("fsck",)):
            result = call(*command, "--archive", str(path))
            assert result.exit_code == 2
            assert "leads out of the archive" in result.stderr
    assert not outside.exists()
    assert not elsewhere.exists()


def test_a_secret_that_json_writes_in_other_letters_is_left_out(
    story: Story, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = 'pa"ss\\wörd'
    monkeypatch.setenv("TEAM_PASSWORD", secret)
    for number, is_ascii in enumerate((True, False)):
        word = json.dumps({"message": secret}, ensure_ascii=is_ascii).encode()
        story.store.put(f"runs/{RUN_ID}/attempts/1/early/{number}/exit.json", word)
    file = tmp_path / "run.tar.gz"
    result = json.loads(call("export", RUN_ID, str(file), "--json").stdout)
    left_out = {each["what"] for each in result["manifest"]["left_out"]}
    assert {f"runs/{RUN_ID}/attempts/1/early/{n}/exit.json" for n in (0, 1)} <= left_out
    with tarfile.open(file) as tar:
        assert not any("early" in name for name in tar.getnames())


def test_evidence_that_was_edited_with_the_manifest_is_still_found(
    archive: Path, call: Call
) -> None:
    def forge(members: dict[str, bytes]) -> None:
        name = next(n for n in members if "/attempts/2/evidence/" in n)
        members[name] = members[name].replace(b"gpu_oom", b"preempt")
        manifest = json.loads(members["MANIFEST.json"])
        manifest["members"][name] = sha256(members[name]).hexdigest()
        members["MANIFEST.json"] = json.dumps(manifest).encode()

    result = call("fsck", "--archive", str(changed(archive, forge)))
    assert result.exit_code == 1
    assert "The evidence for the end of attempt 2 of run gpt-story has sha256" in result.stdout


def test_a_file_that_is_not_an_archive_is_wrong_use(
    story: Story, call: Call, tmp_path: Path
) -> None:
    file = tmp_path / "notes.tar.gz"
    file.write_text("these are my notes")
    for command in (("fsck",), ("explain", RUN_ID), ("diff", f"{RUN_ID}@10", f"{RUN_ID}@20")):
        result = call(*command, "--archive", str(file))
        assert result.exit_code == 2
        assert "cannot be unpacked" in result.stderr
        assert call(*command, "--archive", str(tmp_path / "none.tar.gz")).exit_code == 2
