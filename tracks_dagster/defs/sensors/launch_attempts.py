"""The only sensor that requests training runs: one for each open attempt that nobody supervises."""

from dagster import (
    AddDynamicPartitionsRequest,
    ResourceParam,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from tracks_dagster.attempts.effects.heartbeat import read_launches, write_launches
from tracks_dagster.attempts.effects.sharing import share_devices, waiting_launches
from tracks_dagster.attempts.effects.watch import obey_cancels, survey
from tracks_dagster.attempts.launch import LaunchRequest, OpenAttempt, plan_launches
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.defs.site import Site
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    Tick,
    TickPart,
    TimeSlice,
    run_parts,
    skip_reason,
)
from tracks_dagster.scheduling.effects.leases import Shared
from tracks_dagster.track import names
from tracks_dagster.track.names import parse_eval_attempt_key
from tracks_dagster.wiring import App


def launch_attempts(site: Site) -> SensorDefinition:
    """Return the sensor."""
    return sensor(
        name=site.name(names.LAUNCH_ATTEMPTS),
        job_name=site.name(names.TRAIN_ATTEMPT_JOB),
        minimum_interval_seconds=site.every_s(),
        default_status=site.sensor_status,
        description=(
            "Requests a Dagster run for every open attempt that nobody supervises; the run starts the "
            "attempt's gang, or adopts the one that lives. A gang of this machine is given its devices "
            "first. Off: attempts stay open and wait."
        ),
    )(site.body(_launch_attempts))


def _launch_attempts(
    context: SensorEvaluationContext,
    app: ResourceParam[App],
    orchestrator: ResourceParam[Orchestrator],
) -> SensorResult | SkipReason:
    """Record what persons cancelled, share out devices, and request what `plan_launches` says.

    Its run keys make a repeated tick harmless.
    """
    world = app.world(app.usable_policy()[0], orchestrator)

    def look(after: str | None) -> Tick[OpenAttempt]:
        return survey(world, TimeSlice(after=after, at_once=AT_ONCE_MAX))

    part = TickPart(name="look", work=look)
    ticks, cursor = run_parts((part,), context.cursor, app.now())
    found = ticks[part.name]
    context.update_cursor(cursor)
    obeyed = obey_cancels(world, found.done)
    shared = share_devices(world, obeyed.done, by=names.LAUNCH_ATTEMPTS) or Shared()
    before = read_launches(app.store, names.LAUNCH_ATTEMPTS)
    plan = plan_launches(obeyed.done, app.now(), may_start=shared.may_start, before=before)
    waits = [each for each in waiting_launches(shared) if not parse_eval_attempt_key(each.key)]
    write_launches(app.store, names.LAUNCH_ATTEMPTS, [*plan.pending, *waits])
    problems = (*found.problems, *obeyed.problems, *shared.problems)
    for problem in (*problems, *plan.given_up):
        context.log.warning(app.redact(problem))
    if not plan.requests:
        failed = [f"{each.key}: {each.failed_count} launches failed" for each in plan.pending]
        waiting = [f"{each.key}: {each.why}" for each in waits]
        looked: Tick[None] = Tick(waiting=(*plan.given_up, *failed, *waiting), problems=problems)
        return SkipReason(app.redact(skip_reason(looked, idle="every open attempt is supervised")))
    keys = [request.attempt_key for request in plan.requests]
    partitions = app.settings.prefix.name(names.ATTEMPT_PARTITIONS)
    return SensorResult(
        run_requests=[
            _run_request(
                app,
                request,
                lease_seq=shared.seqs.get(request.attempt_key),
                priority=world.policy.scheduling.class_of(request.workload_class).priority,
            )
            for request in plan.requests
        ],
        dynamic_partitions_requests=[AddDynamicPartitionsRequest(partitions, keys)],
    )


def _run_request(
    app: App, request: LaunchRequest, *, lease_seq: int | None, priority: int
) -> RunRequest:
    """priority: for where more have their devices than Dagster starts runs at once."""
    tags = {names.TAG_TRAINING_RUN: request.run_id, names.TAG_ATTEMPT: request.attempt_key}
    tags[names.TAG_PROJECT] = app.tracks.run(request.run_id).declared.model_family
    tags[names.TAG_PRIORITY] = str(priority)
    if lease_seq is not None:
        tags[names.TAG_LEASE] = str(lease_seq)
    if request.parent is not None and request.root is not None:
        # For the UI: the first run's page shows the group, each other one's tags lead to it. A parent
        # that is named in tags alone makes no re-execution, which would take over its outputs.
        tags |= {names.TAG_PARENT_RUN: request.parent, names.TAG_ROOT_RUN: request.root}
    return RunRequest(run_key=request.run_key, partition_key=request.attempt_key, tags=tags)
