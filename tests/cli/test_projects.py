"""`tracks projects`, called as by a person."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Call


def test_a_project_is_added_listed_and_removed(call: Call, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    refused = call("projects", "add", str(folder))
    assert (refused.exit_code, home.exists()) == (2, False)
    (folder / "train.py").write_text("")
    (folder / "tracks.yaml").write_text(
        "name: tiny\nentry: train.py\ndataset: d\nclass: urgent\n"
        "schedule: {cron: 0 3 * * 1, only_if: snapshot differs}\n"
    )
    added = call("projects", "add", str(folder)).stdout
    assert "Added tiny. It trains at 0 3 * * 1 (UTC), if there is a newer snapshot since." in added
    assert "`tracks up` sees it within ten seconds." in added
    listed = json.loads(call("projects", "list", "--json").stdout)
    assert [each["name"] for each in listed] == ["gpt", "tabular", "tiny"]
    assert (listed[2]["folder"], listed[2]["problem"]) == (str(folder), None)
    assert [each["class"] for each in listed] == [None, None, "urgent"]
    shutil.rmtree(folder)
    broken = call("projects", "list")
    assert broken.exit_code == 1
    assert "does not exist any more" in broken.stderr
    assert "Removed tiny" in call("projects", "remove", "tiny").stdout
    assert call("projects", "list").exit_code == 0


def made(tmp_path: Path, more: str = "") -> Path:
    folder = tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text("")
    (folder / "tracks.yaml").write_text(f"name: tiny\nentry: train.py\n{more}")
    return folder


def test_a_project_is_the_folder_as_it_is_or_the_version_that_was_stored_as_one_chooses(
    call: Call, tmp_path: Path
) -> None:
    folder = made(tmp_path)
    added = call("projects", "add", str(folder), "--by", "ann", "--why", "It begins.")
    assert "Stored as version 1. Here it is the folder as it is." in added.stdout
    assert f"{folder}, as it is (stored: version 1)" in call("projects", "list").stdout
    made(tmp_path, "ranks: 2\n")
    again = call("projects", "add", str(folder), "--stored", "--by", "ben")
    assert "Stored as version 2. `tracks up`" in again.stdout
    [row] = json.loads(call("projects", "list", "--json").stdout)[2:]
    assert (row["version"], row["stored"]["by"], row["problem"]) == (2, "ben", None)
    assert "stored version 2 of ben" in call("projects", "list").stdout
    assert "It is stored already, as version 2." in call("projects", "add", str(folder)).stdout


def test_the_versions_of_a_project_are_shown_with_what_its_file_changed(
    call: Call, tmp_path: Path
) -> None:
    unknown = call("projects", "show", "tiny")
    assert unknown.exit_code == 2
    call("projects", "add", str(made(tmp_path)), "--by", "ann", "--why", "It begins.")
    call("projects", "add", str(made(tmp_path, "ranks: 2\n")), "--by", "ben")
    shown = call("projects", "show", "tiny").stdout
    assert "It begins." in shown
    assert "+ranks: 2" in shown
    facts = json.loads(call("projects", "show", "tiny", "--json").stdout)
    assert [each["by"] for each in facts["versions"]] == ["ann", "ben"]


def test_another_home_lists_submits_and_removes_what_is_in_the_store_alone(
    call: Call, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_STORE", str(tmp_path / "store"))
    call("projects", "add", str(made(tmp_path)), "--by", "ann")
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "other"))
    assert "stored version 1 of ann" in call("projects", "list").stdout
    submitted = call("submit", "tiny", "--run-id", "r-1")
    assert (submitted.exit_code, submitted.stdout) == (0, "r-1\n")
    assert "its stored versions stay" in call("projects", "remove", "tiny").stdout
    monkeypatch.setenv("TRACKS_HOME", str(home))
    shown = call("projects", "show", "tiny").stdout
    assert "Removed by" in shown


def test_nothing_of_a_project_is_removed_while_the_store_is_away(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, away = tmp_path / "store", tmp_path / "unmounted"
    monkeypatch.setenv("TRACKS_STORE", str(store))
    call("projects", "add", str(made(tmp_path)), "--by", "ann")
    store.rename(away)
    refused = call("projects", "remove", "tiny")
    assert refused.exit_code == 2
    assert "Nothing was removed; try again once the store answers." in refused.stderr
    away.rename(store)
    assert str(tmp_path / "mine") in call("projects", "list").stdout
    assert "its folder" in call("projects", "remove", "tiny").stdout
    assert call("projects", "remove", "tiny").exit_code == 2


def test_a_project_whose_track_cannot_be_read_hides_no_other(
    call: Call, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_STORE", str(tmp_path / "store"))
    call("projects", "add", str(made(tmp_path)), "--by", "ann")
    bad = tmp_path / "store" / "projects" / "bad" / "log" / "000000000000.json"
    bad.parent.mkdir(parents=True)
    bad.write_text("{")
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "other"))
    listed = call("projects", "list")
    assert listed.exit_code == 1
    assert "stored version 1 of ann" in listed.stdout
    assert "stored, and cannot be read" in listed.stdout
    assert "What is stored of bad cannot be read: " in listed.stderr
    rows = {row["name"]: row for row in json.loads(call("projects", "list", "--json").stdout)}
    assert (rows["tiny"]["problem"], rows["bad"]["stored"]) == (None, None)
    assert rows["bad"]["problem"] in listed.stderr
    removed = json.loads(call("projects", "remove", "tiny", "--json").stdout)
    assert removed["was_stored"]
    refused = call("projects", "remove", "bad")
    assert (refused.exit_code, "projects/bad" in refused.stderr) == (1, True)


def test_a_project_of_a_repository_is_fetched_and_stored_without_a_password(
    call: Call, tmp_path: Path
) -> None:
    folder = made(tmp_path)
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    for words in (("init", "-qb", "trunk"), ("add", "."), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", folder, *words], check=True, capture_output=True)
    added = call("projects", "add", f"git+file://{folder}@trunk", "--json")
    assert added.exit_code == 0, added.stderr
    stored = json.loads(added.stdout)["stored"]
    assert (stored["place"], stored["git_dirty"]) == (f"git+file://{folder}@trunk", False)
    assert json.loads(call("submit", "tiny", "--json").stdout)["is_new"]
    refused = call("projects", "add", "git+https://ci:hunter2@127.0.0.1:1/none@v1")
    assert refused.exit_code == 2
    assert "Cannot fetch git+https://127.0.0.1:1/none@v1" in refused.stderr
    assert "hunter2" not in refused.stderr
