"""The generated history: legal, the same every time, and in the ledger what a reindex would make."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import history_ends
from benchmarks.history_bodies import snapshot_ref
from benchmarks.history_plan import DATASETS, WIDE_SNAPSHOT, Fleet
from benchmarks.history_sites import load, write_store
from benchmarks.history_tracks import other_tracks, run_tracks
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.stores import open_store
from tracks_dagster.track.records import parse, parse_time
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.run_state import RunState

END_AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
SMALL = Fleet(attempts=200, end_at=END_AT)
WIDER = Fleet(attempts=1000, end_at=END_AT)

Dump = dict[str, list[dict[str, Any]]]


def states(fleet: Fleet) -> list[RunState]:
    """The state of every run, folded from the stored bytes."""
    folded = []
    for _, track in run_tracks(fleet, range(fleet.run_count)):
        records = [parse(data, seq=seq) for seq, data in enumerate(track.stored)]
        assert all(after.prev_sha256 == before.sha256 for before, after in pairwise(records))
        state = run_fold.fold(records)
        assert state is not None
        folded.append(state)
    return folded


@pytest.fixture(scope="module")
def reindexed(tmp_path_factory: pytest.TempPathFactory) -> Dump:
    """What a reindex of the small fleet's tracks, in a local store, leaves in a ledger."""
    home = tmp_path_factory.mktemp("history")
    record_count = write_store(SMALL, home / "store", range(SMALL.run_count))
    ledger = open_ledger(f"sqlite:///{home / 'ledger.db'}")
    store = open_store(str(home / "store"))
    assert Projector(store, ledger).reindex().track_count == len(ledger.dump()["track_cursors"])
    assert sum(row["seq"] + 1 for row in ledger.dump()["track_cursors"]) == record_count
    return ledger.dump()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_ledger_that_is_filled_in_bulk_equals_a_reindex_of_the_same_tracks(
    database: str, tmp_path: Path, request: pytest.FixtureRequest, reindexed: Dump
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    if database == "postgres":
        url = request.getfixturevalue("postgres_url")
    load(SMALL, (url,), processes=1)
    filled = open_ledger(url).dump()
    assert filled.keys() == reindexed.keys()
    for name, rows in reindexed.items():
        assert filled[name] == rows, name
    assert all(filled[name] for name in ("checkpoints", "evals", "promotions", "notes"))


def test_the_same_fleet_is_the_same_to_the_byte_and_another_seed_is_another_one() -> None:
    def stored(fleet: Fleet) -> list[list[bytes]]:
        runs = [track.stored for _, track in run_tracks(fleet, range(5, 10))]
        return runs + [track.stored for track in other_tracks(fleet)]

    again = Fleet(attempts=200, end_at=END_AT)
    assert stored(SMALL) == stored(again)
    assert stored(SMALL) != stored(Fleet(attempts=200, end_at=END_AT, seed=8))


def test_the_totals_are_exact_and_every_track_is_legal() -> None:
    runs = states(WIDER)
    assert len(runs) == WIDER.run_count == 50
    assert sum(len(run.attempts) for run in runs) == 1000
    assert sum(run.open_attempt is not None for run in runs) == WIDER.open_count == 10
    commits = sum(len(run.checkpoints) for run in runs)
    assert commits == 5000
    reasons = Counter(a.reason for run in runs for a in run.attempts)
    assert len(reasons) > 12
    assert max(a.opened_at for run in runs for a in run.attempts) <= END_AT


def test_an_attempt_made_its_last_step_after_its_last_commit_and_before_its_end() -> None:
    hangs = 0
    for run in states(WIDER):
        for attempt in (each for each in run.attempts if each.ended and each.ended.last_step):
            ended = attempt.ended
            assert ended is not None
            assert ended.last_stepped_at is not None
            commits = [c for c in run.checkpoints if c.ref.attempt_id == attempt.attempt_id]
            begin = max((c.at for c in commits), default=attempt.opened_at)
            assert attempt.ended_at is not None
            assert begin <= parse_time(ended.last_stepped_at) <= attempt.ended_at, run.run_id
            hangs += ended.reason == "hang"
    assert hangs


def test_a_branch_begins_from_a_checkpoint_that_its_source_committed_and_pinned() -> None:
    runs = {run.run_id: run for run in states(WIDER)}
    branches = [run for run in runs.values() if run.declared.branched_from is not None]
    assert len(branches) == 5
    for branch in branches:
        source = branch.declared.branched_from
        assert source is not None
        found = runs[source.run_id].checkpoint(source.manifest_sha256)
        assert found is not None
        assert found.ref == source
        assert f"branch:{branch.run_id}" in found.pins
        assert branch.attempts[0].resumed_from == source


def test_many_runs_train_on_the_wide_snapshot_and_it_is_there() -> None:
    wide = snapshot_ref(DATASETS["gpt"], WIDE_SNAPSHOT)
    whole = Fleet(attempts=1_000_000, end_at=END_AT)
    # 81 blocks of 200 attempts and 1000 checkpoints, less the branches, and their evals.
    assert sum(map(whole.is_wide, range(whole.block_count))) == 81
    assert wide in {run.declared.snapshot for run in states(WIDER)}
    [track] = [each for each in other_tracks(WIDER) if each.name == "datasets/aws-docs"]
    assert any(wide.snapshot_id.encode() in data for data in track.stored)


@pytest.mark.parametrize(
    ("when", "name"), [(when, name) for when, kinds in history_ends.KINDS.items() for name in kinds]
)
def test_the_classifier_reads_every_kind_of_end_as_what_it_is_named_for(
    when: str, name: str
) -> None:
    assert history_ends.verdict_on(when, name).reason == name


@pytest.mark.parametrize("attempts", [0, -200, 100, 1001])
def test_a_fleet_that_is_not_a_multiple_of_a_block_is_refused(attempts: int) -> None:
    with pytest.raises(ValueError, match=f"a positive multiple of 200 attempts, not {attempts}"):
        Fleet(attempts=attempts, end_at=END_AT)
