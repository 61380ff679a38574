"""Facts that the account of time is computed from, in narrow tables for the views of `ledger_views`.

A scan of them reads a tenth of what one of `training_attempts` does.

Columns that end in `_us` are moments in whole microseconds since 1970, so that the views compute alike
on every database; those of records never go back from one record to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracks_dagster.ledger.facts.fact import Absence, Fact, Type
from tracks_dagster.ledger.timeline import (
    AttemptTimeline,
    Closing,
    Reading,
    RunTimeline,
    Source,
    family_of,
)
from tracks_dagster.track.bodies import RunDeclared, TimeSpent


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """A run and its time line."""

    declared: RunDeclared
    time: RunTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAttempt:
    """One attempt on the time line of `run_id`."""

    run_id: str
    time: AttemptTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedReading:
    """A later reading of why an attempt of `run_id` ended."""

    run_id: str
    reading: Reading


FindSource = Callable[[TimedAttempt], Source | None]


def _asked_source(view: TimedAttempt) -> Source | None:
    return view.time.asked


def _restored_source(view: TimedAttempt) -> Source | None:
    return view.time.restored


def _asked(read: Callable[[Source], Any]) -> Callable[[TimedAttempt], Any]:
    return lambda v: read(v.time.asked)


def _restored(read: Callable[[Source], Any]) -> Callable[[TimedAttempt], Any]:
    return lambda v: read(v.time.restored) if v.time.restored else None


def _closed(read: Callable[[Closing], Any]) -> Callable[[TimedAttempt], Any]:
    return lambda v: read(v.time.closing) if v.time.closing else None


def _spent(read: Callable[[TimeSpent], float]) -> Callable[[TimedAttempt], Any]:
    return _closed(lambda closing: read(closing.spent) if closing.spent else None)


NOT_FINISHED: Absence[TimedRun] = Absence(
    "not_finished", "the run is not finished", lambda v: v.time.finished_us is None
)
NO_CLASS: Absence[TimedRun] = Absence(
    "no_class",
    "none was named: it is of the policy's default_class",
    lambda v: v.declared.workload_class is None,
)
NOT_PLACED: Absence[TimedAttempt] = Absence(
    "not_placed", "its ranks have not come together", lambda v: v.time.placed_us is None
)
NOT_RESTORED: Absence[TimedAttempt] = Absence(
    "not_restored", "it has not come to restore anything", lambda v: v.time.restored_us is None
)
OPEN: Absence[TimedAttempt] = Absence(
    "open", "the attempt has not ended", lambda v: v.time.closing is None
)
UNMEASURED: Absence[TimedAttempt] = Absence(
    "unmeasured",
    "rank 0 measured nothing",
    lambda v: v.time.closing is not None and v.time.closing.spent is None,
)


def _of_another(find: FindSource) -> Absence[TimedAttempt]:
    def holds(view: TimedAttempt) -> bool:
        source = find(view)
        return source is not None and source.attempt_id is None

    return Absence("of_another", "it started at step 0, or from a checkpoint of another run", holds)


def _untimed(find: FindSource) -> Absence[TimedAttempt]:
    def holds(view: TimedAttempt) -> bool:
        source = find(view)
        return source is not None and source.steps_s is None

    return Absence("untimed", "that attempt had not measured its time", holds)


ASKED_OF_ANOTHER, ASKED_UNTIMED = _of_another(_asked_source), _untimed(_asked_source)
RESTORED_OF_ANOTHER = _of_another(_restored_source)
RESTORED_UNTIMED = _untimed(_restored_source)
NOTHING_SPENT: Absence[TimedAttempt] = Absence(
    "nothing_spent",
    "opening it spent nothing from the retry budget",
    lambda v: v.time.debit_reason is None,
)

TEXT, INTEGER, REAL = Type.TEXT, Type.INTEGER, Type.REAL

# Tables, to be read by the line:
# fmt: off
RUN_TIME: tuple[Fact[TimedRun], ...] = (
    Fact("run_id", TEXT, lambda v: v.time.run_id, "the training run", is_key=True),
    Fact("model_family", TEXT, lambda v: v.declared.model_family, "of the run"),
    Fact("team", TEXT, lambda v: v.declared.team, "of the run"),
    Fact("workload_class", TEXT, lambda v: v.declared.workload_class, "of the run, as declared",
         absent=(NO_CLASS,), since=10),
    Fact("declared_us", INTEGER, lambda v: v.time.declared_us, "recorded"),
    Fact("finished_us", INTEGER, lambda v: v.time.finished_us, "recorded", absent=(NOT_FINISHED,)),
    Fact("told_us", INTEGER, lambda v: v.time.told_us, "its newest moment"),
)

ATTEMPT_TIME: tuple[Fact[TimedAttempt], ...] = (
    Fact("run_id", TEXT, lambda v: v.run_id, "the training run", is_key=True),
    Fact("attempt_id", INTEGER, lambda v: v.time.attempt_id, "the attempt", is_key=True),
    Fact("opened_us", INTEGER, lambda v: v.time.opened_us, "recorded"),
    Fact("placed_us", INTEGER, lambda v: v.time.placed_us, "recorded", absent=(NOT_PLACED,)),
    Fact("restored_us", INTEGER, lambda v: v.time.restored_us, "recorded", absent=(NOT_RESTORED,)),
    Fact("asked_step", INTEGER, _asked(lambda s: s.step), "it was opened to resume from, 0 afresh"),
    Fact("asked_attempt_id", INTEGER, _asked(lambda s: s.attempt_id), "the attempt that made it",
         absent=(ASKED_OF_ANOTHER,)),
    Fact("asked_steps_s", REAL, _asked(lambda s: s.steps_s),
         "step seconds of that attempt up to the commit", absent=(ASKED_OF_ANOTHER, ASKED_UNTIMED)),
    Fact("restored_step", INTEGER, _restored(lambda s: s.step), "it restored, 0 afresh",
         absent=(NOT_RESTORED,)),
    Fact("restored_attempt_id", INTEGER, _restored(lambda s: s.attempt_id),
         "the attempt that made it", absent=(NOT_RESTORED, RESTORED_OF_ANOTHER)),
    Fact("restored_steps_s", REAL, _restored(lambda s: s.steps_s),
         "step seconds of that attempt up to the commit",
         absent=(NOT_RESTORED, RESTORED_OF_ANOTHER, RESTORED_UNTIMED)),
    Fact("queue_to_us", INTEGER, _closed(lambda c: c.queue_to_us), "its first rank started",
         absent=(OPEN,)),
    Fact("startup_to_us", INTEGER, _closed(lambda c: c.startup_to_us), "it was placed",
         absent=(OPEN,)),
    Fact("restore_to_us", INTEGER, _closed(lambda c: c.restore_to_us), "it had restored",
         absent=(OPEN,)),
    Fact("steps_to_us", INTEGER, _closed(lambda c: c.steps_to_us), "its last step was done",
         absent=(OPEN,)),
    Fact("held_to_us", INTEGER, _closed(lambda c: c.held_to_us), "its last rank ended",
         absent=(OPEN,)),
    Fact("closed_us", INTEGER, _closed(lambda c: c.closed_us), "its end was recorded",
         absent=(OPEN,)),
    Fact("reason", TEXT, _closed(lambda c: c.reason),
         "as it was closed; later readings are in attempt_readings", absent=(OPEN,)),
    Fact("reason_family", TEXT, _closed(lambda c: family_of(c.reason)), "of that reason",
         absent=(OPEN,)),
    Fact("fingerprint", TEXT, _closed(lambda c: c.fingerprint), "as it was closed", absent=(OPEN,)),
    Fact("last_step", INTEGER, _closed(lambda c: c.last_step),
         "it ran, at least the step that it started from", absent=(OPEN,)),
    Fact("spent_steps_s", REAL, _spent(lambda s: s.steps_s), "on steps, measured by rank 0",
         absent=(OPEN, UNMEASURED)),
    Fact("spent_data_s", REAL, _spent(lambda s: s.data_s), "on waiting for data",
         absent=(OPEN, UNMEASURED)),
    Fact("spent_saving_s", REAL, _spent(lambda s: s.saving_s), "on saves",
         absent=(OPEN, UNMEASURED)),
    Fact("spent_eval_s", REAL, _spent(lambda s: s.eval_s), "on evaluations inside the loop",
         absent=(OPEN, UNMEASURED)),
    Fact("devices", INTEGER, lambda v: v.time.devices,
         "as its place counted them, else one for each rank"),
    Fact("device_class", TEXT, lambda v: v.time.device_class, "it asked for"),
    Fact("pool", TEXT, lambda v: v.time.pool, "the compute pool it was asked for", since=10),
    Fact("accelerator", TEXT, lambda v: v.time.accelerator, "the model of its devices"),
    Fact("cause", TEXT, lambda v: v.time.cause, "first, retry or manual_retry"),
    Fact("debit_reason", TEXT, lambda v: v.time.debit_reason, "whose budget paid for it",
         absent=(NOTHING_SPENT,)),
    Fact("debit_amount", REAL, lambda v: v.time.debit_amount, "how many retries it counts as",
         absent=(NOTHING_SPENT,)),
    Fact("cycled_node_count", INTEGER, lambda v: v.time.cycled_node_count,
         "excluded nodes that the attempt before did not exclude"),
)

READING: tuple[Fact[TimedReading], ...] = (
    Fact("run_id", TEXT, lambda v: v.run_id, "the training run", is_key=True),
    Fact("seq", INTEGER, lambda v: v.reading.seq, "of the record", is_key=True),
    Fact("attempt_id", INTEGER, lambda v: v.reading.attempt_id, "the attempt"),
    Fact("told_us", INTEGER, lambda v: v.reading.told_us, "recorded"),
    Fact("reason", TEXT, lambda v: v.reading.reason, "why it ended, read again"),
    Fact("reason_family", TEXT, lambda v: family_of(v.reading.reason), "of that reason"),
    Fact("fingerprint", TEXT, lambda v: v.reading.fingerprint, "of that reading"),
)
# fmt: on
