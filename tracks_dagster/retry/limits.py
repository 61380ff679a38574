"""The limits on automatic retries, each in numbers and in words; all of them hold together.

Per reason (by number or by time), per fingerprint, per run in device-hours, and for free retries of
attempts that never started. More debits only ever exhaust more of them, more progress only ever less.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.policy import HOUR_S, RetryPolicy, RetryRule
from tracks_dagster.track.bodies import AUTOMATIC, FIRST
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, RunState

# --- progress -------------------------------------------------------------------------------------
#
# What counts as progress of a run: it refunds a debit, and ends a row of failures. Pure.
#
# A checkpoint is progress after a record when it was committed after it, is trusted, and is further
# than every one that was there then. Which one is trusted is the caller's question: `is_verified`, or
# `may_prove_right` to see what a read would change.

Trust = Callable[[CheckpointState], bool]


def is_verified(checkpoint: CheckpointState) -> bool:
    """Whether every byte of it was read and is right: what refunds a debit."""
    return checkpoint.verified_at is not None and not checkpoint.quarantined


def may_prove_right(checkpoint: CheckpointState) -> bool:
    """Whether it is verified, or a read could still show that it is."""
    return is_verified(checkpoint) or checkpoint.is_resumable


class Progress:
    """The progress of a run over its records; asked about any of them in logarithmic time."""

    def __init__(self, checkpoints: Sequence[CheckpointState], trust: Trust) -> None:
        """Prepare the answers; n log n in the number of checkpoints."""
        self._marks = list(_marks(checkpoints))
        self._trusted = [c for c in sorted(checkpoints, key=lambda c: c.seq) if trust(c)]
        self._furthest = _suffix_maxima([c.ref.step for c in self._trusted])

    def since(self, seq: int) -> bool:
        """Whether there was progress after record `seq`.

        What was quarantined before `seq` sets no mark: a run that was rolled back makes progress from
        where it resumed. What was quarantined after it does: the same way twice is not progress.
        """
        at = bisect_left(self._marks, (seq, 0))
        mark = self._marks[at - 1][1] if at else 0
        return self.is_beyond(mark, seq)

    def is_beyond(self, step: int, seq: int) -> bool:
        """Whether a checkpoint beyond `step` was committed after record `seq`."""
        at = bisect_left(self._trusted, seq + 1, key=lambda c: c.seq)
        return at < len(self._furthest) and self._furthest[at] > step


def _marks(checkpoints: Sequence[CheckpointState]) -> Iterator[tuple[int, int]]:
    """Yield (seq, the greatest step after that record), for each record that changes it."""
    commits = [(c.seq, c.ref.step, True) for c in checkpoints]
    ends = [(c.quarantined_seq, c.ref.step, False) for c in checkpoints if c.quarantined_seq]
    standing: list[int] = []
    for seq, step, is_commit in sorted([*commits, *ends]):
        if is_commit:
            insort(standing, step)
        else:
            standing.pop(bisect_left(standing, step))
        yield seq, standing[-1] if standing else 0


def _suffix_maxima(steps: Sequence[int]) -> list[int]:
    """Return, for each place, the greatest from there on: [3, 1, 2] → [3, 2, 2]."""
    maxima: list[int] = []
    for step in reversed(steps):
        maxima.append(max(step, maxima[-1]) if maxima else step)
    return maxima[::-1]


# --- spending -------------------------------------------------------------------------------------
#
# What a run has spent on retries: debits as they count now, and which of them progress gave back.
#
# A debit is in the `attempt_opened` that it paid for and is charged to the newest reading of why
# the attempt before it ended, so that a reclassification moves it. `limits` decides whether
# that is too much.


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

    Also free: a retry limited in device time alone, after an attempt that used none.
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
        rule, amount = policy.rule_for(failed), debit.amount
        if failed.reclassified is not None:
            amount = 1.0 if _started(failed) and not rule.is_unlimited else amount
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


_EXIT_CODE = re.compile(r"exit code \d+")
DOUBLINGS_MAX = 30  # of a backoff: a second becomes 34 years
# What the limit of a row rests on, and of the others: field of the policy → its key in a file.
ROW_FIELDS = (
    *("count", "count_before_first_step", "count_by_words", "window_s", "window_steps", "time_s"),
    *("refund", "refund_past_onset", "counts_as"),
)
LIMIT_KEYS: Mapping[str, Mapping[str, str]] = {
    "fingerprint": {"fingerprint_limit": "fingerprint_limit"},
    "never_started": {"never_started_limit": "never_started_limit"},
    "device_hours": {
        "device_hours_factor": "device_hours_factor",
        "device_s_floor": "device_time_floor",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit before the next retry.

    name: as `retry_refused` names it; words: what is used of it; seqs: the records counted; rules: what
    a policy file changed of it, by the names there.
    """

    name: str
    is_exhausted: bool
    words: str
    seqs: tuple[int, ...]
    rules: tuple[str, ...] = ()


