"""Decides what follows when a device or the host ran out of memory, within the budget for it."""

from dagster import (
    DefaultSensorStatus,
    ResourceParam,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from tracks_dagster.core import names
from tracks_dagster.services.watch import settle_open_runs
from tracks_dagster.wiring import App


@sensor(
    name=names.RETRY_OOM,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description=(
        "Opens the next attempt of a run that ran out of memory, each time with another change: first "
        "half the micro-batch and twice the accumulation. Off: such runs wait."
    ),
)
def retry_oom(context: SensorEvaluationContext, app: ResourceParam[App]) -> SkipReason:
    """Write the decisions that are due; `launch_attempts` requests the runs that follow."""
    tick = settle_open_runs(app.tracks, app.ledger, sensor=names.RETRY_OOM, policy=app.policy)
    for problem in tick.problems:
        context.log.warning(problem)
    return SkipReason(
        "; ".join(tick.decided) or "no run that is out of memory waits for a decision"
    )
