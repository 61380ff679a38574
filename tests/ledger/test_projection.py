"""Rows of the ledger: what they hold, and that taking records in bit by bit gives the same rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bodies import BEGIN
from tests.histories import DatasetHistory, History
from tests.random_histories import random_dataset, random_run
from tracks_dagster.ledger.ports import Row
from tracks_dagster.ledger.track_states import dataset_rows, run_rows
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.track.states import dataset_state, run_fold

KEYS = {
    "training_runs": ("run_id",),
    "training_attempts": ("run_id", "attempt_id"),
    "checkpoints": ("run_id", "manifest_sha256"),
    "evals": ("run_id", "eval_id", "number"),
    "promotions": ("run_id", "seq"),
    "notes": ("run_id", "seq"),
    "run_facts": ("run_id",),
    "attempt_facts": ("run_id", "attempt_id"),
    "attempt_readings": ("run_id", "seq"),
    "attempt_nodes": ("run_id", "attempt_id", "node"),
    "attempt_resumes": ("run_id", "attempt_id", "known_as"),
    "datasets": ("dataset",),
    "snapshots": ("dataset", "snapshot_id"),
}

Held = dict[tuple[Any, ...], Row]


def upsert(held: Held, rows: Mapping[str, Sequence[Row]]) -> Held:
    """Return what a ledger holds that held `held` and upserts `rows`."""
    new = {(name, *(row[k] for k in KEYS[name])): row for name in rows for row in rows[name]}
    return {**held, **new}


def cuts(seed: int, records: list[Record]) -> list[list[Record]]:
    """Cut records into runs of random lengths, in order."""
    rng = Random(seed)
    places = sorted({0, len(records), *(rng.randrange(len(records) + 1) for _ in range(4))})
    return [records[a:b] for a, b in pairwise(places)]


@given(seed=st.integers(min_value=0, max_value=2**32))
def test_a_run_taken_in_bit_by_bit_has_the_rows_of_one_taken_in_at_once(seed: int) -> None:
    history = random_run(Random(seed))
    held: Held = {}
    before = None
    for records in cuts(seed, history.records):
        after = run_fold.fold(records, before)
        assert after is not None
        held = upsert(held, run_rows(after, before))
        before = after
    assert held == upsert({}, run_rows(history.state))


@given(seed=st.integers(min_value=0, max_value=2**32))
def test_a_dataset_taken_in_bit_by_bit_has_the_rows_of_one_taken_in_at_once(seed: int) -> None:
    history = random_dataset(Random(seed))
    held: Held = {}
    before = None
    for records in cuts(seed, history.records):
        after = dataset_state.fold(records, before)
        assert after is not None
        held = upsert(held, dataset_rows(after, before))
        before = after
    assert held == upsert({}, dataset_rows(history.state))


def test_a_commit_touches_its_own_row_its_attempt_and_its_run() -> None:
    history = History().declare().open().place().restore().commit(10).commit(20).note()
    before = history.state
    history.commit(30)
    rows = run_rows(history.state, before)
    assert {name: len(rows[name]) for name in rows if rows[name]} == {
        "training_runs": 1,
        "training_attempts": 1,
        "checkpoints": 1,
    }


def test_a_resume_changes_what_the_attempt_before_it_kept() -> None:
    history = History().declare().open().place().restore().commit(10).commit(20)
    history.end("preempted", last_step=23)
    before, older = history.state, history.state.checkpoints[0].ref
    assert run_rows(before)["training_attempts"][0]["lost_steps"] == 3
    rows = run_rows(history.open(resume=older).state, before)["training_attempts"]
    assert [(row["attempt_id"], row["kept_steps"], row["lost_steps"]) for row in rows] == [
        (1, 10, 13),
        (2, 0, 0),
    ]


def test_a_quarantine_changes_what_the_newest_attempt_kept() -> None:
    history = History().declare().open().place().restore().commit(20).end("preempted", last_step=23)
    before = history.state
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, before.checkpoints[0].ref)
    [row] = run_rows(history.state, before)["training_attempts"]
    assert (row["kept_steps"], row["lost_steps"]) == (0, 23)


def test_an_attempt_has_its_receipt_in_its_row() -> None:
    history = History().declare().open().supervise("dagster-7").place().restore().commit(20)
    history.end("preempted", last_step=23)
    [row] = run_rows(history.state)["training_attempts"]
    assert row["partition_key"] == "r-1/a01"
    assert (row["termination_reason"], row["reason_family"]) == ("preempted", "capacity")
    assert (row["gpu_seconds"], row["accelerator"], row["ranks"]) == (120.0, "cpu", 2)
    assert (row["resumed_from_step"], row["last_step"]) == (None, 23)
    assert (row["dagster_run_id"], row["launch_id"]) == ("dagster-7", "launch-1")
    assert (row["nodes_json"], row["devices_json"]) == ('["node-1"]', '["cpu","cpu"]')
    assert row["checkpoint_count"] == 1


def test_a_later_reading_replaces_the_reason_and_keeps_the_seconds() -> None:
    history = History().declare().open().place().restore().end("unknown", last_step=3)
    [row] = run_rows(history.reclassify(1, "node_failure").state)["training_attempts"]
    assert (row["termination_reason"], row["rule"]) == ("node_failure", "later-evidence")
    assert (row["fingerprint"], row["gpu_seconds"]) == ("node_failure:later", 120.0)


def test_an_attempt_started_when_its_ranks_did_else_when_it_was_placed_else_when_opened() -> None:
    def started_at(history: History) -> Any:
        return run_rows(history.state)["training_attempts"][0]["started_at"]

    history = History().declare().open()
    assert started_at(history) == history.records[1].at
    assert started_at(history.place()) == history.records[2].at
    ended_at = history.at
    assert started_at(history.end("unknown")) == ended_at - timedelta(seconds=60)


def test_a_quarantined_snapshot_is_no_longer_the_newest_usable() -> None:
    history = DatasetHistory().declare().commit("one").commit("two")
    history.decide(Kind.SNAPSHOT_QUARANTINED, "two")
    rows = dataset_rows(history.state)
    assert rows["datasets"][0]["newest_usable_snapshot_id"] == "one"
    assert [row["status"] for row in rows["snapshots"]] == ["usable", "quarantined"]


def test_a_time_that_is_not_one_is_a_broken_record() -> None:
    with pytest.raises(TrackBroken, match="Its started_at is 'yesterday'"):
        History().declare().open().end("unknown", started_at="yesterday")


def test_times_of_rows_are_aware() -> None:
    [row] = run_rows(History().declare().state)["training_runs"]
    assert row["declared_at"] == BEGIN
