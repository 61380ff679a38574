"""What a run has spent on retries: debits as they count now, and which of them progress gave back.

A debit stands in the `attempt_opened` that it paid for and is charged to the newest reading of why
the attempt before it ended, so that a reclassification moves it. Whether that is too much is for
`limits` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from tracks_dagster.core.policy import RetryPolicy, RetryRule
from tracks_dagster.core.reasons import TerminationReason
from tracks_dagster.core.run_state import AttemptState, CheckpointState, RunState

AUTOMATIC = "retry"  # the cause of an attempt that the policy opened; a person's is never a debit


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """One automatic retry. seq, at: of the `attempt_opened` with the debit; failed: the attempt
    whose end it paid for; budget: the reason it is charged to; amount: before any refund."""

    seq: int
    at: datetime
    failed: AttemptState
    budget: TerminationReason
    amount: float

    @property
    def is_free(self) -> bool:
        """Whether it cost nothing because no rank had run its first line."""
        return self.amount == 0 and not _started(self.failed)


def spendings(state: RunState, policy: RetryPolicy) -> tuple[Spent, ...]:
    """Return every automatic retry of the run, in order."""
    return tuple(_spendings(state, policy))


def charged(spent: Spent, state: RunState, rule: RetryRule) -> float:
    """Return what `spent` still counts for under `rule`, after the refund for progress."""
    if rule.refund == 0 or not _is_refunded(spent, state, rule):
        return spent.amount
    return spent.amount * (1 - rule.refund)


def progress_since(state: RunState, seq: int) -> CheckpointState | None:
    """Return the first checkpoint committed after record `seq` at a greater step than any before.

    A quarantined one is no progress, but keeps the mark where it was: going the same way twice is
    not progress either.
    """
    mark = max((c.ref.step for c in state.checkpoints if c.seq < seq), default=0)
    after = (c for c in state.checkpoints if c.seq > seq and not c.quarantined)
    return next((c for c in after if c.ref.step > mark), None)


def _spendings(state: RunState, policy: RetryPolicy) -> Iterator[Spent]:
    for failed, attempt in pairwise(state.attempts):
        debit = attempt.opened.debit
        if attempt.opened.cause != AUTOMATIC or debit is None or failed.reason is None:
            continue
        amount = debit.amount
        if failed.reclassified is not None:
            amount = 1.0 if _started(failed) else amount
        yield Spent(
            seq=attempt.opened_seq,
            at=attempt.opened_at,
            failed=failed,
            budget=policy.rule(failed.reason).budget,
            amount=amount,
        )


def _is_refunded(spent: Spent, state: RunState, rule: RetryRule) -> bool:
    progress = progress_since(state, spent.seq)
    if progress is None or not rule.refund_past_onset:
        return progress is not None
    onset = spent.failed.ended.last_step or 0 if spent.failed.ended else 0
    later = (c for c in state.checkpoints if c.seq > spent.seq and not c.quarantined)
    return any(c.ref.step > onset for c in later)


def _started(attempt: AttemptState) -> bool:
    return attempt.ended is not None and attempt.ended.first_line_ran
