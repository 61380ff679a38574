"""Start training runs from Dagster: a job for people, and a weekly one for the newest data.

Both only declare the run and open its first attempt, as `tracks run` does; the sensors do the rest.
"""

from collections.abc import Collection, Mapping
from typing import Any

from dagster import (
    Config,
    DefaultScheduleStatus,
    Failure,
    OpExecutionContext,
    ResourceParam,
    RunConfig,
    RunRequest,
    ScheduleEvaluationContext,
    job,
    op,
    schedule,
)
from pydantic import Field

from tracks_dagster.attempts.effects.branches import find_origin
from tracks_dagster.attempts.effects.local.checkout import read_code_diff, read_code_version
from tracks_dagster.attempts.effects.runs import RunRequest as TrainingRunRequest
from tracks_dagster.attempts.effects.runs import declare, new_run_id
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.kubernetes.effects.preflight import gang_check
from tracks_dagster.settings import load_cluster
from tracks_dagster.track import names
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wiring import App

EVERY_MONDAY = "0 3 * * 1"  # UTC; data of the week before is in, and nobody waits for the machines


class RetentionConfig(Config):
    """Which checkpoints are kept when nobody holds them; the others go, once the newest was read."""

    keep_last: int = Field(default=3, description="The newest so many, 1 or more.")
    keep_best: int = Field(
        default=1, description="And so many of the best by the metric, 0 or more."
    )
    metric: str = Field(
        default="loss", description="What makes one the best: loss, or a name the script reports."
    )
    direction: str = Field(default="min", description="Whether the least is best, or the max.")
    milestone_every_steps: int | None = Field(
        default=None, description="And every one whose step this divides; null for none."
    )
    delete_after_s: float = Field(
        default=3600.0,
        description="Seconds from the decision that one may go until its bytes are removed.",
    )


class ClusterConfig(Config):
    """What a gang asks of a cluster; what is left out is as in the cluster's settings."""

    ranks_per_node: int = Field(default=1, description="Processes of each pod; divides ranks.")
    memory_bytes: int | None = Field(default=None, description="Memory of each pod, in bytes.")
    cpus: float | None = Field(
        default=None, description="CPUs of each pod: its share, and no limit."
    )
    queue: str | None = Field(default=None, description="Kueue's local queue.")
    priority_class: str | None = Field(default=None, description="Of the pods.")
    node_selector: dict[str, str] = Field(default={}, description="Labels that nodes must have.")
    tolerations: list[dict[str, Any]] = Field(
        default=[],
        description="Taints that pods tolerate: [{key: gpu, operator: Exists}].",
    )
    topology_key: str | None = Field(
        default=None, description="A node label of which all pods share one value."
    )


class TrainingRunConfig(Config):
    """What a training run is to be. Every field has a default; leave out what does not matter.

    For a branch, what is left out is taken over from the run that it branches from.
    """

    branch_from: str | None = Field(
        default=None,
        description=(
            "Start from a checkpoint of another run: RUN@STEP, for example my-run@40. What is left "
            "out here is as that run had it, except intent, owner and drills; the code is today's."
        ),
    )
    branch_from_attempt: int | None = Field(
        default=None,
        description="Whose checkpoint of that step. Left out: the newest attempt's that has one.",
    )
    family: str = Field(default="gpt", description="The model family: gpt or tabular.")
    intent: str = Field(
        description="What the run is for, in a sentence; it is recorded.",
    )
    run_id: str | None = Field(
        default=None,
        description="1 to 40 of a-z, 0-9 and '-'. Left out: one is made from family and day.",
    )
    config: dict[str, Any] = Field(
        default={},
        description="Overrides of the family's config, for example {steps: 40, seed: 7, lr: 0.003}.",
    )
    snapshot_id: str | None = Field(
        default=None,
        description="The data snapshot to train on. Left out: the newest that is not quarantined.",
    )
    ranks: int = Field(default=1, description="Processes, one device each.")
    device_class: str = Field(
        default="cpu",
        description="What each rank runs on: cpu, or a device class of the cluster's settings.",
    )
    launcher: str = Field(
        default=names.LOCAL, description="Where the gang runs: local or kubernetes."
    )
    cluster: ClusterConfig = Field(
        default=ClusterConfig(), description="What is asked of a cluster; for kubernetes only."
    )
    pool: str | None = Field(
        default=None, description="The compute pool that the run is counted to."
    )
    checkpoint_every_steps: int | None = Field(
        default=10, description="Save after that many steps; null for by seconds alone."
    )
    checkpoint_every_s: float | None = Field(
        default=None, description="Save after that many seconds, whichever comes first."
    )
    retention: RetentionConfig = Field(
        default=RetentionConfig(), description="Which checkpoints are kept, and for how long."
    )
    owner: str = Field(default="dagster", description="Who answers for the run.")
    team: str = Field(default="unknown", description="Whose budget it is.")
    stage: str = Field(default="smoke", description="smoke, canary or full.")
    drills: list[str] = Field(
        default=[], description="Faults to play: preempt@23, preempt@23,grace=0, gpu_oom@31."
    )


