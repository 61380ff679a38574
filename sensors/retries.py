"""The sensors that decide what follows on a failure: one for each kind, each with its own switch."""

from sensors.deciders import decider_sensor
from tracks_dagster.attempts.effects.opening.retry import Retries
from tracks_dagster.track import names

retry_preempted = decider_sensor(
    Retries.of(names.RETRY_PREEMPTED),
    idle="no preempted run waits for a decision",
    description=(
        "Opens the next attempt of a run that was preempted, or whose node was drained: same "
        "config, from the newest committed checkpoint. Off: such runs wait."
    ),
)
retry_oom = decider_sensor(
    Retries.of(names.RETRY_OOM),
    idle="no run that is out of memory waits for a decision",
    description=(
        "Opens the next attempt of a run that ran out of memory, each time with another change: "
        "first half the micro-batch and twice the accumulation. Off: such runs wait."
    ),
)
retry_numerics = decider_sensor(
    Retries.of(names.RETRY_NUMERICS),
    idle="no run with wrong numbers or bad data waits for a decision",
    description=(
        "Rolls back a run whose loss became NaN or diverged, quarantines a snapshot with bad rows "
        "after one confirmation, and moves a run away from a node that computes wrong. Off: such "
        "runs wait."
    ),
)
retry_infrastructure = decider_sensor(
    Retries.of(names.RETRY_INFRASTRUCTURE),
    idle="no run that its machines failed waits for a decision",
    description=(
        "Opens the next attempt of a run that lost a node, a device, the network, storage or its "
        "place in the queue, or that hung, within the budget for each. Off: such runs wait."
    ),
)
