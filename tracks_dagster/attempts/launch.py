"""Which attempts need a supervisor: the plan of the one sensor that requests training runs.

Pure. An attempt is supervised while a Dagster run of it lives, whether it has claimed the attempt
already or is on its way to. A run key is never given to two runs that Dagster has: its number is above
those of all that are left, and above the count of claims in the track, which never shrinks.
After one that died for nothing the next is asked for later, each time twice as late: what keeps runs
from starting (a machine that is overloaded) is not to be made worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.attempts.ports import GangPhase, GangReport, OrchestratorRun
from tracks_dagster.track.names import LOCAL, AttemptRef
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.run_state import AttemptState

# Dagster runs of one attempt that died before they started its gang: then something is wrong that
# another one will not cure (code that does not load, a full disk), and a person has to look.
FRUITLESS_RUNS_MAX = 20
BACKOFF_S = 10.0  # after the first of them, twice as long after each further one
BACKOFF_S_MAX = 300.0
JUST_PLACED = timedelta(minutes=1)  # longer than launchers keep an answer about a gang
ID_CHARACTERS = 8  # of a Dagster run's id, in words, as Dagster's UI shows it
# Of one tick: Dagster registers a few hundred partitions at a time; the rest follow.
REQUESTS_MAX = 200
NEVER_STARTS = "can never start here"  # in what a launch waits for, where no turn comes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAttempt:
    """An open attempt, every Dagster run it has had, and what is known of its gang here.

    runs: newest first. workload_class: as the run declares it. parent, root: the Dagster runs that
    supervised last and first in this training run, of those that Dagster still has; None where there is
    none, and while the attempt is supervised. is_stopped: whether somebody asked for its end.
    """

    run_id: str
    attempt: AttemptState
    runs: Sequence[OrchestratorRun]
    gang: GangReport
    workload_class: str | None = None
    parent: str | None = None
    root: str | None = None
    is_stopped: bool = False

    @property
    def ref(self) -> AttemptRef:
        """Which attempt it is."""
        return AttemptRef(self.run_id, self.attempt.attempt_id)

    @property
    def key(self) -> str:
        """The attempt's partition key."""
        return self.ref.key


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One Dagster run to request; the same request twice is one run, by its run key.

    workload_class, parent, root: as of `OpenAttempt`; Dagster shows what names a root in its group.
    """

    attempt_key: str
    run_key: str
    run_id: str
    workload_class: str | None = None
    parent: str | None = None
    root: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLaunch:
    """Dagster runs that were requested and have led to nothing yet.

    key: an attempt's, or one attempt's at an eval.

    failed_count: how many died for nothing; why: what the newest of them, or the one that is on its
    way, met. asked_at: of the one that is on its way. run_key: of one that was asked for and that
    Dagster does not list yet. next_at: when another is asked for; with neither that waits for a person.
    waits: none is asked for yet, and `why` says what it waits for.
    """

    key: str
    failed_count: int
    why: str
    asked_at: str | None = None
    next_at: str | None = None
    waits: bool = False
    run_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """What to request, what is given up on, in words, and what was requested and did not come yet."""

    requests: tuple[LaunchRequest, ...]
    given_up: tuple[str, ...]
    pending: tuple[PendingLaunch, ...] = ()


def plan_launches(
    open_attempts: Sequence[OpenAttempt],
    now: datetime,
    *,
    may_start: Callable[[str], bool] = lambda key: True,
    before: Sequence[PendingLaunch] = (),
) -> LaunchPlan:
    """Return a request for each attempt that nobody supervises and that has not ended.

    At most REQUESTS_MAX, the attempts opened first; those asked for are supervised by the next tick.
    may_start: whether what wants devices of this machine has them. before: what was pending at the tick
    before: a launch that is asked for again and again was asked for then.
    """
    needy = [each for each in open_attempts if needs_supervisor(each)]
    given_up = [each for each in needy if len(fruitless(each)) >= FRUITLESS_RUNS_MAX]
    due = [each for each in needy if may_be_asked(fruitless(each), now) and may_start(each.key)]
    requests = tuple(_request(each) for each in due)[:REQUESTS_MAX]
    asked = {each.attempt_key: each.run_key for each in requests}
    pending = [
        pending_request(each.key, asked[each.key], fruitless(each), now, before)
        if each.key in asked
        else _pending(each)
        for each in open_attempts
    ]
    return LaunchPlan(
        requests=requests,
        given_up=tuple(
            f"{each.key}: {FRUITLESS_RUNS_MAX} Dagster runs died before its gang ran; see why, "
            "then delete them in Dagster to have it requested again"
            for each in given_up
        ),
        pending=tuple(launch for launch in pending if launch is not None),
    )


def wants_devices(each: OpenAttempt, now: datetime) -> bool:
    """Whether a gang of it is to be started on this machine now; one that lives has its devices."""
    is_here = each.attempt.opened.compute.launcher == LOCAL
    is_new = each.gang.phase is GangPhase.NEVER_STARTED and needs_supervisor(each)
    return is_here and is_new and may_be_asked(fruitless(each), now)


def may_be_asked(died: Sequence[OrchestratorRun], now: datetime) -> bool:
    """Whether a Dagster run may be asked for now, after these died for nothing; newest first."""
    if len(died) >= FRUITLESS_RUNS_MAX:
        return False
    at = _next_at(died)
    return at is None or now >= at


def pending_launch(
    key: str, living: OrchestratorRun | None, died: Sequence[OrchestratorRun]
) -> PendingLaunch | None:
    """Return the launches of `key` that have led to nothing yet; None without any.

    living: the run that is on its way; died: those that died for nothing, newest first.
    """
    newest = died[0] if died else living
    if newest is None:
        return None
    next_at = _next_at(died) if living is None and len(died) < FRUITLESS_RUNS_MAX else None
    asked_at = living.asked_at if living is not None else None
    elsewhere = f"see Dagster run {newest.dagster_run_id[:ID_CHARACTERS]}" if died else ""
    return PendingLaunch(
        key=key,
        failed_count=len(died),
        why=newest.problem or elsewhere,
        asked_at=None if asked_at is None else format_time(asked_at),
        next_at=None if next_at is None else format_time(next_at),
    )


def pending_request(
    key: str,
    run_key: str,
    died: Sequence[OrchestratorRun],
    now: datetime,
    before: Sequence[PendingLaunch],
) -> PendingLaunch:
    """Return the launch that is asked for now with that run key, since the first tick that did."""
    since = {each.run_key: each.asked_at for each in before if each.key == key}
    found = pending_launch(key, None, died)
    return PendingLaunch(
        key=key,
        failed_count=len(died),
        why=found.why if found is not None else "Dagster has made no run of it yet",
        asked_at=since.get(run_key) or format_time(now),
        run_key=run_key,
    )


def next_number(key: str, runs: Sequence[OrchestratorRun], *, at_least: int = 0) -> int:
    """Return N of the next run key `KEY/N`, above that of each of `runs`; `KEY` alone counts as 0.

    at_least: a count that never shrinks; Dagster's runs may be deleted.
    """
    found = [run.run_key.partition(key) for run in runs if run.run_key is not None]
    numbers = [
        rest.removeprefix("/") or "0" for before, there, rest in found if there and not before
    ]
    return max([at_least, *(int(number) + 1 for number in numbers if number.isdecimal())])


def _next_at(died: Sequence[OrchestratorRun]) -> datetime | None:
    """Return until when the next run is put off; None where nothing puts it off."""
    if not died or died[0].ended_at is None:
        return None
    wait_s = min(BACKOFF_S * 2 ** (len(died) - 1), BACKOFF_S_MAX)
    return died[0].ended_at + timedelta(seconds=wait_s)


def _pending(each: OpenAttempt) -> PendingLaunch | None:
    """Return the attempt's launches in vain, or what its gang waits for in its place's own queue; None
    once it has begun."""
    if each.gang.waits:
        return PendingLaunch(key=each.key, failed_count=0, why=each.gang.waits, waits=True)
    claimed = {claim.body.dagster_run_id for claim in each.attempt.claims}
    living = [run for run in each.runs if not run.is_finished]
    if each.gang.phase is GangPhase.GONE or any(run.dagster_run_id in claimed for run in living):
        return None
    return pending_launch(each.key, living[0] if living else None, fruitless(each))


def is_supervised(each: OpenAttempt) -> bool:
    """Whether a Dagster run of the attempt lives, one that claimed it or is on its way to."""
    return any(not run.is_finished for run in each.runs)


def stopped_before_start(each: OpenAttempt) -> bool:
    """Whether its end was asked for before anybody supervised it: there is nothing to start."""
    is_new = each.gang.phase is GangPhase.NEVER_STARTED and each.attempt.placed is None
    return each.is_stopped and is_new and not each.attempt.claims


def cancelled_alone(each: OpenAttempt) -> str | None:
    """Return the newest Dagster run of the attempt if its cancellation would be the attempt's end.

    That is one that is over, or was asked to be and claimed nothing, while no other one is at the
    attempt. One that supervises records what it is asked for by itself.
    """
    newest, *others = each.runs or (None,)
    if newest is None or each.is_stopped or any(not run.is_finished for run in others):
        return None
    claimed = {claim.body.dagster_run_id for claim in each.attempt.claims}
    is_over = newest.is_finished or newest.dagster_run_id not in claimed
    return newest.dagster_run_id if is_over and (newest.is_canceling or newest.is_failed) else None


def needs_supervisor(each: OpenAttempt) -> bool:
    """Whether to ask for one: only where a gang lives or none was ever placed.

    A gang that is gone, or that was placed and does not live here, is the watcher's to close.
    """
    if is_supervised(each) or each.gang.phase is GangPhase.GONE or stopped_before_start(each):
        return False
    if is_left_to_sensor(each):
        return False
    return each.gang.phase is GangPhase.ALIVE or each.attempt.placed is None


def is_lost(each: OpenAttempt, now: datetime) -> bool:
    """Whether the watcher has to close the attempt, because nobody else will.

    A gang that was placed on another node and never started here is not known to be gone; nor is one
    that was placed just now: that it never started may be an answer from before.
    """
    if is_supervised(each) or each.gang.phase is GangPhase.ALIVE:
        return False
    if each.gang.phase is GangPhase.GONE or stopped_before_start(each):
        return True
    placed, placed_at = each.attempt.placed, each.attempt.placed_at
    if placed_at is not None and now - placed_at < JUST_PLACED:
        return False
    if placed is not None and each.gang.sees_all_nodes:
        return True
    return placed is not None and all(node == each.gang.where for node in nodes_of(placed))


def is_left_to_sensor(each: OpenAttempt) -> bool:
    """Whether a gang lives whose Dagster run has let go of it: the watcher looks at it at each tick."""
    has_let_go = bool(each.attempt.claims) and each.attempt.claims[-1].body.lets_go
    return has_let_go and each.gang.phase is GangPhase.ALIVE and not is_supervised(each)


def is_left_to_drain(each: OpenAttempt) -> bool:
    """Whether a gang that is to end lives, and nobody is there to see to its end."""
    return each.is_stopped and each.gang.phase is GangPhase.ALIVE and not is_supervised(each)


def fruitless(each: OpenAttempt) -> list[OrchestratorRun]:
    """Return the Dagster runs of the attempt that died and left no gang behind, newest first.

    Where a gang lives, only those that never claimed the attempt: the others watched it. None of those
    that came too late for their devices: nothing is wrong there.
    """
    claimed = {claim.body.dagster_run_id for claim in each.attempt.claims}
    if each.gang.phase is GangPhase.NEVER_STARTED:
        claimed = set()
    return [
        run
        for run in each.runs
        if run.is_finished and not run.had_no_devices and run.dagster_run_id not in claimed
    ]


def _request(each: OpenAttempt) -> LaunchRequest:
    return LaunchRequest(
        attempt_key=each.key,
        run_key=f"{each.key}/{next_number(each.key, each.runs, at_least=len(each.attempt.claims))}",
        run_id=each.run_id,
        workload_class=each.workload_class,
        parent=each.parent,
        root=each.root,
    )
