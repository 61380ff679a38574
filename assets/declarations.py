"""Start training runs from Dagster: the job that people launch, and that schedules of projects request.

It only declares the run and opens its first attempt, as `tracks run` does; the sensors do the rest.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import dagster
from dagster import (
    Config,
    Failure,
    JobDefinition,
    OpExecutionContext,
    Permissive,
    ResourceParam,
    Selector,
    job,
    op,
)
from pydantic import Field

from tracks_dagster.attempts.effects.branches import find_origin
from tracks_dagster.attempts.effects.local.checkout import read_code_diff, read_code_version
from tracks_dagster.attempts.effects.local.project_code import FoundCode, read_project_code
from tracks_dagster.attempts.effects.runs import RunRequest, declare, defaults_of, new_run_id
from tracks_dagster.clean_errors import clean_text, without_secrets
from tracks_dagster.data.effects.projects import Registered, find_registered
from tracks_dagster.data.project import Project
from tracks_dagster.kubernetes.effects.preflight import gang_check
from tracks_dagster.settings import load_cluster
from tracks_dagster.track import names
from tracks_dagster.track.bodies import RetentionRule
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.redact import redact_json
from tracks_dagster.wiring import App

DEFAULT_PROJECT = "gpt"  # where neither project nor branch_from names one
CADENCE = frozenset({"checkpoint_every_steps", "checkpoint_every_s"})
_TYPES = {bool: bool, int: int, float: float, str: str, list: list}


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
            "out here is as that run had it, except intent, owner and drills. With `project` the code "
            "is that of its folder now; without, as that run stored it, and a family's today's."
        ),
    )
    branch_from_attempt: int | None = Field(
        default=None,
        description="Whose checkpoint of that step. Left out: the newest attempt's that has one.",
    )
    intent: str = Field(
        description="What the run is for, in a sentence; it is recorded.",
    )
    run_id: str | None = Field(
        default=None,
        description="1 to 40 of a-z, 0-9 and '-'. Left out: one is made from project and day.",
    )
    config: dict[str, Any] = Field(
        default={},
        description=(
            "Overrides by key, for example {steps: 40, lr: 0.003}, where `project` is left out, as for "
            "a branch."
        ),
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


def declaring(projects: Iterable[Registered]) -> JobDefinition:
    """Return the job; these projects, with their keys, are what its launchpad offers."""

    @op(
        name=names.DECLARE_RUN,
        config_schema={**TrainingRunConfig.to_fields_dict(), "project": _project_field(projects)},
        description="Records the run and opens its first attempt; bad values are refused in words.",
    )
    @without_secrets
    def declare_run(context: OpExecutionContext, app: ResourceParam[App]) -> str:
        """Declare the run; return its id. Declaring the same id again changes nothing."""
        given = dict(context.op_config)
        chosen = given.pop("project", None)
        try:
            config = TrainingRunConfig(**given)
            request = _request(app, config, chosen, given=_given(context))
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

    @job(
        name=names.DECLARE_TRAINING_RUN_JOB,
        description=(
            "Starts a training run. Fill in the launchpad (only `intent` is needed; every field "
            "explains itself), then launch: the run is recorded, and within seconds its first attempt "
            "appears as a partition of training_attempts, started and retried by the sensors. Nothing "
            "is materialized by hand, but the snapshot that it trains on, once."
        ),
    )
    def declare_training_run() -> None:
        """Declare one training run."""
        declare_run()

    return declare_training_run


def _project_field(projects: Iterable[Registered]) -> dagster.Field:
    """Return the field that chooses one project and overrides its keys.

    No key has a default here: what nobody gave is the project's to say when the run is declared.
    """
    offered = {
        each.name: dagster.Field(
            _keys_field(each.project, is_own=each.folder is not None),
            is_required=False,
            description="Overrides of its config; {} for none.",
        )
        for each in projects
        if each.project is not None
    }
    return dagster.Field(
        Selector(offered),  # type: ignore[no-untyped-call]
        is_required=False,
        description=(
            f"The project, and overrides of its config: {{{DEFAULT_PROJECT}: {{steps: 40}}}}. Left "
            f"out: {DEFAULT_PROJECT}, or for a branch the project of its source. `tracks projects add "
            "DIR` and a reload of the code location add yours."
        ),
    )


def _keys_field(project: Project, *, is_own: bool) -> Permissive:
    """Return the types of its keys; others are the project's to refuse when the run is declared.

    is_own: its words are a person's. Dagster stores them with the job, so they hold no secret.
    """
    keys = {}
    for name, key in project.keys.items():
        kind = _TYPES.get(type(key.default), dagster.Any)
        words = f"{key.default!r}{f': {key.meaning}' if key.meaning else ''}"
        if is_own:
            words = redact_json({name: words}, clean_text)[name]
        keys[name] = dagster.Field(kind, is_required=False, description=words)
    return Permissive(keys)  # type: ignore[no-untyped-call]


def _given(context: OpExecutionContext) -> set[str]:
    """Return the fields that were filled in, those of `retention` and `cluster` too.

    They are in the run's own config: in `TrainingRunConfig` a value may be a default.
    """
    run_config: Mapping[str, Any] = context.run_config
    filled = run_config.get("ops", {}).get(names.DECLARE_RUN, {}).get("config", {})
    return {*filled, *filled.get("retention", {}), *filled.get("cluster", {})}


def _request(
    app: App,
    config: TrainingRunConfig,
    chosen: Mapping[str, Any] | None,
    *,
    given: Collection[str],
) -> RunRequest:
    """Return what the launchpad asks for; of a branch with what it takes over. Raises InvalidInput.

    chosen: the one project with its overrides.
    """
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
    if chosen is not None and config.config:
        raise InvalidInput("project and config both give overrides; write them below project.")
    name, overrides = next(iter((chosen or {}).items()), (None, config.config))
    found = None
    if name is not None or origin is None:
        found = _code_of(app, name or DEFAULT_PROJECT, config.launcher)
    name = name or (DEFAULT_PROJECT if origin is None else origin.family)
    request = RunRequest(
        run_id=config.run_id
        or new_run_id(name, day=app.now().strftime("%Y%m%d"), new_uid=app.new_uid),
        family=name,
        intent=config.intent,
        config=overrides,
        snapshot_id=config.snapshot_id,
        checkpoints_may_be_off=app.usable_policy()[0].checkpoints_may_be_off,
        owner=config.owner,
        team=config.team,
        stage=config.stage,
        drills=tuple(config.drills),
        launcher=config.launcher,
        pool=config.pool,
        **_code(app, found),
        **_as_filled_in(config, None if found is None else found.project, given),
    )
    return request if origin is None else origin.inherited_by(request, given=given)


def _code_of(app: App, name: str, launcher: str) -> FoundCode | None:
    """Return the project's code as it is now; None for a family that ships. Raises InvalidInput."""
    registered = find_registered(app.settings.home, name)
    registered.read()
    if registered.folder is None:
        return None
    return read_project_code(
        registered.folder, store_url=app.store.url, clean=app.redact, launcher=launcher
    )


def _code(app: App, found: FoundCode | None) -> dict[str, Any]:
    if found is None:
        root = app.settings.root
        return {"code": read_code_version(root), "code_diff": read_code_diff(root, app.redact)}
    return {each.name: getattr(found, each.name) for each in fields(found)}


def _as_filled_in(
    config: TrainingRunConfig, project: Project | None, given: Collection[str]
) -> dict[str, Any]:
    """Return fields of the request: as filled in, else as the project's file says, else defaults."""
    cluster = {**config.cluster.model_dump(), "tolerations": tuple(config.cluster.tolerations)}
    asked = {
        "ranks": config.ranks,
        "device_class": config.device_class,
        "checkpoint_every_steps": config.checkpoint_every_steps,
        "checkpoint_every_s": config.checkpoint_every_s,
        "retention": RetentionRule(**config.retention.model_dump()),
        **cluster,
    }
    if project is None:
        return asked
    rule = {name: value for name, value in config.retention.model_dump().items() if name in given}
    left = {*given, *(CADENCE if CADENCE & set(given) else ())}
    said = {name: value for name, value in defaults_of(project).items() if name not in left}
    return {**asked, **said, "retention": replace(project.retention, **rule)}
