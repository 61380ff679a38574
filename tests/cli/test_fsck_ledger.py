"""`tracks fsck` where the ledger cannot be read: everything else is checked anyway."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story


def _of_schema(home: Path, version: str) -> None:
    with sqlite3.connect(home / "ledger.db") as connection:
        connection.execute("update ledger_version set version_num = ?", (version,))


@pytest.mark.parametrize("version", ["0001", "9999", None], ids=["older", "newer", "missing"])
def test_a_ledger_that_cannot_be_read_is_one_finding_and_the_store_is_checked(
    version: str | None, story: Story, call: Call, home: Path
) -> None:
    if version is not None:
        _of_schema(home, version)
    else:
        for path in home.glob("ledger.db*"):
            path.unlink()
    result = call("fsck", "--json")
    assert result.exit_code == 1
    checked = json.loads(result.stdout)
    assert (checked["track_count"], checked["checkpoint_count"]) == (3, 4)
    [finding] = checked["findings"]
    assert finding["kind"] == "ledger_unreadable"
    assert ("tracks reindex" in finding["meaning"]) is (version != "9999")
    next((home / "store" / "runs").rglob("chunks/*")).unlink()
    kinds = [each["kind"] for each in json.loads(call("fsck", "--json").stdout)["findings"]]
    assert kinds == ["checkpoint_corrupt", "ledger_unreadable"]


def test_a_newer_ledger_asks_for_the_newer_version_and_for_no_reindex(
    story: Story, call: Call, home: Path
) -> None:
    _of_schema(home, "9999")
    for command in ("status", "reindex"):
        result = call(command)
        assert result.exit_code == 2
        assert "newer version (schema 9999" in result.stderr
        assert "Install that version" in result.stderr
        assert "tracks reindex" not in result.stderr


def test_a_note_on_a_run_whose_ledger_is_ahead_is_written_and_says_so(
    story: Story, call: Call, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sqlite3.connect(home / "ledger.db") as ledger:
        ledger.execute(f"update track_cursors set seq = 99 where track = 'runs/{RUN_ID}'")
    ledger.close()
    noted = call("note", RUN_ID, "It is looked after.")
    seq = len(story.history.records)
    assert noted.exit_code == 0
    assert noted.stdout == f"Noted as record {seq} of {RUN_ID}.\n"
    assert f"Record {seq} of runs/{RUN_ID} is written, and the ledger does not show" in caplog.text
    assert "--forget-lost" in caplog.text
    rebuilt = call("reindex")
    assert rebuilt.exit_code == 1
    assert f"runs/{RUN_ID}: " in rebuilt.stderr
    assert call("reindex", "--forget-lost").exit_code == 0
    assert "It is looked after." in call("search", "looked").stdout