def limits(
    state: RunState,
    failed: AttemptState,
    rule: RetryRule,
    policy: RetryPolicy,
    now: datetime,
    *,
    trust: Trust = is_verified,
) -> tuple[Limit, ...]:
    """Return the limits that hold for a retry after `failed`, the most particular first.

    trust: which checkpoints count as progress. now: by the clock of the one who decides; one that is
    before the newest record lets no debit leave its window.
    """
    found = _limits(state, failed, rule, policy, now, trust)
    return tuple(replace(each, rules=_changed_by_file(each.name, rule, policy)) for each in found)


def _changed_by_file(limit: str, rule: RetryRule, policy: RetryPolicy) -> tuple[str, ...]:
    shipped = DEFAULT_POLICY.rule(rule.reason)
    if limit == "reason":
        is_changed = any(getattr(rule, each) != getattr(shipped, each) for each in ROW_FIELDS)
        return (f"fault_tolerance.reasons.{rule.reason}",) if is_changed else ()
    return tuple(
        f"fault_tolerance.limits.{key}"
        for field, key in LIMIT_KEYS[limit].items()
        if getattr(policy, field) != getattr(DEFAULT_POLICY, field)
    )


def _limits(
    state: RunState,
    failed: AttemptState,
    rule: RetryRule,
    policy: RetryPolicy,
    now: datetime,
    trust: Trust,
) -> tuple[Limit, ...]:
    spent = spendings(state, policy)
    progress = Progress(state.checkpoints, trust)
    device_hours = _device_hours(state, policy)
    if is_free(failed, rule):
        return (_never_started(spent, policy, progress), device_hours)
    if rule.time_s is not None:
        return (_time(state, rule, policy, now, progress), device_hours)
    by_number = _count(failed, rule, spent, now, progress)
    if not rule.fingerprint_limited:
        return (by_number, device_hours)
    return (by_number, _fingerprint(failed, spent, policy, progress), device_hours)


def in_a_row(state: RunState, failed: AttemptState, rule: RetryRule, policy: RetryPolicy) -> int:
    """Return how many retries for the same reason went before, without a step of progress since.

    Where a retry is free, those that were free too, whatever their reason.
    """
    progress = Progress(state.checkpoints, is_verified)
    free = is_free(failed, rule)
    return sum(
        1
        for spent in spendings(state, policy)
        if (spent.is_free if free else spent.budget is rule.budget)
        and not progress.since(spent.seq)
    )


def fruitless(state: RunState, policy: RetryPolicy) -> tuple[Spent, ...]:
    """Return the automatic retries, whatever their reasons, since the newest progress or a person's.

    What is retried without a limit in number, as preemptions are, shows here alone.
    """
    progress = Progress(state.checkpoints, is_verified)
    by_person = (a.opened_seq for a in state.attempts if a.opened.cause not in (FIRST, AUTOMATIC))
    since = max(by_person, default=0)
    return tuple(s for s in spendings(state, policy) if s.seq > since and not progress.since(s.seq))


