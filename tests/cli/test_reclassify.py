"""`tracks reclassify`: stored evidence read again under the rules of today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.evidences import end, evidence
from tests.histories import History
from tests.stories import RUN_ID, Story
from tracks_dagster.attempts.effects import verdicts as reclassifying
from tracks_dagster.reasons.evidence import Evidence
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import StoreUnavailable
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Kind, canonical_json, sha256_hex
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wiring import build

WHY = ("--why", "a rule changed")


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rules under which a preemption stays one and nothing else does."""
    path = tmp_path / "rules.yaml"
    path.write_text('- {name: ours, reason: network_fabric, pattern: "[a-z]"}\n')
    monkeypatch.setenv("TRACKS_RULES", str(path))
    return path


@pytest.fixture
def misread(story: Story) -> str:
    """A run whose evidence says something else under those rules; its id."""
    data, key = evidence_of(story, "misread")
    history = History("misread").declare().open().place()
    history.end("code_error", evidence_key=key, evidence_sha256=sha256_hex(data))
    history.write_to(story.store)
    return "misread"


def evidence_of(story: Story, run_id: str) -> tuple[bytes, str]:
    """Store the evidence of a plain failure of attempt 1; return it and its key."""
    data = canonical_json(to_json(evidence(end(code=1, log="ValueError: bad shape"))))
    key = f"runs/{run_id}/attempts/1/evidence/{sha256_hex(data)}.json"
    story.store.put(key, data)
    return data, key


def test_a_dry_run_tells_what_would_change_and_writes_nothing(
    call: Call, misread: str, home: Path, rules: Path
) -> None:
    before = files_of(home)
    [row] = json.loads(call("reclassify", misread, "--dry-run", "--json", *WHY).stdout)
    assert (row["now"], row["recorded"]) == ("network_fabric", False)
    assert files_of(home) == before


def test_what_differs_is_recorded_once(call: Call, misread: str, rules: Path) -> None:
    rows = json.loads(call("reclassify", "--all", "--json", *WHY).stdout)
    [changed] = [row for row in rows if row["recorded"]]
    assert (changed["attempt"], changed["now"]) == (f"{misread}/a01", "network_fabric")
    newest = build(Settings.from_environment()).tracks.records(f"runs/{misread}")[-1]
    assert newest.kind is Kind.ATTEMPT_RECLASSIFIED
    assert newest.body["reason"] == "network_fabric"
    again = json.loads(call("reclassify", "--all", "--json", *WHY).stdout)
    assert not any(row["recorded"] for row in again)


def test_a_run_whose_track_is_broken_is_reported_and_holds_up_no_other(
    call: Call, story: Story, misread: str, home: Path, rules: Path
) -> None:
    History("a-broken").declare().open().place().write_to(story.store)
    (home / "store/runs/a-broken/log/000000000001.json").write_bytes(b"{}")
    done = call("reclassify", "--all", "--json", *WHY)
    rows = {row["attempt"]: row for row in json.loads(done.stdout)}
    assert done.exit_code == 1
    assert "Record 1 cannot be read" in rows["a-broken"]["problem"]
    assert rows[f"{misread}/a01"]["recorded"]
    assert (rows["a-broken"]["before"], rows["a-broken"]["now"]) == (None, None)
    answer = call("reclassify", "--all", *WHY)
    assert "a-broken: every reason stays: " not in answer.stderr
    assert "a-broken: not read again: Record 1 cannot be read" in answer.stderr
    assert f"Read {len(rows) - 1} ended attempts again: 0 with" in answer.stdout
    assert call("reclassify", "a-broken", *WHY).exit_code != 0


