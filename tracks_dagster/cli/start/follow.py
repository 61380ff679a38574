"""Follow a training run to its end: show its records and steps, drain it on Ctrl-C.

It only watches: sensors decide and launch, no matter who looks. Killing it loses nothing. A store or a
ledger that does not answer is waited for: the gang trains on without it, as it does without this.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self

from tracks_dagster.attempts.effects.evidence import read_evidence
from tracks_dagster.attempts.effects.heartbeat import read_heartbeat
from tracks_dagster.attempts.launch import NEVER_STARTS
from tracks_dagster.cli.start.progress_line import Reached, StepTimes, View
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.retry.caps import cost_of
from tracks_dagster.review.effects.explain.end import raised_at
from tracks_dagster.review.effects.status import (
    EvalTries,
    shipped_tries,
    waiting_for,
    waits_for_a_person,
    waits_for_devices,
)
from tracks_dagster.review.narrate import sentence
from tracks_dagster.stores.journals import last_step
from tracks_dagster.track.errors import (
    InvalidInput,
    LedgerError,
    OrchestratorError,
    OutcomeUnknown,
    StoreUnavailable,
    TracksError,
)
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.records import Kind, Record, parse_time
from tracks_dagster.track.states.evals import promotion_is_settled
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.run_state import RunState, steps_of

RESTART_S = 2.0  # from one start of a daemon that died to the next, doubled up to
RESTART_S_MAX = 60.0
POLL_S = 0.5
SAY_S = 30.0  # without a change: then what it waits for is said, and again when that changes
QUEUE_S = 15.0  # without a change: then the daemon's word is read whether it waits for devices
DRAIN_S_MAX = 120.0  # a save, the gang's grace and the supervisor's reaction fit well inside
PROMOTION_S_MAX = 60.0  # after the run is finished, until its promotion rule was applied
AWAY_S_MAX = 900.0  # for a store or ledger that does not answer: time to mend a clock or a server
_NUMBERS = re.compile(r"[0-9]+")
# What happens with every checkpoint. The first commit of an attempt is a line of its own; the steps'
# lines have the newest.
_ROUTINE = (Kind.CHECKPOINT_COMMITTED, Kind.CHECKPOINT_SUPERSEDED, Kind.CHECKPOINT_DELETED)
_AWAY = (StoreUnavailable, OutcomeUnknown, LedgerError)
HANDLED = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """How it ended. state: as `run_status` names it, "waiting" when nothing changed for too long.

    is_drained: whether Ctrl-C was obeyed. waited_for: what an unfinished run waits for, if known.
    """

    state: str
    is_drained: bool
    waited_for: str | None


class RunFollower:
    """Follows one run. shown: how many records need no line any more; prices: what a device
    hour costs; tries: how often an eval is tried; check: called at every look."""

    def __init__(
        self,
        tracks: Tracks,
        run_id: str,
        view: View,
        interrupts: Interrupts,
        *,
        wait_s: float,
        by: str,
        shown: int = 0,
        prices: Prices | None = None,
        tries: EvalTries = shipped_tries,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._tracks = tracks
        self._run_id = run_id
        self._view = view
        self._interrupts = interrupts
        self._wait_s = wait_s
        self._by = by
        self._prices = prices
        self._tries = tries
        self._check = check
        self._shown = shown
        self._newest: tuple[int, int] | None = None  # (attempt_id, step)
        self._changed_at = time.monotonic()
        self._drained_at: float | None = None
        self._ended_at: float | None = None
        self._away_at: float | None = None
        self._is_drain_delayed = False
        self._queued_at: int | None = None  # how many records were shown when that was said
        self._waits_for: tuple[int, str] | None = None  # and what was said of its waiting then
        self._saved: Record | None = None  # the newest commit
        self._pace = StepTimes()

    def to_the_end(self) -> Followed:
        """Return when the run is over, drained, or has not changed for `wait_s`, its turn in the queue
        of devices apart.

        Raises the error of a store or ledger that does not answer for `AWAY_S_MAX`.
        """
        while True:
            try:
                followed = self._turn()
            except _AWAY as error:
                self._wait_for(error)
            else:
                self._report_return()
                if followed is not None:
                    return followed
            time.sleep(POLL_S)

    def _turn(self) -> Followed | None:
        """Look once; return how it ended, None while it has not."""
        state = self._look()
        status = run_status(state)
        if self._interrupts.count and self._drained_at is None:
            self.request_drain()
            self._view.event(
                f"draining ({self._interrupts.words}): the gang saves and ends; "
                "Ctrl-C again ends everything at once"
            )
        if self._is_over(state, status.state):
            return self._end(state, status.state)
        if waits_for_a_person(state, self._tries) is not None:
            return self._end(state, RunLifecycle.WAITING.value)
        unchanged_s = time.monotonic() - self._changed_at - self._away_s()
        if unchanged_s > min(QUEUE_S, self._wait_s) and self._is_queued(state):
            self._changed_at = time.monotonic()  # waiting in the queue is not silence
        elif unchanged_s > self._wait_s:
            return self._end(state, RunLifecycle.WAITING.value)
        elif unchanged_s > SAY_S:
            self._say_what_it_waits_for(state, status.why)
        self._check()
        return None

    def _is_queued(self, state: RunState) -> bool:
        """Whether it waits its turn for devices, which may come; says what it waits for once."""
        heartbeat = read_heartbeat(self._tracks.store)
        why = waits_for_devices(state, heartbeat, self._tracks.now())
        if why is not None and self._queued_at != self._shown:
            self._queued_at = self._shown
            self._view.event(f"waiting: {why}")
        return why is not None and NEVER_STARTS not in why

    def _say_what_it_waits_for(self, state: RunState, why: str) -> None:
        """Say it once, and again when that is another thing: the minutes in it may grow."""
        attempt = state.last_attempt
        trains = attempt is not None and self._newest and self._newest[0] == attempt.attempt_id
        heartbeat = read_heartbeat(self._tracks.store)
        late = waiting_for(state, heartbeat, self._tracks.now(), self._tries)
        if late is None and trains:
            return  # a step that takes its time
        text = late or f"nothing new for {SAY_S:g} s: {why}"
        found = (self._shown, _NUMBERS.sub("", text))
        if found != self._waits_for:
            self._waits_for = found
            self._view.event(text)

    def _wait_for(self, error: TracksError) -> None:
        """Say once that something does not answer; raise `error` when that lasts too long."""
        if self._away_at is None:
            self._away_at = time.monotonic()
            self._view.event(
                f"{error} The gang trains on; this command looks again for {AWAY_S_MAX:g} s."
            )
        if self._away_s() > AWAY_S_MAX:
            error.add_note(f"Nothing answered for {self._away_s():.0f} s.")
            raise error
        if self._interrupts.count and self._drained_at is None and not self._is_drain_delayed:
            self._is_drain_delayed = True
            self._view.event(
                "the drain is requested as soon as it answers; Ctrl-C again ends this command"
            )

    def _report_return(self) -> None:
        if self._away_at is None:
            return
        away_s = self._away_s()
        self._changed_at += away_s  # nobody could see a change
        if self._ended_at is not None:
            self._ended_at += away_s
        self._away_at = None
        self._view.event(f"it answers again, after {away_s:.0f} s")

    def _away_s(self) -> float:
        return 0.0 if self._away_at is None else time.monotonic() - self._away_at

    def _look(self) -> RunState:
        """Show what is new and return the state."""
        state = self._tracks.run(self._run_id)
        records: list[Record] = self._tracks.records(run_track(self._run_id))
        for record in records[self._shown :]:
            if not self._is_routine(record):
                self._view.event(sentence(record))
            if record.kind is Kind.ATTEMPT_ENDED and record.attempt_id is not None:
                self._show_frame(state, record.attempt_id)
        if len(records) > self._shown:
            self._shown = len(records)
            self._changed_at = time.monotonic()
        self._show_step(state)
        return state

    def _is_routine(self, record: Record) -> bool:
        """Whether it comes with every checkpoint and needs no line; takes in what is committed."""
        if record.kind is not Kind.CHECKPOINT_COMMITTED or record.attempt_id is None:
            return record.kind in _ROUTINE
        before, self._saved = self._saved, record
        return before is not None and before.attempt_id == record.attempt_id

    def _show_frame(self, state: RunState, attempt_id: int) -> None:
        """Show which line of the user's own code raised what ended an attempt."""
        attempt = state.attempt(attempt_id)
        if attempt is None or attempt.reason is None:
            return
        evidence, _ = read_evidence(self._tracks.store, attempt)
        for line in raised_at(evidence, attempt.reason.value):
            self._view.event(f"> {line}")

    def _show_step(self, state: RunState) -> None:
        attempt = state.last_attempt
        if attempt is None or attempt.placed is None:
            return
        line = last_step(
            self._tracks.store,
            AttemptRef(self._run_id, attempt.attempt_id),
            attempt.placed.launch_id,
        )
        if line is None or (attempt.attempt_id, line.step) == self._newest:
            return
        self._newest = (attempt.attempt_id, line.step)
        self._changed_at = time.monotonic()
        self._pace.take(attempt.attempt_id, line.step, parse_time(line.at).timestamp())
        now = self._tracks.now()
        self._view.progress(
            Reached(
                attempt_id=attempt.attempt_id,
                step=line.step,
                steps=steps_of(state),
                loss=line.loss,
                saved=self._saved.body["ref"]["step"] if self._saved else None,
                saved_at=self._saved.at if self._saved else None,
                step_s=self._pace.step_s,
                cost=None if self._prices is None else cost_of(state, self._prices, now),
            )
        )

    def request_drain(self) -> None:
        """Record that a person wants the gang saved and ended: why it ends, whatever ends it.

        Asking again changes nothing. Raises StoreUnavailable.
        """
        try:
            request_stop(
                self._tracks, self._run_id, mode="drain", by=self._by, why=self._interrupts.words
            )
        except InvalidInput as error:  # no open attempt: there is nothing that could be saved
            self._view.event(str(error))
        except LedgerError as error:  # the record is written; anyone who projects next takes it in
            self._view.event(str(error))
        self._drained_at = time.monotonic()

    def _is_over(self, state: RunState, now: str) -> bool:
        if self._drained_at is not None:
            waited_s = time.monotonic() - self._drained_at
            return state.open_attempt is None or waited_s > DRAIN_S_MAX
        if now == RunLifecycle.SUCCEEDED and not promotion_is_settled(state):
            self._ended_at = self._ended_at or time.monotonic()
            return time.monotonic() - self._ended_at > PROMOTION_S_MAX
        return now != RunLifecycle.RUNNING

    def _end(self, state: RunState, now: str) -> Followed:
        heartbeat = read_heartbeat(self._tracks.store)
        return Followed(
            state=now,
            is_drained=self._drained_at is not None,
            waited_for=waiting_for(state, heartbeat, self._tracks.now(), self._tries),
        )


