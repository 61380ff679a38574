"""Every second of a run in exactly one bucket, and the device seconds that went with it.

A run lasts from its declaration to its finish, or to `as_of`; one attempt follows the other:

    opened ──queue── started ──startup── placed ──restore── restored ──…── finished ──detection── closed

Between restored and finished are the seconds that rank 0 measured (`TimeSpent`), scaled down where
its clock and the others' disagree, so that they fit. Step seconds are kept up to the commit that a
later attempt resumed from, of the newest attempt up to its newest commit once it has ended, and lost
after it, exactly where that commit recorded the time, else in proportion to the steps. The rest is
unknown, but of a hang or a lost node the time since its last step is detection.
Everything between attempts, and after the last, is idle: backoff, a person's turn, evals awaited.

What is missing: without a start of any rank the placement stands in; an attempt that was never
placed or never restored spent all it had in the phase before. Devices are held from started to
finished; queue, idle and the wait for `attempt_ended` hold none.

Of an attempt that is open at `as_of`, only what its newest commit recorded is known.
`ledger/ledger_views/attempt_time.sql` is the same account in SQL; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.ledger.timeline import (
    AttemptTimeline,
    Closing,
    RunTimeline,
    Source,
    micros,
    timeline,
)
from tracks_dagster.track.bodies import TimeSpent
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.accounting import StepAccount, StepSpan, step_accounts
from tracks_dagster.track.states.run_state import RunState

BUCKETS = (
    "queue",
    "startup",
    "restore",
    "step_kept",
    "step_lost",
    "checkpoint_blocking",
    "data_wait",
    "inline_eval",
    "detection",
    "idle",
    "unknown",
)
HOLDING = tuple(b for b in BUCKETS if b not in ("queue", "idle"))  # of which devices may be held
# Ends after which the time since the last step was spent on noticing: nothing worked any more.
NOTICED_LATE = (
    TerminationReason.HANG.value,
    TerminationReason.DATA_LOADER_STALL.value,
    TerminationReason.NODE_FAILURE.value,
)
_NONE = TimeSpent()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTime:
    """One attempt's seconds by bucket; `idle` is always 0 here. devices: how many it held.

    reason: as it was read at `as_of`, None while it was open. idle_s: from the attempt before, or the
    declaration, to its opening; of the newest attempt also from its end on. device_seconds: devices
    times the seconds during which they were held.
    """

    attempt_id: int
    reason: str | None
    devices: int
    kept_steps: int
    lost_steps: int
    idle_s: float
    seconds: Mapping[str, float]
    device_seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """A run's account. The seconds of all attempts and idle_s, sum to wall_s."""

    run_id: str
    wall_s: float
    idle_s: float
    attempts: tuple[AttemptTime, ...]

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by bucket, over all attempts, idle ones included."""
        total = {bucket: sum(a.seconds[bucket] for a in self.attempts) for bucket in BUCKETS}
        return {**total, "idle": self.idle_s}

    @property
    def device_seconds(self) -> dict[str, float]:
        """Device seconds by bucket, over all attempts."""
        return {bucket: sum(a.device_seconds[bucket] for a in self.attempts) for bucket in BUCKETS}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """An attempt as it was known at `as_of`. closing, placed_us, restored_us: None when later."""

    facts: AttemptTimeline
    placed_us: int | None
    restored_us: int | None
    source: Source
    closing: Closing | None
    reason: str | None
    until_us: int
    span: StepSpan
    spent: TimeSpent
    saved_steps_s: float | None


def run_buckets(
    state: RunState, *, as_of: datetime, spent: Mapping[int, tuple[int, TimeSpent]] | None = None
) -> RunTime:
    """Return the account as of `as_of`, from the records up to then.

    spent: (last step, what was spent by it) by attempt id, from the journals, for an attempt that is
    open; it is used only with an `as_of` that is not in the past.
    """
    facts, as_of_us = timeline(state), micros(as_of)
    if as_of_us < facts.declared_us:
        return RunTime(run_id=facts.run_id, wall_s=0.0, idle_s=0.0, attempts=())
    finished_us = facts.finished_us
    until_us = as_of_us if finished_us is None else min(as_of_us, finished_us)
    known = [
        _known(state, facts, attempt, as_of_us, until_us, spent or {})
        for attempt in facts.attempts
        if attempt.opened_us <= as_of_us
    ]
    accounts = step_accounts([each.span for each in known])
    attempts: list[AttemptTime] = []
    before_us, idle_us = facts.declared_us, until_us - facts.declared_us
    for each, account in zip(known, accounts, strict=True):
        own_us = each.facts.opened_us - before_us
        own_us += until_us - each.until_us if each is known[-1] else 0
        attempts.append(_attempt_time(each, account, known, own_us))
        before_us = each.until_us
        idle_us -= each.until_us - each.facts.opened_us
    return RunTime(
        run_id=facts.run_id,
        wall_s=(until_us - facts.declared_us) / 1e6,
        idle_s=idle_us / 1e6,
        attempts=tuple(attempts),
    )


def _known(
    state: RunState,
    run: RunTimeline,
    facts: AttemptTimeline,
    as_of_us: int,
    until_us: int,
    spent: Mapping[int, tuple[int, TimeSpent]],
) -> _Known:
    closing = facts.closing
    if closing is not None and closing.closed_us > as_of_us:
        closing = None
    restored_us = _by(facts.restored_us, as_of_us)
    source = facts.asked if restored_us is None or facts.restored is None else facts.restored
    if closing is not None:
        last, measured = closing.last_step, closing.spent or _NONE
    else:
        last, measured = spent.get(facts.attempt_id) or _newest_commit(state, facts, as_of_us)
    saved = _newest_commit(state, facts, as_of_us, usable_only=True)
    readings = [
        r.reason for r in run.readings if r.attempt_id == facts.attempt_id and r.told_us <= as_of_us
    ]
    return _Known(
        facts=facts,
        placed_us=_by(facts.placed_us, as_of_us),
        restored_us=restored_us,
        source=source,
        closing=closing,
        reason=[closing.reason, *readings][-1] if closing else None,
        until_us=closing.closed_us if closing else until_us,
        span=StepSpan(
            attempt_id=facts.attempt_id,
            resume=source.step,
            last=max(source.step, last),
            saved=None if closing is None else max(source.step, saved[0]),
        ),
        spent=measured,
        saved_steps_s=saved[1].steps_s if saved[1] is not _NONE else None,
    )


def _newest_commit(
    state: RunState, facts: AttemptTimeline, as_of_us: int, *, usable_only: bool = False
) -> tuple[int, TimeSpent]:
    """Return the greatest step that the attempt had committed by then, and what it had spent.

    usable_only: leave out what had been quarantined or deleted by then.
    """
    commits = [
        (c.ref.step, c.body.spent or _NONE)
        for c in state.checkpoints
        if c.ref.attempt_id == facts.attempt_id
        and micros(c.at) <= as_of_us
        and not (usable_only and c.unusable_at is not None and micros(c.unusable_at) <= as_of_us)
    ]
    return max(commits, key=lambda each: (each[0], each[1].steps_s), default=(0, _NONE))


def _attempt_time(
    known: _Known, account: StepAccount, all_known: Sequence[_Known], idle_us: int
) -> AttemptTime:
    started_us, placed_us, restored_us, stepped_us, finished_us = _phases(known)
    spent, room_s = known.spent, (stepped_us - restored_us) / 1e6
    measured_s = spent.steps_s + spent.data_s + spent.saving_s + spent.eval_s
    scale = min(1.0, room_s / measured_s) if measured_s > 0.0 else 0.0
    kept = _kept_share(known, account, all_known)
    hang_s = (finished_us - stepped_us) / 1e6
    spent_s = {
        "startup": (placed_us - started_us) / 1e6,
        "restore": (restored_us - placed_us) / 1e6,
        "step_kept": spent.steps_s * scale * kept,
        "step_lost": spent.steps_s * scale * (1.0 - kept),
        "checkpoint_blocking": spent.saving_s * scale,
        "data_wait": spent.data_s * scale,
        "inline_eval": spent.eval_s * scale,
        "detection": hang_s,
        "unknown": max(0.0, room_s - measured_s * scale),
    }
    devices = max(known.facts.devices, 0)  # a forged record may ask for any number of ranks
    seconds = {bucket: spent_s.get(bucket, 0.0) for bucket in BUCKETS}
    seconds["queue"] = (started_us - known.facts.opened_us) / 1e6
    seconds["detection"] += (known.until_us - finished_us) / 1e6
    return AttemptTime(
        attempt_id=known.facts.attempt_id,
        reason=known.reason,
        devices=devices,
        kept_steps=account.kept,
        lost_steps=account.lost,
        idle_s=idle_us / 1e6,
        seconds=seconds,
        device_seconds={bucket: devices * spent_s.get(bucket, 0.0) for bucket in BUCKETS},
    )


def _phases(known: _Known) -> tuple[int, int, int, int, int]:
    """Return when its queue, start, restore and steps ended, and until when it held its devices."""
    closing, until_us = known.closing, known.until_us
    if closing is None:
        placed_us = until_us if known.placed_us is None else known.placed_us
        restored_us = until_us if known.restored_us is None else known.restored_us
        return placed_us, placed_us, restored_us, until_us, until_us
    return (
        closing.queue_to_us,
        closing.startup_to_us,
        closing.restore_to_us,
        closing.steps_to_us if known.reason in NOTICED_LATE else closing.held_to_us,
        closing.held_to_us,
    )


def _kept_share(known: _Known, account: StepAccount, all_known: Sequence[_Known]) -> float:
    """Return the share of the step seconds that was spent on steps which the run kept."""
    if account.kept == 0:
        return 0.0
    if account.end >= account.last:
        return 1.0
    is_newest = known is all_known[-1]
    at_commit = (
        [known.saved_steps_s]
        if is_newest and known.saved_steps_s is not None
        else [
            later.source.steps_s
            for later in all_known
            if later.source.attempt_id == account.attempt_id
            and later.source.step == account.end
            and later.source.steps_s is not None
        ]
    )
    if at_commit and known.spent.steps_s > 0.0:
        return min(1.0, max(at_commit) / known.spent.steps_s)
    return account.kept / (account.kept + account.lost)


def _by(moment_us: int | None, as_of_us: int) -> int | None:
    """Return a moment that had come by then."""
    return moment_us if moment_us is not None and moment_us <= as_of_us else None
