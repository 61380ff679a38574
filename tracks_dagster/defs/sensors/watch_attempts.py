"""Closes attempts that nobody supervises any more, and decides every reason no other sensor owns."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from dagster import (
    DefaultSensorStatus,
    DeleteDynamicPartitionsRequest,
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType

from tracks_dagster.attempts.effects.caps import Caps
from tracks_dagster.attempts.effects.gang_watch import LeftGangs
from tracks_dagster.attempts.effects.heartbeat import write_heartbeat
from tracks_dagster.attempts.effects.idle import SEE_EVERY, see
from tracks_dagster.attempts.effects.pool_returns import PoolReturns
from tracks_dagster.attempts.effects.retry import Retries
from tracks_dagster.attempts.effects.runs import FirstAttempts
from tracks_dagster.attempts.effects.stage_verdicts import JudgeStages
from tracks_dagster.attempts.effects.watch import (
    CLOSE_S_MAX,
    LEAVE_MAX,
    PRUNE_EVERY,
    close_lost,
    finished_runs,
    leaving,
    run_of,
)
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.defs.resources.run_processes import end_lost_runs
from tracks_dagster.defs.sensors.shown_attempts import (
    partitions_for,
    show_closed,
    show_grown,
    show_late,
)
from tracks_dagster.defs.site import Site
from tracks_dagster.home.stored_projects import sync_projects
from tracks_dagster.ledger.effects.deciding import Settled, decide_due
from tracks_dagster.ledger.effects.projector import SCAN_EVERY
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    Tick,
    TickPart,
    TimeSlice,
    run_parts,
    skip_reason,
)
from tracks_dagster.retry.effects.due import REVISIT_EVERY, revisit
from tracks_dagster.review.effects.slo import LOOK_EVERY, tell_of_misses
from tracks_dagster.review.effects.watching import watching
from tracks_dagster.settings import places_set_up, usable_prices
from tracks_dagster.track import names
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import Prefix
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wiring import App, launching

DECIDERS = (Retries.of(names.WATCH_ATTEMPTS), FirstAttempts(), Caps(), PoolReturns(), JudgeStages())
CLOSE, DECIDE, REVISIT, SCAN, SWEEP, PRUNE = "close", "decide", "revisit", "scan", "sweep", "prune"
DEVICES = "devices"
PROJECTS = "projects"
LOST_RUNS = "lost_runs"
LOST_RUNS_EVERY = timedelta(seconds=30)
TICKED_S_MAX = 300.0  # since the last tick of another location's sensor that counts as running
SYNC_EVERY = timedelta(seconds=30)
OBJECTIVES = "objectives"
SWEEP_EVERY = timedelta(minutes=1)
LATE = "late"
LATE_EVERY = timedelta(hours=1)


def watch_attempts(site: Site) -> SensorDefinition:
    """Return the sensor."""
    left = LeftGangs()  # as this process has seen them

    def watch(
        context: SensorEvaluationContext,
        app: ResourceParam[App],
        orchestrator: ResourceParam[Orchestrator],
    ) -> SensorResult:
        return _watch_attempts(context, app, orchestrator, left)

    return sensor(
        name=site.name(names.WATCH_ATTEMPTS),
        minimum_interval_seconds=site.every_s(),
        default_status=site.sensor_status,
        description=(
            "Closes an attempt whose gang is gone when no Dagster run supervises it, decides what "
            "follows on every reason that has no sensor of its own, and finishes runs. Where Dagster "
            "limits how many runs it starts, the Dagster run of an attempt ends once training has "
            "begun, and this sensor watches it to its end. Off: lost attempts stay open, nobody "
            "watches those, and completed runs are not finished."
        ),
    )(site.body(watch))


def _watch_attempts(
    context: SensorEvaluationContext, app: App, orchestrator: Orchestrator, left: LeftGangs
) -> SensorResult:
    """Do the parts of one tick that are due, and show in Dagster what was closed."""
    states = context.instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    switches = _switches(context, states, app.settings.prefix)
    write_heartbeat(app.store, app.now(), switches)
    (rules, no_rules), (policy, no_policy) = app.usable_rules(), app.usable_policy()
    _, no_prices = usable_prices(app.settings)
    world = replace(
        app.world(policy, orchestrator),
        rules=rules,
        decides_retries=no_policy is None,
        off=frozenset(name for name, is_on in switches.items() if not is_on),
    )
    ticks, cursor = run_parts(_parts(context, app, world, left), context.cursor, app.now())
    context.update_cursor(cursor)
    # Without prices no cap in money is met.
    problems = (no_policy, no_rules, no_prices, find_namesake(context, states))
    unusable = [problem for problem in problems if problem is not None]
    for problem in unusable:
        context.log.error(app.redact(problem))
    for tick in ticks.values():
        for problem in tick.problems:
            context.log.warning(app.redact(problem))
    unseen = [line for part in (DECIDE, CLOSE, SWEEP) for line in ticks[part].problems]
    words = skip_reason(replace(ticks[DECIDE], problems=tuple(unseen)), idle="nothing is due")
    shown = show_closed(context, app, ticks[CLOSE].done, left)
    late = [event for events in ticks[LATE].done for event in events]
    late += show_grown(context, app, left)
    return SensorResult(
        skip_reason=app.redact("; ".join([*unusable, words])),
        dynamic_partitions_requests=[
            *shown.partitions,
            *partitions_for(app.settings.prefix, late),
            *ticks[PRUNE].done,
        ],
        asset_events=[*shown.events, *late],
    )


def _parts(
    context: SensorEvaluationContext, app: App, world: World, left: LeftGangs
) -> tuple[TickPart, ...]:
    """The parts of a tick, in their order."""

    def close(after: str | None) -> Tick[tuple[str, AttemptState]]:
        time_slice = TimeSlice(after=after, seconds_max=CLOSE_S_MAX, at_once=AT_ONCE_MAX)
        return close_lost(world, time_slice, left)

    def decide(after: str | None) -> Tick[Settled]:
        return decide_due(world, DECIDERS, TimeSlice(after=after, at_once=AT_ONCE_MAX))

    def tell(after: str | None) -> Tick[str]:
        return tell_of_misses(app.tracks, app.ledger, world.policy.scheduling, now=app.now())

    return (
        TickPart(name=CLOSE, work=close),
        TickPart(name=DECIDE, work=decide),
        TickPart(
            name=REVISIT,
            work=lambda after: revisit(app.tracks, app.ledger, after=after),
            every=REVISIT_EVERY,
        ),
        TickPart(name=SCAN, work=app.projector.scan_part, every=SCAN_EVERY),
        TickPart(name=OBJECTIVES, work=tell, every=LOOK_EVERY),
        TickPart(name=SWEEP, work=lambda after: _sweep(app), every=SWEEP_EVERY),
        TickPart(name=PRUNE, work=lambda after: _prune(context, app), every=PRUNE_EVERY),
        TickPart(name=PROJECTS, work=lambda after: _sync(app), every=SYNC_EVERY),
        TickPart(
            name=LOST_RUNS, work=lambda after: _end_lost_runs(context, app), every=LOST_RUNS_EVERY
        ),
        TickPart(name=DEVICES, work=lambda after: _see(app), every=SEE_EVERY),
        TickPart(
            name=LATE,
            work=lambda after: show_late(context, app, after),
            every=LATE_EVERY,
        ),
    )


def _sweep(app: App) -> Tick[None]:
    """End what outlived its attempt in the places of wings that are set up."""
    swept: Tick[None] = Tick(is_done=False)
    for name in places_set_up(app.settings):
        try:
            tick = launching(name).upkeep(app)
        except Exception as error:  # noqa: BLE001 - of that place alone
            tick = Tick(problems=(f"{name}: not swept: {problem_of(error)}",))
        problems = (*swept.problems, *tick.problems)
        swept = Tick(problems=problems, is_done=swept.is_done or tick.is_done)
    return swept


def _sync(app: App) -> Tick[None]:
    """Bring what others stored of projects into this home, whose files a reload of Dagster reads."""
    return Tick(problems=tuple(sync_projects(app.tracks, app.settings.home)))


def _end_lost_runs(context: SensorEvaluationContext, app: App) -> Tick[None]:
    """End Dagster's own runs of our jobs that nothing runs any more."""
    jobs = map(app.settings.prefix.name, names.JOBS)
    return Tick(problems=tuple(end_lost_runs(context.instance, jobs, app.now())))


