"""The sensor of a follower: its switch, and its tick."""

from collections.abc import Callable

from dagster import (
    DefaultSensorStatus,
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.ledger.deciding import Follower
from tracks_dagster.ledger.effects.following import follow_all
from tracks_dagster.ledger.effects.ticks import (
    AT_ONCE_MAX,
    TickPart,
    TimeSlice,
    run_parts,
    skip_reason,
)
from tracks_dagster.wiring import App


def follower_sensor(
    name: str, follower_of: Callable[[App], Follower], *, description: str
) -> SensorDefinition:
    """Return the sensor that hands a follower what is new of every track.

    follower_of: makes it for a tick; its name is `name`. While the sensor is off its cursors stay, and
    nothing is left out.
    """

    @sensor(
        name=name,
        minimum_interval_seconds=5,
        default_status=DefaultSensorStatus.RUNNING,
        description=description,
    )
    @without_secrets
    def follow(context: SensorEvaluationContext, app: ResourceParam[App]) -> SkipReason:
        follower = follower_of(app)
        part = TickPart(
            name="follow",
            work=lambda after: follow_all(
                app, app.cursors, follower, TimeSlice(after=after, at_once=AT_ONCE_MAX)
            ),
        )
        ticks, cursor = run_parts((part,), context.cursor, app.now())
        tick = ticks[part.name]
        for problem in tick.problems:
            context.log.warning(app.redact(problem))
        context.update_cursor(cursor)
        count = sum(tick.done)
        return SkipReason(app.redact(skip_reason(tick, idle=f"{count} records were new")))

    return follow
