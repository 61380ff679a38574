"""A store and a ledger that older versions wrote are read and gone on with.

`tests/history/home_before_rooms.tar.gz` was made by `tracks run` at commit af14e52: one run of a small
script of its own, preempted once, ended twice by a person, its third attempt killed after step 87
of 96. `ledger_0008.db.gz` is its ledger, of the last version that had migrations.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from tests.integration.homes import Home, embedded, outcome

DATA = Path(__file__).parents[1] / "history"
RUN_ID = "before"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with that store and nothing else."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    with tarfile.open(DATA / "home_before_rooms.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return embedded(tmp_path)


def test_a_store_of_an_older_version_is_explained_resumed_and_whole(home: Home) -> None:
    assert home.call("reindex").returncode == 0
    explained = json.loads(home.call("explain", f"{RUN_ID}/a01", "--json").stdout)
    assert explained["ended"]["reason"] == "preempted"
    before = home.call("fsck")
    assert before.returncode == 0, before.stdout

    done = outcome(home.start("run", "--run-id", RUN_ID, "--json"))
    assert done["state"] == "succeeded"
    last = home.app.tracks.run(RUN_ID).attempts[-1]
    assert (last.attempt_id, last.reason) == (4, "completed")
    assert last.restored is not None
    assert last.restored.step == 84

    after = home.call("fsck")
    assert after.returncode == 0, after.stdout


def test_a_ledger_of_an_older_version_is_projected_anew_by_the_first_that_writes(
    home: Home,
) -> None:
    stored = gzip.decompress((DATA / "ledger_0008.db.gz").read_bytes())
    (home.settings.home / "ledger.db").write_bytes(stored)
    refused = home.call("status")
    assert refused.returncode == 2
    assert "an older version wrote it (schema 0008;" in refused.stderr
    assert "`tracks reindex` rebuilds it" in refused.stderr

    noted = home.call("note", RUN_ID, "It is looked after.")
    assert noted.returncode == 0
    assert "Projected the ledger anew, from 3 tracks." in noted.stderr
    assert RUN_ID in home.call("status").stdout
    whole = home.call("fsck")
    assert whole.returncode == 0, whole.stdout
