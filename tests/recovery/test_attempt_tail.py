"""The newest records alone say of the last attempt what the whole track says."""

from __future__ import annotations

from random import Random

import pytest

from tests.histories import History
from tests.random_histories import random_run
from tracks_dagster.recovery.attempt_tail import fold_tail
from tracks_dagster.track.records import Kind


@pytest.mark.parametrize("seed", range(30))
def test_the_tail_says_what_the_whole_track_says(seed: int) -> None:
    run = random_run(Random(seed))
    opened = [record.seq for record in run.records if record.kind is Kind.ATTEMPT_OPENED]
    tail = fold_tail(run.records[opened[-1] if opened else 0 :])
    whole = run.state.last_attempt
    assert tail.finished == run.state.finished, f"seed {seed}"
    assert tail.head_seq == run.state.head.seq, f"seed {seed}"
    if whole is None:
        assert tail.attempt is None, f"seed {seed}"
        return
    assert tail.attempt is not None
    assert tail.attempt.opened == whole.opened, f"seed {seed}"
    assert tail.attempt.claims == whole.claims, f"seed {seed}"
    assert tail.attempt.placed == whole.placed, f"seed {seed}"
    assert tail.attempt.restored == whole.restored, f"seed {seed}"
    assert tail.attempt.ended == whole.ended, f"seed {seed}"
    assert tail.attempt.reason == whole.reason, f"seed {seed}"
    own = [c.ref for c in run.state.checkpoints if c.ref.attempt_id == whole.attempt_id]
    assert [commit.ref for commit in tail.commits] == own, f"seed {seed}"


def test_a_withdrawn_checkpoint_and_a_refusal_are_seen() -> None:
    history = History("r-1").declare().open().place().restore().commit(10)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[0].ref)
    history.end("code_error", last_step=10).refuse()
    tail = fold_tail(history.records[1:])
    assert tail.withdrawn == {history.state.checkpoints[0].ref.manifest_sha256}
    assert tail.refusal is not None
    assert tail.refusal_seq == history.state.head.seq


def test_a_stop_comes_before_a_drain_and_a_move_holds_nothing() -> None:
    history = History("r-1").declare().open().stop(mode="move")
    assert fold_tail(history.records[1:]).held_by is None
    tail = fold_tail(history.stop(mode="drain").stop().records[1:])
    assert tail.held_by is not None
    assert tail.held_by.mode == "stop"
    assert fold_tail(history.end("node_failure").open().records).held_by is None