@pytest.mark.parametrize("json_or_not", [(), ("--json",)])
def test_what_was_recorded_is_reported_though_the_store_fails_then(
    call: Call,
    story: Story,
    misread: str,
    rules: Path,
    json_or_not: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, asked = reclassifying.read_evidence, []

    def failing(store: ObjectStore, attempt: AttemptState) -> tuple[Evidence | None, str | None]:
        asked.append(attempt)
        if len(asked) == 2:
            raise StoreUnavailable("The disk is gone.")
        return read(store, attempt)

    monkeypatch.setattr(reclassifying, "read_evidence", failing)
    history = History(misread).declare().open().place()
    data, key = evidence_of(story, misread)
    for _ in range(2):
        history.end("code_error", evidence_key=key, evidence_sha256=sha256_hex(data))
        history.open().place()
    history.write_to(story.store)
    one = call("reclassify", misread, *json_or_not, *WHY)
    assert one.exit_code != 0
    assert "The disk is gone." in one.stderr
    assert f"{misread}/a01" in one.stdout
    assert "network_fabric" in one.stdout
    asked.clear()
    every = call("reclassify", "--all", *json_or_not, *WHY)
    assert every.exit_code == 1
    assert len(asked) > 2  # the runs behind it are read


def test_words_for_people_count_what_was_read(call: Call, story: Story) -> None:
    result = call("reclassify", RUN_ID, *WHY)
    assert "ended attempts again" in result.stdout


@pytest.mark.parametrize("given", [(), (RUN_ID, "--all")])
def test_one_target_has_to_be_named(call: Call, story: Story, given: tuple[str, ...]) -> None:
    result = call("reclassify", *given, *WHY)
    assert result.exit_code == 2
    assert "--all" in result.stderr


def test_a_reason_in_words_is_asked_for(call: Call, story: Story) -> None:
    assert call("reclassify", RUN_ID).exit_code == 2
    assert call("reclassify", RUN_ID, "--why", " ").exit_code == 2


def test_an_empty_home_is_reported_and_not_made(call: Call, home: Path) -> None:
    assert call("reclassify", "--all", *WHY).exit_code == 2
    assert not home.exists()


def test_a_person_gives_the_verdict_that_the_evidence_does_not_tell(
    call: Call, story: Story
) -> None:
    answer = call("reclassify", f"{RUN_ID}/a01", "--as", "host_oom", *WHY, "--by", "ann", "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["seq"] is not None
    state = build(Settings.from_environment()).tracks.run(RUN_ID)
    assert state.attempts[0].reason == "host_oom"
    assert state.attempts[0].reclassified is not None
    assert state.attempts[0].reclassified.lines == ("ann: a rule changed",)
    again = call("reclassify", f"{RUN_ID}/a01", "--as", "host_oom", *WHY, "--json")
    assert json.loads(again.stdout)["seq"] is None


def test_reading_the_evidence_again_leaves_a_persons_verdict(
    call: Call, story: Story, rules: Path
) -> None:
    call("reclassify", f"{RUN_ID}/a02", "--as", "disk_full", *WHY)
    rows = json.loads(call("reclassify", f"{RUN_ID}/a02", "--json", *WHY).stdout)
    assert [(row["now"], row["recorded"]) for row in rows] == [("disk_full", False)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((f"{RUN_ID}/a01", "--as", "gpu_ooom"), "did you mean gpu_oom"),
        ((f"{RUN_ID}/a01", "--as", "unknown"), "there are: user_cancelled"),
        ((f"{RUN_ID}/a01", "--as", "completed"), "there are: user_cancelled"),
        ((RUN_ID, "--as", "host_oom"), "name RUN/aNN"),
        (("--all", "--as", "host_oom"), "name RUN/aNN"),
        ((f"{RUN_ID}/a09", "--as", "host_oom"), "attempt 9"),
    ],
)
def test_a_verdict_that_cannot_be_is_refused_in_words(
    call: Call, story: Story, arguments: tuple[str, ...], said: str
) -> None:
    answer = call("reclassify", *arguments, *WHY)
    assert answer.exit_code != 0
    assert said in answer.stderr
