"""The sensors of deciders: one factory, the four that decide what follows on a failure, and the one of
studies.

Each kind of failure has its own sensor, and so its own switch.
"""

from dagster import (
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from tracks_dagster.attempts.effects.retry import Retries
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.defs.site import TICK_S, Site
from tracks_dagster.ledger.deciding import Decider
from tracks_dagster.ledger.effects.deciding import OF_RUNS, OF_STUDIES, KindOfTrack, decide_due
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    TickPart,
    TimeSlice,
    run_parts,
    skip_reason,
)
from tracks_dagster.studies.effects.deciding import TuneStudies
from tracks_dagster.track import names
from tracks_dagster.wiring import App


def decider_sensor(
    site: Site,
    decider: Decider[World],
    *,
    idle: str,
    description: str,
    every_s: int = TICK_S,
    kind: KindOfTrack = OF_RUNS,
) -> SensorDefinition:
    """Return the sensor that lets `decider` decide on every run, or what `kind` is of, that is due.

    idle: what it says when nothing is due. It writes decisions and requests nothing: `launch_attempts`
    asks for the Dagster runs that follow. Where its time does not suffice, the next tick goes on.
    """

    def decide(
        context: SensorEvaluationContext,
        app: ResourceParam[App],
        orchestrator: ResourceParam[Orchestrator],
    ) -> SkipReason:
        world = app.world(app.policy, orchestrator)
        part = TickPart(
            name="decide",
            work=lambda after: decide_due(
                world, (decider,), TimeSlice(after=after, at_once=AT_ONCE_MAX), kind
            ),
        )
        ticks, cursor = run_parts((part,), context.cursor, app.now())
        tick = ticks[part.name]
        for problem in tick.problems:
            context.log.warning(app.redact(problem))
        context.update_cursor(cursor)
        return SkipReason(app.redact(skip_reason(tick, idle=idle)))

    return sensor(
        name=site.name(decider.name),
        minimum_interval_seconds=site.every_s(every_s),
        default_status=site.sensor_status,
        description=description,
    )(site.body(decide))


def decider_sensors(site: Site) -> list[SensorDefinition]:
    """Return the sensor of each decider with a switch of its own."""
    return [
        decider_sensor(
            site,
            Retries.of(names.RETRY_PREEMPTED),
            idle="no preempted run waits for a decision",
            description=(
                "Opens the next attempt of a run that was preempted, or whose node was drained: same "
                "config, from the newest committed checkpoint. Off: such runs wait."
            ),
        ),
        decider_sensor(
            site,
            Retries.of(names.RETRY_OOM),
            idle="no run that is out of memory waits for a decision",
            description=(
                "Opens the next attempt of a run that ran out of memory, each time with another "
                "change: first half the micro-batch and twice the accumulation. Off: such runs wait."
            ),
        ),
        decider_sensor(
            site,
            Retries.of(names.RETRY_NUMERICS),
            idle="no run with wrong numbers or bad data waits for a decision",
            description=(
                "Rolls back a run whose loss became NaN or diverged, quarantines a snapshot with bad "
                "rows after one confirmation, and moves a run away from a node that computes wrong. "
                "Off: such runs wait."
            ),
        ),
        decider_sensor(
            site,
            Retries.of(names.RETRY_INFRASTRUCTURE),
            idle="no run that its machines failed waits for a decision",
            description=(
                "Opens the next attempt of a run that lost a node, a device, the network, storage or "
                "its place in the queue, or that hung, within the budget for each. Off: such runs wait."
            ),
        ),
        decider_sensor(
            site,
            TuneStudies(),
            kind=OF_STUDIES,
            idle="no study waits for a trial",
            description=(
                "Judges the trials of every open study, gives steps to those that its scheduler "
                "chooses, proposes new ones and declares their runs. Off: open trials train on, and "
                "nothing begins."
            ),
        ),
    ]