def _count(
    failed: AttemptState,
    rule: RetryRule,
    spent: tuple[Spent, ...],
    now: datetime,
    progress: Progress,
) -> Limit:
    """Limit the number of retries for one reason. Three in 24 h, one of them refunded: 2 used."""
    own = [s for s in spent if s.budget is rule.budget and _in_window(s, failed, rule, now)]
    counted = [(s, amount) for s in own if (amount := charged(s, rule, progress)) > 0]
    used = sum(amount for _, amount in counted)
    seqs = tuple(s.seq for s, _ in counted)
    count, where = rule.count, ""
    if rule.count_before_first_step is not None and _ran_no_step(failed):
        count, where = rule.count_before_first_step, " before the first step"
    if count is None:
        words = f"{rule.reason} is not limited by number"
    elif count == 0:
        words = f"{rule.reason}{where} is not retried: the same attempt would end the same"
    else:
        words = f"{used:g} of {count} retries for {rule.budget}{where} used{_describe_window(rule)}"
        if rule.count_by_words == count:
            words += ", as only words in a log tell of it"
    exhausted = count is not None and used + 1 > count
    return Limit(name="reason", is_exhausted=exhausted, words=words, seqs=seqs)


def _time(
    state: RunState, rule: RetryRule, policy: RetryPolicy, now: datetime, progress: Progress
) -> Limit:
    """Limit the time that attempts with this end took without a step of progress after them.

    Counted since a person last opened one: what was changed then deserves the time again.
    """
    by_person = (a.attempt_id for a in state.attempts if a.opened.cause not in (FIRST, AUTOMATIC))
    since = max(by_person, default=1)
    took: list[tuple[AttemptState, float]] = []
    for attempt in state.attempts[since - 1 :]:
        is_same = attempt.reason is not None and policy.rule(attempt.reason).budget is rule.budget
        if is_same and not progress.since(attempt.opened_seq):
            following = state.attempt(attempt.attempt_id + 1)
            until = following.opened_at if following is not None else now
            took.append((attempt, _tried_s(attempt, rule, len(took), until)))
    used_s, limit_s = sum(seconds for _, seconds in took), rule.time_s or 0.0
    return Limit(
        name="reason",
        is_exhausted=used_s >= limit_s,
        words=f"{used_s / HOUR_S:.2f} of {limit_s / HOUR_S:g} hours of {rule.reason} used",
        seqs=tuple(attempt.ended_seq for attempt, _ in took if attempt.ended_seq is not None),
    )


def _tried_s(attempt: AttemptState, rule: RetryRule, number: int, until: datetime) -> float:
    """Return the seconds of an attempt's trying: from its first claim to its end, and its backoff.

    number: of those before it in the row. Time in which nobody tried is not counted: before somebody
    took it up, and after its backoff while no sensor was on. A clock that jumped backwards takes
    nothing away.
    """
    if attempt.ended_at is None:
        return 0.0
    began_at = attempt.claims[0].at if attempt.claims else attempt.opened_at
    waited_s = max(0.0, (until - attempt.ended_at).total_seconds())
    tried_s = max(0.0, (attempt.ended_at - began_at).total_seconds())
    return tried_s + min(waited_s, backoff_s(rule.backoff_s, rule.backoff_s_max, number))


def backoff_s(first_s: float, max_s: float, number: int) -> float:
    """Return the longest backoff of a retry that `number` others went before: 5, 10, 20 …"""
    return min(max_s, first_s * 2.0 ** min(number, DOUBLINGS_MAX))


