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

from tracks_dagster.retry.policy import RetryPolicy, RetryRule
from tracks_dagster.retry.progress import Progress
from tracks_dagster.track.bodies import AUTOMATIC
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """One automatic retry.

    seq, at: of the `attempt_opened` with the debit; failed: the attempt whose end it paid for;
    budget: the reason it is charged to; amount: before any refund; is_free: it cost nothing at all,
    not even device time.
    """

    seq: int
    at: datetime
    failed: AttemptState
    budget: TerminationReason
    amount: float
    is_free: bool


def spendings(state: RunState, policy: RetryPolicy) -> tuple[Spent, ...]:
    """Return every automatic retry of the run, in order."""
    return tuple(_spendings(state, policy))


def is_free(failed: AttemptState, rule: RetryRule) -> bool:
    """Whether a retry after `failed` costs nothing: no rank of it ran its first line.

    Neither does one that is limited in device time alone, after an attempt of which none is known.
    Not where failing before the first step is the reason's own budget, nor where time is, nor where
    the reason is never retried.
    """
    if failed.ended is None or rule.time_s is not None or rule.count_before_first_step is not None:
        return False
    if rule.count == 0:
        return False
    return not _started(failed) or (rule.count is None and failed.ended.device_seconds <= 0)


def charged(spent: Spent, rule: RetryRule, progress: Progress) -> float:
    """Return what `spent` still counts for under `rule`, after the refund for progress."""
    if rule.refund == 0 or not _is_refunded(spent, rule, progress):
        return spent.amount
    return spent.amount * (1 - rule.refund)


def unread(state: RunState) -> CheckpointState | None:
    """Return the checkpoint of the greatest step that nobody has read yet, or None.

    If it proves right, everything is refunded that any other unread one could refund.
    """
    waiting = (c for c in state.checkpoints if c.is_resumable and c.verified_at is None)
    return max(waiting, key=lambda c: (c.ref.step, c.seq), default=None)


def _spendings(state: RunState, policy: RetryPolicy) -> Iterator[Spent]:
    for failed, attempt in pairwise(state.attempts):
        debit = attempt.opened.debit
        if attempt.opened.cause != AUTOMATIC or debit is None or failed.reason is None:
            continue
        rule, amount = policy.rule(failed.reason), debit.amount
        if failed.reclassified is not None:
            amount = 1.0 if _started(failed) else amount
        yield Spent(
            seq=attempt.opened_seq,
            at=attempt.opened_at,
            failed=failed,
            budget=rule.budget,
            amount=amount,
            is_free=amount == 0 and is_free(failed, rule),
        )


def _is_refunded(spent: Spent, rule: RetryRule, progress: Progress) -> bool:
    if not progress.since(spent.seq):
        return False
    return not rule.refund_past_onset or progress.is_beyond(_onset(spent.failed), spent.seq)


def _onset(attempt: AttemptState) -> int:
    """Return the step at which its numbers went wrong; where that is not known, its last one."""
    ended = attempt.ended
    if ended is None:
        return 0
    return (ended.last_step or 0) if ended.onset_step is None else ended.onset_step


def _started(attempt: AttemptState) -> bool:
    return attempt.ended is not None and attempt.ended.first_line_ran
