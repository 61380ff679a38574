"""Closes attempts that nobody supervises any more, and decides every reason no other sensor owns."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetMaterialization,
    DefaultSensorStatus,
    DeleteDynamicPartitionsRequest,
    MetadataValue,
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
from tracks_dagster.checkpoints.effects.checkpoint_reports import checkpoint_report
from tracks_dagster.clean_errors import clean_text
from tracks_dagster.defs.resources.run_processes import end_lost_runs
from tracks_dagster.defs.site import Site, asset_key
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
    take_batch,
)
from tracks_dagster.ledger.facts.checkpoint import partition_key
from tracks_dagster.reasons.endings import ending_check
from tracks_dagster.retry.effects.due import REVISIT_EVERY, revisit
from tracks_dagster.review.effects.metadata import (
    Show,
    attempt_metadata,
    ending_tags,
    final_version,
)
from tracks_dagster.review.effects.slo import LOOK_EVERY, tell_of_misses
from tracks_dagster.review.effects.watching import watching
from tracks_dagster.settings import find_board_url, places_set_up, usable_prices
from tracks_dagster.track import names
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import Prefix, attempt_key, checkpoint_key
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.end_words import end_sentence
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wiring import App, launching

Event = AssetMaterialization | AssetCheckEvaluation

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
LATE_AFTER = timedelta(minutes=5)  # of an end; until then its Dagster run may still show it
LATE_MAX = 20  # attempts in one tick: Dagster's storage takes 10 to 40 events a second
LATE_EVENTS_MAX = 50  # of one of them; the others at the next look
GROWN_MAX = 50  # checkpoints in one tick, of attempts that train
_ENDED = (
    "select run_id, attempt_id, termination_reason from training_attempts where ended_at < :before"
)
_COMMITS = "select run_id, attempt_id, step from checkpoints"


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
    shown = _shown(context, app, ticks[CLOSE].done)
    late = [event for events in ticks[LATE].done for event in events]
    late += _grown(context, app, left)
    return SensorResult(
        skip_reason=app.redact("; ".join([*unusable, words])),
        dynamic_partitions_requests=[
            *shown.partitions,
            *_registered(app.settings.prefix, late),
            *ticks[PRUNE].done,
        ],
        asset_events=[*shown.events, *late],
    )


def _parts(
    context: SensorEvaluationContext, app: App, world: World, left: LeftGangs
) -> tuple[TickPart, ...]:
    """The parts of a tick, in their order."""

    def close(after: str | None) -> Tick[tuple[str, AttemptState]]:
        return close_lost(world, TimeSlice(after=after, seconds_max=CLOSE_S_MAX), left)

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
            work=lambda after: _late(context, app, after),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What Dagster is told of attempts that were closed: the partitions first, then their events."""

    partitions: Sequence[AddDynamicPartitionsRequest]
    events: Sequence[Event]


def _shown(
    context: SensorEvaluationContext, app: App, closed: Sequence[tuple[str, AttemptState]]
) -> _Shown:
    events: list[Event] = []
    prefix = app.settings.prefix
    has = context.instance.has_dynamic_partition

    def lacks(asset: str, key: str) -> bool:
        return asset != names.CHECKPOINT_PARTITIONS or not has(prefix.name(asset), key)

    for run_id, attempt in closed:
        try:
            _tag_runs(context, attempt)
            own = list(_events(app, app.tracks.run(run_id), attempt, lacks))
            events += [*own, *_check(prefix, names.ATTEMPT_PARTITIONS, run_id, attempt)]
        except Exception as error:  # noqa: BLE001 - of that run alone; an hour later it is tried again
            why = problem_of(error)
            context.log.warning(app.redact(f"{run_id}: its end is not shown yet: {why}"))
    return _Shown(partitions=_registered(prefix, events), events=events)


def _registered(prefix: Prefix, events: Sequence[Event]) -> list[AddDynamicPartitionsRequest]:
    """Return the request for the partitions that events of checkpoints need."""
    checkpoints = asset_key(prefix, names.CHECKPOINT_PARTITIONS)
    made = (each for each in events if each.asset_key == checkpoints)
    keys = [each.partition for each in made if each.partition is not None]
    return [AddDynamicPartitionsRequest(prefix.name(names.CHECKPOINT_PARTITIONS), keys)]


def _grown(context: SensorEvaluationContext, app: App, left: LeftGangs) -> list[Event]:
    """Return what Dagster lacks of checkpoints of attempts whose Dagster run let go: GROWN_MAX a tick.

    Trouble with one of them is logged, and the next tick tries again.
    """
    prefix, events = app.settings.prefix, list[Event]()
    partitions = prefix.name(names.CHECKPOINT_PARTITIONS)
    for key, watch in left.watches.items():
        try:
            state = app.tracks.run(watch.ref.run_id)
            if state.head.seq == left.shown_seq.get(key):
                continue
            known = frozenset(context.instance.get_dynamic_partitions(partitions))
            made = _commits(prefix, state, watch.ref.attempt_id, partial(_is_not_among, known))
            events += islice(made, GROWN_MAX - len(events))
        except Exception as error:  # noqa: BLE001 - of that run alone
            context.log.warning(app.redact(f"{key} is not shown yet: {problem_of(error)}"))
            continue
        if len(events) == GROWN_MAX:
            break
        left.shown_seq[key] = state.head.seq
    return events


def _is_not_among(known: frozenset[str], key: str) -> bool:
    return key not in known


