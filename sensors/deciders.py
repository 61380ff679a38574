"""The sensor of a decider: its switch, its tick, and what it says."""

from dagster import (
    DefaultSensorStatus,
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.ledger.deciding import Decider
from tracks_dagster.ledger.effects.deciding import decide_due
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    TickPart,
    TimeSlice,
    run_parts,
    skip_reason,
)
from tracks_dagster.wiring import App


def decider_sensor(decider: Decider[World], *, idle: str, description: str) -> SensorDefinition:
    """Return the sensor that lets `decider` decide on every run that is due for it.

    idle: what it says when nothing is due. It writes decisions and requests nothing: `launch_attempts`
    asks for the Dagster runs that follow. Where its time does not suffice, the next tick goes on.
    """

    @sensor(
        name=decider.name,
        minimum_interval_seconds=5,
        default_status=DefaultSensorStatus.RUNNING,
        description=description,
    )
    @without_secrets
    def decide(
        context: SensorEvaluationContext,
        app: ResourceParam[App],
        orchestrator: ResourceParam[Orchestrator],
    ) -> SkipReason:
        world = app.world(app.policy, orchestrator)
        part = TickPart(
            name="decide",
            work=lambda after: decide_due(
                world, (decider,), TimeSlice(after=after, at_once=AT_ONCE_MAX)
            ),
        )
        ticks, cursor = run_parts((part,), context.cursor, app.now())
        tick = ticks[part.name]
        for problem in tick.problems:
            context.log.warning(app.redact(problem))
        context.update_cursor(cursor)
        return SkipReason(app.redact(skip_reason(tick, idle=idle)))

    return decide