def _see(app: App) -> Tick[None]:
    """See which of this machine's devices nobody holds, and since when."""
    found = app.look_at_devices()
    if found.problem is not None:
        return Tick(problems=(f"devices not seen: {found.problem}",))
    try:
        leased = app.devices.leased() if app.devices is not None else frozenset[str]()
    except TracksError as error:
        return Tick(problems=(f"devices not seen: {error}",))
    now = app.now()
    day = see(app.store, found, leased, node=platform.node(), now=now)
    if day is None or app.devices is None:
        return Tick()
    return watching().watch_machine(app.devices.tracks, app.devices.here.pool, day, now)


def _prune(context: SensorEvaluationContext, app: App) -> Tick[DeleteDynamicPartitionsRequest]:
    """Let the partitions of runs that finished long ago leave the UI, LEAVE_MAX a tick."""
    requests, room = [], LEAVE_MAX
    sets = (names.ATTEMPT_PARTITIONS, names.CHECKPOINT_PARTITIONS, names.EVAL_PARTITIONS)
    for name in map(app.settings.prefix.name, sets):
        keys = context.instance.get_dynamic_partitions(name)
        finished = finished_runs(app.ledger, sorted(set(map(run_of, keys))))
        left = leaving(keys, finished, app.now(), keep_days=app.settings.ui_days)[:room]
        room -= len(left)
        if left:
            context.log.info(f"{len(left)} {name} of finished runs leave the UI, {left[0]} first.")
            requests.append(DeleteDynamicPartitionsRequest(name, left))
    return Tick(done=tuple(requests), is_done=room > 0)