def _commits(
    prefix: Prefix, state: RunState, attempt_id: int, lacks: Callable[[str], bool]
) -> Iterator[Event]:
    """Yield the checkpoints of an attempt that Dagster lacks."""
    checkpoints = asset_key(prefix, names.CHECKPOINT_PARTITIONS)
    for commit in state.checkpoints:
        if commit.ref.attempt_id == attempt_id and lacks(partition_key(commit.ref)):
            yield AssetMaterialization(
                asset_key=checkpoints, **checkpoint_report(state, commit).event
            )


def _events(
    app: App, state: RunState, attempt: AttemptState, lacks: Callable[[str, str], bool]
) -> Iterator[Event]:
    """Yield what Dagster shows of an attempt that ended, and nobody has shown: its Dagster run died.

    lacks: whether Dagster has no such partition of that asset.
    """
    key, prefix = attempt_key(state.run_id, attempt.attempt_id), app.settings.prefix
    yield from _commits(
        prefix, state, attempt.attempt_id, partial(lacks, names.CHECKPOINT_PARTITIONS)
    )
    is_made = attempt.reason in HAS_ALL_STEPS and lacks(names.ATTEMPT_PARTITIONS, key)
    is_receipt_due = lacks(names.RECEIPTS, key)
    if not is_made and not is_receipt_due:
        return
    show = Show.by(MetadataValue, app.settings.ui_url, find_board_url(app.settings))
    metadata = attempt_metadata(
        app.tracks, state.run_id, attempt.attempt_id, show, cache=app.settings.cache
    )
    if is_receipt_due:
        yield AssetMaterialization(
            asset_key=asset_key(prefix, names.RECEIPTS),
            partition=key,
            metadata=metadata,
            tags=prefix.receipt_tags,
        )
        yield from _check(prefix, names.RECEIPTS, state.run_id, attempt)
    if is_made:
        version = final_version(state, attempt.attempt_id)
        yield AssetMaterialization(
            asset_key=asset_key(prefix, names.ATTEMPT_PARTITIONS),
            partition=key,
            metadata=metadata,
            tags={} if version is None else {names.TAG_DATA_VERSION: version},
        )


def _check(
    prefix: Prefix, asset: str, run_id: str, attempt: AttemptState
) -> Iterator[AssetCheckEvaluation]:
    """Tell a failure from an interruption, as a Dagster run that sees the end does.

    Once only: Dagster's storage refuses a second evaluation of a partition outside of its runs.
    """
    if attempt.reason is not None:
        check = ending_check(attempt.reason, end_sentence(attempt))
        yield AssetCheckEvaluation(
            asset_key=asset_key(prefix, asset),
            check_name=names.ENDED_AS_MEANT,
            partition=attempt_key(run_id, attempt.attempt_id),
            passed=check.passed,
            severity=AssetCheckSeverity.ERROR if check.is_failure else AssetCheckSeverity.WARN,
            description=check.words,
            metadata={},
        )


def _late(context: SensorEvaluationContext, app: App, after: str | None) -> Tick[Sequence[Event]]:
    """Show what Dagster lacks of attempts that ended: their Dagster run died, was of a version that
    showed less, or its storage took nothing then."""
    prefix = app.settings.prefix
    shown = {
        asset: context.instance.get_materialized_partitions(asset_key(prefix, asset))
        for asset in (names.CHECKPOINT_PARTITIONS, names.ATTEMPT_PARTITIONS, names.RECEIPTS)
    }
    rows = app.ledger.query(_ENDED, {"before": format_time(app.now() - LATE_AFTER)})
    ended = {attempt_key(row["run_id"], row["attempt_id"]): row for row in rows}
    due = {key for key in ended if key not in shown[names.RECEIPTS]}
    due |= {
        key
        for key, row in ended.items()
        if row["termination_reason"] in HAS_ALL_STEPS and key not in shown[names.ATTEMPT_PARTITIONS]
    }
    due |= {
        attempt_key(row["run_id"], row["attempt_id"])
        for row in app.ledger.query(_COMMITS)
        if checkpoint_key(**row) not in shown[names.CHECKPOINT_PARTITIONS]
    }
    keys = context.instance.get_dynamic_partitions(prefix.name(names.ATTEMPT_PARTITIONS))
    late = [key for key in keys if key in ended and key in due]

    def lacks(asset: str, key: str) -> bool:
        return key not in shown[asset]

    def look(key: str) -> Tick[Sequence[Event]]:
        state = app.tracks.run(ended[key]["run_id"])
        attempt = state.attempt(ended[key]["attempt_id"])
        if attempt is None or attempt.is_open:
            return Tick()
        return Tick(done=(tuple(islice(_events(app, state, attempt, lacks), LATE_EVENTS_MAX)),))

    found = take_batch(late, look, after=after, count_max=LATE_MAX)
    is_cut = any(len(events) == LATE_EVENTS_MAX for events in found.done)
    return replace(found, is_done=found.is_done and not is_cut)


def _tag_runs(context: SensorEvaluationContext, attempt: AttemptState) -> None:
    """Let the list of runs find the dead Dagster run by how its attempt ended."""
    if attempt.reason is None or not attempt.claims:
        return
    dagster_run_id = attempt.claims[-1].body.dagster_run_id
    try:
        if context.instance.has_run(dagster_run_id):
            context.instance.add_run_tags(dagster_run_id, ending_tags(attempt.reason))
    except Exception as error:  # noqa: BLE001  # a locked database: the end itself is still shown
        context.log.warning(clean_text(f"{dagster_run_id} is not tagged: {error}"))


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
