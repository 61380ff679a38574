"""A run's time line: moments and measured seconds of each attempt, from its records.

`time_buckets` makes the account of these values, and so do the views of the ledger, whose narrow
tables hold the same fields. Moments are whole microseconds since 1970 (`…_us`), so that one SQL text
computes with them on every database. The moments of records are never earlier
than those of the records before, whatever the writers' clocks showed. Moments that ranks reported are
brought into that order when the attempt is closed; a moment without a report is that of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tracks_dagster.track.bodies import TimeSpent
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import parse_time
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import AttemptState, RunState

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What an attempt resumes from. attempt_id: that made it, None of another run, or afresh.

    steps_s: what that attempt had spent on its steps at that commit, None where it did not record that.
    """

    step: int = 0
    attempt_id: int | None = None
    steps_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The end of an attempt: when each of its phases ended, in order, and what it spent.

    queue_to_us: the first rank started; startup_to_us: it was placed; restore_to_us: restored;
    steps_to_us: its last step was done, as far as that is known; held_to_us: the last rank ended;
    closed_us: that was recorded. last_step: at least the step that it started from; spent: None where
    no step was measured.
    """

    queue_to_us: int
    startup_to_us: int
    restore_to_us: int
    steps_to_us: int
    held_to_us: int
    closed_us: int
    reason: str
    fingerprint: str
    last_step: int
    spent: TimeSpent | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A later reading of why an attempt ended."""

    seq: int
    attempt_id: int
    told_us: int
    reason: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimeline:
    """One attempt. devices: as of `AttemptState`; asked: what it was opened to resume from.

    cycled_node_count: nodes that it excludes and the attempt before it did not.
    """

    attempt_id: int
    opened_us: int
    placed_us: int | None
    restored_us: int | None
    asked: Source
    restored: Source | None
    closing: Closing | None
    devices: int
    device_class: str
    pool: str
    accelerator: str
    cause: str
    debit_reason: str | None
    debit_amount: float | None
    cycled_node_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeline:
    """One run. told_us: its newest moment; finished_us: None while it is not finished."""

    run_id: str
    declared_us: int
    finished_us: int | None
    told_us: int
    attempts: tuple[AttemptTimeline, ...]
    readings: tuple[Reading, ...]


def micros(at: datetime) -> int:
    """Return a time as whole microseconds since 1970."""
    return (at - EPOCH) // timedelta(microseconds=1)


def time_at(moment_us: int) -> datetime:
    """Return the time that is so many microseconds after 1970 began."""
    return EPOCH + timedelta(microseconds=moment_us)


def time_of(text: str | None) -> datetime | None:
    """Return the time that a body holds as text.

    Raises TrackBroken for text that is not a time.
    """
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        raise TrackBroken(f"A body holds {text!r} where a time has to be.") from error


def timeline(state: RunState) -> RunTimeline:
    """Return the time line of a run."""
    declared_us = micros(state.declared_at)
    attempts = tuple(_attempts(state, declared_us))
    told_us = _latest(declared_us, *(_moments(attempts[-1]) if attempts else ()))
    finished_us = None if state.finished_at is None else max(told_us, micros(state.finished_at))
    return RunTimeline(
        run_id=state.run_id,
        declared_us=declared_us,
        finished_us=finished_us,
        told_us=_latest(told_us, finished_us),
        attempts=attempts,
        readings=tuple(_readings(state, attempts)),
    )


def _attempts(state: RunState, declared_us: int) -> Iterator[AttemptTimeline]:
    steps_s = {c.ref.manifest_sha256: _steps_s(c.body.spent) for c in state.checkpoints}
    newest = _newest_commits(state)
    now_us, excluded = declared_us, frozenset[str]()
    for attempt in state.attempts:
        commit = newest.get(attempt.attempt_id)
        facts = _facts(state, attempt, now_us, excluded, steps_s, commit)
        now_us = _latest(*_moments(facts))
        excluded = frozenset(attempt.opened.compute.excluded_nodes)
        yield facts


def _facts(
    state: RunState,
    attempt: AttemptState,
    now_us: int,
    excluded: frozenset[str],
    steps_s: dict[str, float | None],
    commit: tuple[int, TimeSpent | None] | None,
) -> AttemptTimeline:
    opened = attempt.opened
    opened_us = max(now_us, micros(attempt.opened_at))
    placed_us = _after(opened_us, attempt.placed_at)
    restored_us = _after(_latest(opened_us, placed_us), attempt.restored_at)
    restored = attempt.restored
    came_from = None if restored is None else _source(state, restored.checkpoint, steps_s)
    return AttemptTimeline(
        attempt_id=attempt.attempt_id,
        opened_us=opened_us,
        placed_us=placed_us,
        restored_us=restored_us,
        asked=_source(state, opened.resume, steps_s),
        restored=came_from,
        closing=_closing(attempt, (opened_us, placed_us, restored_us), commit),
        devices=attempt.devices,
        device_class=opened.compute.device_class,
        pool=pool_of(opened.compute),
        accelerator=accelerator_of(attempt),
        cause=opened.cause,
        debit_reason=opened.debit.reason if opened.debit else None,
        debit_amount=opened.debit.amount if opened.debit else None,
        cycled_node_count=len(frozenset(opened.compute.excluded_nodes) - excluded),
    )


