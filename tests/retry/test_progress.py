"""What counts as progress, against a walk over all checkpoints."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.histories import History
from tracks_dagster.retry.limits import Progress, may_prove_right
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import RunState

STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "quarantine", "note"]), st.integers(1, 6)), max_size=14
)


@given(STEPS, st.integers(0, 20))
def test_progress_is_a_trusted_step_beyond_all_that_stood_then(
    acts: list[tuple[str, int]], seq: int
) -> None:
    history = History().declare().open().place().restore()
    for act, number in acts:
        here = history.state.checkpoints
        if act == "quarantine" and number <= len(here):
            history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, here[-number].ref)
        elif act == "commit" and number not in {c.ref.step for c in here}:
            history.commit(number)
        else:
            history.note()
    progress = Progress(history.state.checkpoints, may_prove_right)
    assert progress.since(seq) == _walk(history.state, seq)


def _walk(state: RunState, seq: int) -> bool:
    stood = [
        c.ref.step
        for c in state.checkpoints
        if c.seq < seq and (c.quarantined_seq is None or c.quarantined_seq >= seq)
    ]
    mark = max(stood, default=0)
    return any(c.seq > seq and c.ref.step > mark and may_prove_right(c) for c in state.checkpoints)