def _fingerprint(
    failed: AttemptState, spent: tuple[Spent, ...], policy: RetryPolicy, progress: Progress
) -> Limit:
    """Limit the debits for one and the same failure without a step of progress after them."""
    same = [
        s
        for s in spent
        if s.amount > 0 and s.failed.fingerprint == failed.fingerprint and not progress.since(s.seq)
    ]
    used, count = len(same), policy.fingerprint_limit
    words = f"{used} of {count} used for this very failure (fingerprint {failed.fingerprint})"
    alike = next((s for s in spent if _left_alike(s, failed, progress)), None)
    if alike is not None:
        words = (
            f"attempt {alike.failed.attempt_id} left with the same exit code after the same step, and "
            "nothing was committed in between"
        )
    return Limit(
        name="fingerprint",
        is_exhausted=used >= count or alike is not None,
        words=words,
        seqs=tuple(s.seq for s in ([alike] if alike is not None else same)),
    )


def _left_alike(spent: Spent, failed: AttemptState, progress: Progress) -> bool:
    """Whether a retry was paid for that left with an exit code just as `failed` did.

    A process that leaves so on its own does it again, on whatever node: no fingerprint is needed, which
    also holds the nodes, and knows numbers neither of codes nor of steps.
    """
    before = spent.failed
    code = _exit_code(failed)
    return (
        spent.amount > 0
        and code is not None
        and code == _exit_code(before)
        and _last_step(before) == _last_step(failed)
        and before.opened.config == failed.opened.config
        and before.opened.snapshot == failed.opened.snapshot
        and not progress.since(spent.seq)
    )


def _exit_code(attempt: AttemptState) -> str | None:
    """Return "exit code 3" of an attempt of which nothing more is known; else None."""
    if attempt.reason is not TerminationReason.UNKNOWN or attempt.ended is None:
        return None
    found = _EXIT_CODE.match(attempt.ended.root_message)
    return None if found is None else found[0]


def _device_hours(state: RunState, policy: RetryPolicy) -> Limit:
    """Limit the device time of all attempts together, manual ones too."""
    ended = [a for a in state.attempts if a.ended is not None]
    used_s = sum(a.ended.device_seconds for a in ended if a.ended is not None)
    cap_s = policy.device_s_cap(state.declared.estimated_device_s)
    return Limit(
        name="device_hours",
        is_exhausted=used_s >= cap_s,
        words=f"{used_s / HOUR_S:.2f} device-hours used, without a limit: the run names no steps"
        if math.isinf(cap_s)
        else f"{used_s / HOUR_S:.2f} of {cap_s / HOUR_S:.2f} device-hours used",
        seqs=tuple(a.ended_seq for a in ended if a.ended_seq is not None),
    )


def _never_started(spent: tuple[Spent, ...], policy: RetryPolicy, progress: Progress) -> Limit:
    free = [s for s in spent if s.is_free and not progress.since(s.seq)]
    used, count = len(free), policy.never_started_limit
    return Limit(
        name="never_started",
        is_exhausted=used >= count,
        words=f"{used} of {count} free retries used for attempts that never started, or used no device",
        seqs=tuple(s.seq for s in free),
    )


def _in_window(spent: Spent, failed: AttemptState, rule: RetryRule, now: datetime) -> bool:
    if rule.window_s is not None and spent.at <= now - timedelta(seconds=rule.window_s):
        return False
    if rule.window_steps is None:
        return True
    return abs(_last_step(failed) - _last_step(spent.failed)) <= rule.window_steps


def _describe_window(rule: RetryRule) -> str:
    if rule.window_s is not None:
        return f" in {rule.window_s / HOUR_S:g} hours"
    return f" in {rule.window_steps} steps" if rule.window_steps is not None else ""


def _last_step(attempt: AttemptState) -> int:
    """Return the last step it ran, or the one that it began from."""
    last_step = attempt.ended.last_step if attempt.ended else None
    return attempt.resumed_step if last_step is None else last_step


def _ran_no_step(attempt: AttemptState) -> bool:
    return attempt.ended is not None and attempt.ended.last_step is None
