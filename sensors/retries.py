"""The sensors that decide what follows on a failure: one for each kind, each with its own switch.

They write decisions and request nothing: `launch_attempts` asks for the Dagster runs that follow.
"""

from dagster import (
    DefaultSensorStatus,
    ResourceParam,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from tracks_dagster.attempts.effects.watch import settle_open_runs, skip_reason
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.track import names
from tracks_dagster.wiring import App


def retry_sensor(name: str, *, idle: str, description: str) -> SensorDefinition:
    """Return the sensor that makes the decisions on the reasons that `retry.policy` gives to `name`.

    idle: what it says when nothing is due. A tick does everything that is due; where its time does
    not suffice, the cursor holds the run after which the next one begins.
    """

    @sensor(
        name=name,
        minimum_interval_seconds=5,
        default_status=DefaultSensorStatus.RUNNING,
        description=description,
    )
    @without_secrets
    def decide_retries(context: SensorEvaluationContext, app: ResourceParam[App]) -> SkipReason:
        tick = settle_open_runs(
            app.tracks,
            app.ledger,
            sensor=name,
            policy=app.policy,
            checkpoints=app.checkpoints,
            after=context.cursor or None,
        )
        for problem in tick.problems:
            context.log.warning(app.redact(problem))
        context.update_cursor(tick.cut_at or "")
        return SkipReason(app.redact(skip_reason(tick, idle=idle)))

    return decide_retries


retry_preempted = retry_sensor(
    names.RETRY_PREEMPTED,
    idle="no preempted run waits for a decision",
    description=(
        "Opens the next attempt of a run that was preempted, or whose node was drained: same "
        "config, from the newest committed checkpoint. Off: such runs wait."
    ),
)
retry_oom = retry_sensor(
    names.RETRY_OOM,
    idle="no run that is out of memory waits for a decision",
    description=(
        "Opens the next attempt of a run that ran out of memory, each time with another change: "
        "first half the micro-batch and twice the accumulation. Off: such runs wait."
    ),
)
retry_numerics = retry_sensor(
    names.RETRY_NUMERICS,
    idle="no run with wrong numbers or bad data waits for a decision",
    description=(
        "Rolls back a run whose loss became NaN or diverged, quarantines a snapshot with bad rows "
        "after one confirmation, and moves a run away from a node that computes wrong. Off: such "
        "runs wait."
    ),
)
retry_infrastructure = retry_sensor(
    names.RETRY_INFRASTRUCTURE,
    idle="no run that its machines failed waits for a decision",
    description=(
        "Opens the next attempt of a run that lost a node, a device, the network, storage or its "
        "place in the queue, or that hung, within the budget for each. Off: such runs wait."
    ),
)
