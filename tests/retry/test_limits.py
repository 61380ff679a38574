"""Debits and progress in random histories: a correction moves one debit, and touches no other."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.histories import History
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.limits import Progress, Spent, may_prove_right, spendings
from tracks_dagster.retry.policy import NEED_A_RULE
from tracks_dagster.track.bodies import Debit
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import RunState

REASONS = st.sampled_from(sorted(NEED_A_RULE - {TerminationReason.EVALUATOR_ERROR}))


@given(
    reasons=st.lists(REASONS, min_size=2, max_size=7),
    corrected=st.integers(min_value=0),
    to=REASONS,
)
def test_a_correction_moves_one_debit_to_the_budget_of_the_new_reason(
    reasons: list[TerminationReason], corrected: int, to: TerminationReason
) -> None:
    history = retried(reasons)
    number = 1 + corrected % (len(reasons) - 1)  # an attempt that a retry was paid for
    before = charges(history.state)
    after = charges(history.reclassify(number, to).state)
    assert len(before) == len(after) == len(reasons) - 1
    for each, same in zip(before, after, strict=True):
        if same.failed.attempt_id == number:
            assert same.budget == DEFAULT_POLICY.rule(to).budget
        else:
            assert (same.budget, same.amount) == (each.budget, each.amount)
        assert (same.seq, same.at) == (each.seq, each.at)


@given(reasons=st.lists(REASONS, min_size=2, max_size=5), there=REASONS)
@settings(max_examples=100, deadline=None)
def test_a_correction_that_is_taken_back_leaves_the_budgets_as_they_were(
    reasons: list[TerminationReason], there: TerminationReason
) -> None:
    history = retried(reasons)
    before = [each.budget for each in charges(history.state)]
    history.reclassify(1, there).reclassify(1, reasons[0])
    assert [each.budget for each in charges(history.state)] == before


def retried(reasons: list[TerminationReason]) -> History:
    """Return a run whose attempts ended so, each but the first paid for by the one before."""
    history = History().declare()
    before: TerminationReason | None = None
    for reason in reasons:
        cost = Debit(reason=before, amount=1.0, fingerprint=None, why="a retry") if before else None
        history.open(debit=cost).place().end(reason)
        before = reason
    return history


def charges(state: RunState) -> tuple[Spent, ...]:
    return spendings(state, DEFAULT_POLICY)


# What counts as progress, against a walk over all checkpoints.


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