def find_namesake(
    context: SensorEvaluationContext, states: Sequence[InstigatorState]
) -> str | None:
    """Return that another code location of this deployment has a sensor of this name that ticks.

    Dagster knows assets, partitions and runs by name in all locations, so both sets would take each
    other's for their own. That cannot be refused at load, where a location sees itself alone.
    """
    origin = context.code_location_origin
    if origin is None:
        return None
    since_s = datetime.now(UTC).timestamp() - TICKED_S_MAX
    others = {
        state.repository_selector.location_name
        for state in states
        if state.name == context.sensor_name
        and state.is_running
        and state.sensor_instigator_data is not None
        and (state.sensor_instigator_data.last_tick_timestamp or 0.0) > since_s
    }
    if not (others := others - {origin.location_name}):
        return None
    return (
        f"The code locations {', '.join(sorted({origin.location_name, *others}))} have the sensor "
        f"{context.sensor_name}, so each takes the other's attempts for its own. Give one of them "
        "another prefix: build_defs(…, prefix=…)."
    )


def _switches(
    context: SensorEvaluationContext, states: Sequence[InstigatorState], prefix: Prefix
) -> Mapping[str, bool]:
    """Return which of our sensors are on, by their names without the prefix; one that nobody ever
    switched is as it was defined."""
    repository = context.repository_def
    known = [] if repository is None else repository.sensor_defs
    switched = {state.name: state.status for state in states}
    begun = {
        each.name: InstigatorStatus.RUNNING
        if each.default_status is DefaultSensorStatus.RUNNING
        else InstigatorStatus.STOPPED
        for each in known
    }
    return {
        own: switched.get(name, begin) is not InstigatorStatus.STOPPED
        for name, begin in begun.items()
        if (own := prefix.without(name)) is not None
    }
