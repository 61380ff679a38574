"""The limits on automatic retries, each in numbers and in words; all of them hold together.

Per reason (by number or by time), per fingerprint, per run in device-hours, and for free retries of
attempts that never started. More debits only ever exhaust more of them, more progress only ever less.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.core.policy import HOUR_S, RetryPolicy, RetryRule
from tracks_dagster.core.run_state import AttemptState, RunState
from tracks_dagster.core.spending import Spent, charged, progress_since, spendings


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit as it stands before the next retry.

    name: as `retry_refused` names it; words: what is used of it; seqs: the records counted;
    used: how much of it is spent, in its own unit.
    """

    name: str
    is_exhausted: bool
    words: str
    seqs: tuple[int, ...]
    used: float = 0.0


def is_free(failed: AttemptState, rule: RetryRule) -> bool:
    """Whether a retry after `failed` costs nothing: no rank of it ran its first line.

    Not where failing before the first step is the reason's own budget, nor where time is.
    """
    never_started = failed.ended is not None and not failed.ended.first_line_ran
    return never_started and rule.count_before_first_step is None and rule.time_s is None


def limits(
    state: RunState, failed: AttemptState, rule: RetryRule, policy: RetryPolicy, now: datetime
) -> tuple[Limit, ...]:
    """Return the limits that hold for a retry after `failed`, the most particular first."""
    spent = spendings(state, policy)
    device_hours = _device_hours(state, policy)
    if is_free(failed, rule):
        return (_never_started(spent, policy), device_hours)
    if rule.time_s is not None:
        return (_time(state, rule, policy, now), device_hours)
    by_number = _count(state, failed, rule, spent, now)
    if not rule.fingerprint_limited:
        return (by_number, device_hours)
    return (by_number, _fingerprint(state, failed, spent, policy), device_hours)


def _count(
    state: RunState,
    failed: AttemptState,
    rule: RetryRule,
    spent: tuple[Spent, ...],
    now: datetime,
) -> Limit:
    """Limit the number of retries for one reason. Three in 24 h, one of them refunded: 2 used."""
    own = [s for s in spent if s.budget is rule.budget and _in_window(s, failed, rule, now)]
    counted = [(s, amount) for s in own if (amount := charged(s, state, rule)) > 0]
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
        words = f"{used:g} of {count} retries for {rule.budget}{where} used{_window_words(rule)}"
    exhausted = count is not None and used + 1 > count
    return Limit(name="reason", is_exhausted=exhausted, words=words, seqs=seqs, used=used)


def _time(state: RunState, rule: RetryRule, policy: RetryPolicy, now: datetime) -> Limit:
    """Limit the time that attempts with this end took without a step of progress after them.

    An attempt takes its time from its opening to the opening of the next one, backoff included.
    """
    opened_at = [attempt.opened_at for attempt in state.attempts]
    until = [*opened_at[1:], now]
    took = [
        (attempt, (end - attempt.opened_at).total_seconds())
        for attempt, end in zip(state.attempts, until, strict=True)
        if attempt.reason is not None
        and policy.rule(attempt.reason).budget is rule.budget
        and progress_since(state, attempt.opened_seq) is None
    ]
    used_s, limit_s = sum(seconds for _, seconds in took), rule.time_s or 0.0
    return Limit(
        name="reason",
        is_exhausted=used_s >= limit_s,
        words=f"{used_s / HOUR_S:.2f} of {limit_s / HOUR_S:g} hours of {rule.reason} used",
        seqs=tuple(attempt.ended_seq for attempt, _ in took if attempt.ended_seq is not None),
        used=float(len(took) - 1),
    )


def _fingerprint(
    state: RunState, failed: AttemptState, spent: tuple[Spent, ...], policy: RetryPolicy
) -> Limit:
    """Limit the debits for one and the same failure without a step of progress after them."""
    same = [
        s
        for s in spent
        if s.amount > 0
        and s.failed.fingerprint == failed.fingerprint
        and progress_since(state, s.seq) is None
    ]
    used, count = len(same), policy.fingerprint_limit
    return Limit(
        name="fingerprint",
        is_exhausted=used >= count,
        words=f"{used} of {count} used for this very failure (fingerprint {failed.fingerprint})",
        seqs=tuple(s.seq for s in same),
    )


def _device_hours(state: RunState, policy: RetryPolicy) -> Limit:
    """Limit the device time of all attempts together, manual ones too."""
    ended = [a for a in state.attempts if a.ended is not None]
    used_s = sum(a.ended.device_seconds for a in ended if a.ended is not None)
    cap_s = policy.device_s_cap(state.declared.estimated_device_s)
    return Limit(
        name="device_hours",
        is_exhausted=used_s >= cap_s,
        words=f"{used_s / HOUR_S:.2f} of {cap_s / HOUR_S:.2f} device-hours used",
        seqs=tuple(a.ended_seq for a in ended if a.ended_seq is not None),
    )


def _never_started(spent: tuple[Spent, ...], policy: RetryPolicy) -> Limit:
    free = [s for s in spent if s.is_free]
    used, count = len(free), policy.never_started_limit
    return Limit(
        name="never_started",
        is_exhausted=used >= count,
        words=f"{used} of {count} free retries used for attempts that never started",
        seqs=tuple(s.seq for s in free),
        used=used,
    )


def _in_window(spent: Spent, failed: AttemptState, rule: RetryRule, now: datetime) -> bool:
    if rule.window_s is not None and spent.at <= now - timedelta(seconds=rule.window_s):
        return False
    if rule.window_steps is None:
        return True
    return abs(_last_step(failed) - _last_step(spent.failed)) <= rule.window_steps


def _window_words(rule: RetryRule) -> str:
    if rule.window_s is not None:
        return f" in {rule.window_s / HOUR_S:g} hours"
    return f" in {rule.window_steps} steps" if rule.window_steps is not None else ""


def _last_step(attempt: AttemptState) -> int:
    """Return the last step it ran, or the one that it began from."""
    last_step = attempt.ended.last_step if attempt.ended else None
    return attempt.resumed_step if last_step is None else last_step


def _ran_no_step(attempt: AttemptState) -> bool:
    return attempt.ended is not None and attempt.ended.last_step is None
