"""Decides what follows on a preemption or a drained node, within the budget for them."""

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
    name=names.RETRY_PREEMPTED,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description=(
        "Opens the next attempt of a run that was preempted, or whose node was drained: same "
        "config, from the newest committed checkpoint. Off: such runs wait."
    ),
)
def retry_preempted(context: SensorEvaluationContext, app: ResourceParam[App]) -> SkipReason:
    """Write the decisions that are due; `launch_attempts` requests the runs that follow."""
    tick = settle_open_runs(app.tracks, app.ledger, sensor=names.RETRY_PREEMPTED, policy=app.policy)
    for problem in tick.problems:
        context.log.warning(problem)
    return SkipReason("; ".join(tick.decided) or "no preempted run waits for a decision")
