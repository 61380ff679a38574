"""What the sensors do in a tick: look at every open run, close what nobody will, decide what is due.

Every step can be repeated, and done by two sensors at once; one run's trouble does not keep the others
waiting. Which attempts need a Dagster run is planned by `attempts.effects.launch`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tracks_dagster.attempts.effects.closing import close_attempt
from tracks_dagster.attempts.effects.launch import (
    OpenAttempt,
    is_lost,
    needs_supervisor,
    next_sensor,
)
from tracks_dagster.attempts.effects.opening.first_attempts import open_or_tell
from tracks_dagster.attempts.effects.opening.remedying import Hands
from tracks_dagster.attempts.effects.opening.retry import Settled, settle
from tracks_dagster.attempts.ports import LauncherOf, Orchestrator
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.pools import Pools
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reasons.user_rules import NO_RULES, UserRules
from tracks_dagster.retry.effects.due import runs_between_attempts, runs_with_open_attempts
from tracks_dagster.retry.effects.node_health import NodeHealth
from tracks_dagster.retry.effects.turns import Seconds, Turns
from tracks_dagster.retry.policy import RetryPolicy, reasons_of
from tracks_dagster.track import names
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.track.track import run_track

LINES_MAX = 20  # runs that a skip reason names; a page of Dagster's UI shows it
LINE_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Every open attempt as it stands, and the runs that could not be looked at, in words.

    cut_at: the run after which the next survey begins, where this one ran out of time.
    """

    attempts: tuple[OpenAttempt, ...]
    problems: tuple[str, ...]
    cut_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What a tick did, what waits, and what it could not do, in words. closed: run id and attempt.

    cut_at: the run after which the next tick goes on, where this one ran out of time.
    """

    closed: tuple[tuple[str, AttemptState], ...] = ()
    decided: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    cut_at: str | None = None


def survey(
    tracks: Tracks,
    ledger: Ledger,
    launcher_of: LauncherOf,
    orchestrator: Orchestrator,
    *,
    after: str | None = None,
    seconds: Seconds = time.monotonic,
) -> Survey:
    """Look at every open attempt: what its track, its gang and Dagster say of it now.

    What ranks appended since reaches the ledger here. after: the run that the last one was cut at.
    """
    attempts, problems = [], []
    turns = Turns(runs_with_open_attempts(ledger), after=after, seconds=seconds)
    for run_id in turns:
        try:
            tracks.project(run_track(run_id))
            state = tracks.run(run_id)
            if state.open_attempt is not None:
                attempts.append(_look(state, state.open_attempt, launcher_of, orchestrator))
        except TracksError as error:
            problems.append(f"{run_id}: {error}")
    return Survey(attempts=tuple(attempts), problems=tuple(problems), cut_at=turns.cut_at)


def _look(
    state: RunState, attempt: AttemptState, launcher_of: LauncherOf, orchestrator: Orchestrator
) -> OpenAttempt:
    gangs = launcher_of(attempt.opened.compute.launcher)
    found = OpenAttempt(
        run_id=state.run_id,
        attempt=attempt,
        runs=orchestrator.runs_of_attempt(attempt_key(state.run_id, attempt.attempt_id)),
        gang=gangs.glance(state.run_id, attempt.attempt_id),
    )
    if not needs_supervisor(found):
        return found
    claims = [claim.body.dagster_run_id for each in state.attempts for claim in each.claims]
    return replace(
        found, parent=_known(reversed(claims), orchestrator), root=_known(claims, orchestrator)
    )


def _known(claims: Iterable[str], orchestrator: Orchestrator) -> str | None:
    """Return the first that Dagster still has: it shows no group of a run that was deleted."""
    return next((each for each in claims if orchestrator.find(each) is not None), None)


def close_lost(
    tracks: Tracks,
    ledger: Ledger,
    launcher_of: LauncherOf,
    orchestrator: Orchestrator,
    *,
    clean: Redact,
    rules: UserRules = NO_RULES,
    after: str | None = None,
    seconds: Seconds = time.monotonic,
) -> Tick:
    """Close every attempt whose gang is gone and that no Dagster run supervises."""
    found = survey(tracks, ledger, launcher_of, orchestrator, after=after, seconds=seconds)
    closed, problems = [], list(found.problems)
    lost = {each.run_id: each for each in found.attempts if is_lost(each)}
    closing = Turns(list(lost), seconds=seconds)
    for run_id in closing:
        each = lost[run_id]
        try:
            attempt = close_attempt(
                tracks,
                launcher_of(each.attempt.opened.compute.launcher),
                orchestrator,
                each.run_id,
                each.attempt.attempt_id,
                names.WATCH_ATTEMPTS,
                clean=clean,
                rules=rules,
            )
        except TracksError as error:
            problems.append(f"{each.key}: {error}")
            continue
        closed.append((each.run_id, attempt))
    # What was not closed for lack of time is found lost again, first of all.
    cut_at = closing.cut_at or found.cut_at
    return Tick(closed=tuple(closed), problems=tuple(problems), cut_at=cut_at)


def settle_open_runs(
    tracks: Tracks,
    ledger: Ledger,
    *,
    sensor: str,
    policy: RetryPolicy,
    decides: bool = True,
    checkpoints: CheckpointReader | None = None,
    off: Collection[str] = (),
    after: str | None = None,
    seconds: Seconds = time.monotonic,
) -> Tick:
    """Make every decision that is due for the reasons that `sensor` owns, the oldest end first.

    The watcher also obeys stops whatever the reason, opens the first attempt of a run whose declaring
    process did not come to it, and finishes runs that have all their steps. decides: False does only
    that, where no policy is known by which a retry could be decided. off: sensors that are switched
    off, for the words. after: the run that the last tick was cut at. Several runs are settled at once.
    """
    is_watcher = sensor == names.WATCH_ATTEMPTS
    this = _Sensor(
        tracks=tracks,
        name=sensor,
        reasons=reasons_of(sensor) if decides else reasons_of(sensor) & HAS_ALL_STEPS,
        policy=policy,
        hands=None if checkpoints is None else Hands(checkpoints=checkpoints, ledger=ledger),
        holds=Holds(tracks, pools=Pools(ledger, policy.storm, now=tracks.now())),
        nodes=NodeHealth(tracks, ledger, policy.nodes),
        off=frozenset(off),
    )
    due = runs_between_attempts(ledger, None if is_watcher else reasons_of(sensor))
    turns = Turns(due, after=after, seconds=seconds)
    looked = turns.work(this.look)
    return Tick(
        decided=tuple(line for each in looked for line in each.decided),
        waiting=tuple(line for each in looked for line in each.waiting),
        problems=tuple(line for each in looked for line in each.problems),
        cut_at=turns.cut_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sensor:
    """One tick of a sensor that decides. Safe for several threads."""

    tracks: Tracks
    name: str
    reasons: frozenset[TerminationReason]
    policy: RetryPolicy
    hands: Hands | None
    holds: Holds
    nodes: NodeHealth
    off: frozenset[str]

    def look(self, run_id: str) -> Tick:
        """Decide what is due on one run; trouble with it is told and stays its own."""
        try:
            settled = self._settle(run_id)
            if settled.record is not None:
                return Tick(decided=(f"{run_id}: {settled.what}: {settled.why}",))
            if self.name == names.WATCH_ATTEMPTS:
                state = self.tracks.run(run_id)
                if not state.attempts:
                    return self._first_attempt(run_id)
                if not settled.is_ours and (whose := next_sensor(state)) in self.off:
                    return Tick(waiting=(f"{run_id}: waiting: sensor {whose} is off",))
        except TracksError as error:
            return Tick(problems=(f"{run_id}: {error}",))
        return Tick(waiting=(f"{run_id}: {settled.why}",)) if settled.is_ours else Tick()

    def _settle(self, run_id: str) -> Settled:
        return settle(
            self.tracks,
            run_id,
            reasons=self.reasons,
            decided_by=self.name,
            policy=self.policy,
            hands=self.hands,
            holds=self.holds,
            nodes=self.nodes,
        )

    def _first_attempt(self, run_id: str) -> Tick:
        record, why = open_or_tell(self.tracks, run_id, decided_by=self.name)
        if record is None:
            return Tick(waiting=(f"{run_id}: {why}",))
        what = "opened" if record.kind is Kind.ATTEMPT_OPENED else "paused"
        return Tick(decided=(f"{run_id}: {what}: {why}",))


def skip_reason(tick: Tick, *, idle: str) -> str:
    """Return what a tick did, could not do and waits for, run by run, in bounded length; else `idle`.

    A tick that could not look (the cluster is away, the store does not answer) is never called idle.
    """
    unseen = (f"could not look: {problem}" for problem in tick.problems)
    found = (*tick.decided, *unseen, *tick.waiting)
    lines = [line[:LINE_CHARACTERS_MAX] for line in found]
    more = len(lines) - LINES_MAX
    told = [*lines[:LINES_MAX], *([f"… and {more} more"] if more > 0 else [])]
    if tick.cut_at is not None:
        told.append(f"the next tick goes on after {tick.cut_at}")
    return "; ".join(told) or idle