@op(description="Records the run and opens its first attempt; bad values are refused in words.")
@without_secrets
def declare_run(
    context: OpExecutionContext, config: TrainingRunConfig, app: ResourceParam[App]
) -> str:
    """Declare the run; return its id. Declaring the same id again changes nothing."""
    try:
        request = _request(app, config, given=_given(context))
        check = gang_check(lambda: load_cluster(app.settings))
        declared = declare(app.tracks, request, check_gang=check)
    except InvalidInput as error:
        raise Failure(str(error), allow_retries=False) from error
    run_id = request.run_id
    context.instance.add_run_tags(context.run.run_id, {names.TAG_TRAINING_RUN: run_id})
    snapshot = declared.snapshot
    data = f"snapshot {snapshot.snapshot_id}" if snapshot is not None else "no snapshot"
    context.log.info(
        f"Declared {run_id} on {data}. launch_attempts requests "
        f"its first attempt; `tracks status` shows its state."
    )
    return run_id


def _given(context: OpExecutionContext) -> set[str]:
    """Return the fields that were filled in, those of `retention` and `cluster` too.

    They are in the run's own config: in `TrainingRunConfig` a value may be a default.
    """
    run_config: Mapping[str, Any] = context.run_config
    filled = run_config.get("ops", {}).get(declare_run.name, {}).get("config", {})
    return {*filled, *filled.get("retention", {}), *filled.get("cluster", {})}


def _request(app: App, config: TrainingRunConfig, *, given: Collection[str]) -> TrainingRunRequest:
    """Return what the launchpad asks for; of a branch with what it takes over. Raises InvalidInput."""
    origin = None
    if config.branch_from is not None:
        origin = find_origin(
            app.tracks,
            config.branch_from,
            run_id=config.run_id,
            attempt_id=config.branch_from_attempt,
        )
    elif config.branch_from_attempt is not None:
        raise InvalidInput(
            "branch_from_attempt names whose checkpoint branch_from means; give both."
        )
    family = origin.family if origin is not None and "family" not in given else config.family
    cluster = config.cluster.model_dump()
    request = TrainingRunRequest(
        run_id=config.run_id
        or new_run_id(family, day=app.now().strftime("%Y%m%d"), new_uid=app.new_uid),
        family=family,
        intent=config.intent,
        code=read_code_version(app.settings.root),
        code_diff=read_code_diff(app.settings.root, app.redact),
        config=config.config,
        snapshot_id=config.snapshot_id,
        ranks=config.ranks,
        device_class=config.device_class,
        checkpoint_every_steps=config.checkpoint_every_steps,
        checkpoint_every_s=config.checkpoint_every_s,
        checkpoints_may_be_off=app.usable_policy()[0].checkpoints_may_be_off,
        retention=RetentionRule(**config.retention.model_dump()),
        owner=config.owner,
        team=config.team,
        stage=config.stage,
        drills=tuple(config.drills),
        launcher=config.launcher,
        pool=config.pool,
        **{**cluster, "tolerations": tuple(config.cluster.tolerations)},
    )
    return request if origin is None else origin.inherited_by(request, given=given)


@job(
    name=names.DECLARE_TRAINING_RUN_JOB,
    description=(
        "Starts a training run. Fill in the launchpad (only `intent` is needed; every field explains "
        "itself), then launch: the run is recorded, and within seconds its first attempt appears as "
        "a partition of training_attempts, started and retried by the sensors. Nothing is materialized "
        "by hand, but the snapshot that it trains on, once."
    ),
)
def declare_training_run() -> None:
    """Declare one training run."""
    declare_run()


@job(
    name=names.RETRAINING_JOB,
    description="Declares a training run on the newest snapshot that passed its checks.",
)
def retrain_on_newest_snapshot() -> None:
    """Declare one training run, as the schedule asks."""
    declare_run()


@schedule(
    name="weekly_retraining",
    job=retrain_on_newest_snapshot,
    cron_schedule=EVERY_MONDAY,
    execution_timezone="UTC",
    default_status=DefaultScheduleStatus.STOPPED,
    description=(
        "Every Monday a run of the gpt family on the newest snapshot that is not quarantined. Off "
        "until somebody who pays for the machines switches it on."
    ),
)
def weekly_retraining(context: ScheduleEvaluationContext) -> RunRequest:
    """Request the week's run; its id comes from the date, so that a repeated tick declares nothing."""
    day = context.scheduled_execution_time.strftime("%Y%m%d")
    config = TrainingRunConfig(
        run_id=f"weekly-gpt-{day}",
        intent=f"The weekly retraining of {day}, on the newest snapshot that passed.",
        owner="schedule",
        stage="full",
    )
    return RunRequest(run_key=day, run_config=RunConfig(ops={declare_run.name: config}))
