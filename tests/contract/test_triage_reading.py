"""What triage asks of the ledger gives the same on SQLite and on a real Postgres."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.six_variants import DONE, FAMILY, INTERRUPTED, QUEUED, write_variants
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.wings.triage.effects.reading import find_runs, read_runs


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, store: FakeObjectStore) -> SqlLedger:
    """A ledger that has taken in the nine variants."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    found = open_ledger(url)
    write_variants(store)
    Projector(store, found).scan()
    return found


def test_what_is_not_over_and_a_whole_family_are_found(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    assert find_runs(ledger, store, (), None) == ([*INTERRUPTED, *QUEUED], False)
    found, more = find_runs(ledger, store, (), FAMILY)
    assert (sorted(found), more) == (sorted([*DONE, *INTERRUPTED, *QUEUED]), False)


def test_each_run_is_read_with_its_commit_its_tail_and_its_pace(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    runs = {read.run_id: read for read in read_runs(ledger, store, ["v2-6", "v2-2", "v1-1"])}
    assert list(runs) == ["v1-1", "v2-2", "v2-6"]  # the one declared first first
    two = runs["v2-2"]
    assert (two.commit and two.commit.step, two.commit and two.commit.epoch) == (830, 83)
    assert (two.paced, len(two.journal.steps)) == (1, 61)
    assert two.tail is not None
    assert two.tail.attempt is not None
    assert two.tail.attempt.is_open
    assert two.row["git_dirty"] is True
    assert runs["v2-6"].attempts == ()
    assert runs["v2-6"].tail is not None
    assert runs["v2-6"].tail.declared is not None


def test_a_run_that_does_not_exist_is_answered_with_the_nearest(
    ledger: SqlLedger, store: FakeObjectStore
) -> None:
    with pytest.raises(UnknownRun, match="did you mean"):
        find_runs(ledger, store, ["v2-7"], None)