def _closing(
    attempt: AttemptState,
    moments: tuple[int, int | None, int | None],
    commit: tuple[int, TimeSpent | None] | None,
) -> Closing | None:
    """Return the end of an attempt. moments: when it was opened, placed and restored."""
    ended = attempt.ended
    if ended is None or attempt.ended_at is None:
        return None
    step, committed = commit or (0, None)
    spent = ended.spent
    # A commit proves its numbers, also where the journal's tail was lost with the machine.
    if committed is not None and (spent is None or spent.steps_s < committed.steps_s):
        spent = committed
    last_step = max(attempt.resumed_step, step, ended.last_step or 0)
    opened_us, closed_us = moments[0], max(_latest(*moments), micros(attempt.ended_at))
    held_to_us = _between(_seen(ended.finished_at), opened_us, closed_us)
    started_us = _seen(ended.started_at)
    queue_to_us = _between(moments[1] if started_us is None else started_us, opened_us, held_to_us)
    startup_to_us = _between(moments[1], queue_to_us, held_to_us)
    restore_to_us = _between(moments[2], startup_to_us, held_to_us)
    stepped_us = _seen(ended.last_stepped_at)
    if stepped_us is None and last_step == attempt.resumed_step:
        stepped_us = restore_to_us  # it ran no step
    return Closing(
        queue_to_us=queue_to_us,
        startup_to_us=startup_to_us,
        restore_to_us=restore_to_us,
        steps_to_us=_between(stepped_us, restore_to_us, held_to_us),
        held_to_us=held_to_us,
        closed_us=closed_us,
        reason=ended.reason,
        fingerprint=ended.fingerprint,
        last_step=last_step,
        spent=spent,
    )


def _source(state: RunState, ref: CheckpointRef | None, steps_s: dict[str, float | None]) -> Source:
    if ref is None:
        return Source()
    if ref.run_id != state.run_id:
        return Source(step=ref.step)
    spent_s = steps_s.get(ref.manifest_sha256)
    return Source(step=ref.step, attempt_id=ref.attempt_id, steps_s=spent_s)


def _newest_commits(state: RunState) -> dict[int, tuple[int, TimeSpent | None]]:
    """Return the greatest committed step by attempt, with what its launch had spent by then."""
    newest: dict[int, tuple[int, TimeSpent | None]] = {}
    for checkpoint in state.checkpoints:
        ref = checkpoint.ref
        if ref.step >= newest.get(ref.attempt_id, (0, None))[0]:
            newest[ref.attempt_id] = (ref.step, checkpoint.body.spent)
    return newest


def _readings(state: RunState, attempts: tuple[AttemptTimeline, ...]) -> Iterator[Reading]:
    for later in state.reclassifications:
        closing = attempts[(later.attempt_id or 1) - 1].closing
        if closing is not None:
            yield Reading(
                seq=later.seq,
                attempt_id=later.attempt_id or 1,
                told_us=max(closing.closed_us, micros(later.at)),
                reason=later.body.reason,
                fingerprint=later.body.fingerprint,
            )


def _moments(facts: AttemptTimeline) -> tuple[int | None, ...]:
    closed_us = facts.closing.closed_us if facts.closing else None
    return facts.opened_us, facts.placed_us, facts.restored_us, closed_us


def accelerator_of(attempt: AttemptState) -> str:
    """Return what the attempt ran on, as far as that is known; else the class that it asked for."""
    if attempt.ended is not None and attempt.ended.accelerator:
        return attempt.ended.accelerator
    ranks = attempt.placed.ranks if attempt.placed else ()
    return ranks[0].accelerator if ranks else attempt.opened.compute.device_class


def _steps_s(spent: TimeSpent | None) -> float | None:
    return None if spent is None else spent.steps_s


def _seen(text: str | None) -> int | None:
    at = time_of(text)
    return None if at is None else micros(at)


def _after(now_us: int, at: datetime | None) -> int | None:
    return None if at is None else max(now_us, micros(at))


def _between(moment_us: int | None, low_us: int, high_us: int) -> int:
    """Return the moment, moved into the interval; its end when there was no such moment."""
    return high_us if moment_us is None else min(max(moment_us, low_us), high_us)


def _latest(*moments: int | None) -> int:
    return max(each for each in moments if each is not None)


def family_of(reason: str) -> str:
    """Return the family of a termination reason, as the ledger names it."""
    return TerminationReason(reason).family.value