class Interrupts:
    """Counts SIGINT and SIGTERM while it is entered. The second one raises KeyboardInterrupt.

    first: the one that came first, which asked for the end.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = signal.SIGINT

    @property
    def words(self) -> str:
        """Why the run is drained. Only a terminal's SIGINT is known to come from a person."""
        if self.first == signal.SIGINT:
            return "Ctrl-C on tracks run"
        return f"{self.first.name} to tracks run, whose sender is not known"

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_interrupt) for number in HANDLED}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self.count:
            self.first = signal.Signals(number)
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt


class Keeper:
    """Restarts a program that died, such as a home's daemon: its runs are not lost with it.

    ensure: starts it if it does not live, and tells whether it did. One that dies again and again is
    started less and less often, until it has lived for a while.
    """

    def __init__(
        self,
        ensure: Callable[[], bool],
        why_ended: Callable[[], str],
        report: Callable[[str], None],
    ) -> None:
        self._ensure = ensure
        self._why_ended = why_ended
        self._report = report
        self._pause_s = RESTART_S
        self._next_at = 0.0
        self._started_at = -RESTART_S_MAX

    def keep(self) -> None:
        """Start the program if it does not live and it is time to; what keeps it from that is said."""
        now = time.monotonic()
        if now < self._next_at:
            return
        try:
            if not self._ensure():
                if now - self._started_at >= RESTART_S_MAX:
                    self._pause_s = RESTART_S
                return
            self._report(self._why_ended())
        except OrchestratorError as error:
            self._report(str(error))
        self._started_at = now
        self._next_at = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, RESTART_S_MAX)
