"""The newest records alone say of the last attempt what the whole track says."""

from __future__ import annotations

from random import Random

import pytest

from tests.histories import History
from tests.random_histories import random_run
from tracks_dagster.core.attempt_tail import fold_tail
from tracks_dagster.core.records import Kind


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
    # A correction may speak of an attempt before; triage asks for none.
    assert tail.attempt.opened == whole.opened, f"seed {seed}"
    assert tail.attempt.claims == whole.claims, f"seed {seed}"
    assert tail.attempt.placed == whole.placed, f"seed {seed}"
    assert tail.attempt.restored == whole.restored, f"seed {seed}"
    assert tail.attempt.ended == whole.ended, f"seed {seed}"
    own = [c.ref for c in run.state.checkpoints if c.ref.attempt_id == whole.attempt_id]
    assert [commit.ref for commit in tail.commits] == own, f"seed {seed}"


def test_a_withdrawn_checkpoint_and_a_refusal_are_seen() -> None:
    history = History("r-1").declare().open().place().restore().commit(10)
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, history.state.checkpoints[0].ref)
    history.end("code_error", last_step=10).refuse()
    tail = fold_tail(history.records[1:])
    assert tail.withdrawn == {history.state.checkpoints[0].ref.manifest_sha256}
    assert tail.refused
