"""Start training runs from Dagster: the asset that people materialize, and schedules of projects too.

It only declares the run and opens its first attempt, as `tracks run` does; the sensors do the rest.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import dagster
from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    DagsterInstance,
    DagsterRun,
    Failure,
    MaterializeResult,
    Noneable,
    Permissive,
    ResourceParam,
    Selector,
    Shape,
    asset,
    define_asset_job,
    in_process_executor,
)

from tracks_dagster.attempts.effects.branches import find_origin
from tracks_dagster.attempts.effects.local.checkout import read_code_version
from tracks_dagster.attempts.effects.preparing import Prepared, prepare
from tracks_dagster.attempts.effects.redeclared import check_as_declared
from tracks_dagster.attempts.effects.runs import new_run_id
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.attempts.run_config import choices_of
from tracks_dagster.defs.site import AssetJob, Site
from tracks_dagster.home.stored_projects import code_of
from tracks_dagster.projects.project import OUR_KEYS, Project
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.review.effects.metadata import run_metadata
from tracks_dagster.settings import own_secrets
from tracks_dagster.track import names
from tracks_dagster.track.bodies import RunDeclared
from tracks_dagster.track.declared_fields import (
    ASKED,
    CADENCE,
    CLUSTER,
    DECLARED,
    LAUNCHER,
    NAMES,
    PLACE,
    RANKS,
    RETENTION,
    Field,
    Kind,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.samples import SKIP_WINDOWS
from tracks_dagster.track.text.redact import redact, redact_json
from tracks_dagster.wiring import App

NAMED_MAX = 8  # other assets in an error
TRIES_MAX = 100  # Dagster runs that repeat one another
OWNER = "dagster"  # of runs that nobody else answers for
NO_STEPS = "checkpoint_every_steps"  # null: it saves by seconds alone
_WRITTEN = {
    Kind.NAMES: "a list",
    Kind.SIZE: "in bytes",
    Kind.STEPS: "null for by seconds alone",
    Kind.TOLERATIONS: "[{key: gpu, operator: Exists}]",
}
PARTS = {"retention": RETENTION, "cluster": CLUSTER}
_KINDS: dict[Kind, Any] = {
    Kind.TEXT: dagster.StringSource,
    Kind.NAME: dagster.StringSource,
    Kind.NAMES: dagster.Array(dagster.StringSource),
    Kind.COUNT: dagster.IntSource,
    Kind.NUMBER: float,
    Kind.STEPS: dagster.IntSource,
    Kind.SIZE: dagster.IntSource,
    Kind.LABELS: {str: dagster.StringSource},
    Kind.TOLERATIONS: dagster.Array(Permissive()),  # type: ignore[no-untyped-call]
}
# Dagster's own tags, of the run that a condition, a sensor or a schedule asked for.
_ASKED_BY = {
    "dagster/from_automation_condition": "its automation condition",
    "dagster/sensor_name": "the sensor {}",
    "dagster/schedule_name": "the schedule {}",
}
_TYPES = {bool: bool, int: int, float: float, str: str, list: list}


def _fields(rows: Iterable[Field]) -> dict[str, dagster.Field]:
    """Return the launchpad's fields of these rows.

    None has a value here but the owner, who is never taken over: Dagster writes values into the
    launchpad, where they count as chosen.
    """
    return {each.name: _field(_KINDS[each.kind], _described(each)) for each in rows}


def _field(kind: Any, description: str) -> dagster.Field:
    optional = Noneable(kind)
    return dagster.Field(optional, is_required=False, description=description)


def _described(row: Field) -> str:
    """Return the row's words, with how it is written, what may be chosen and its default."""
    default = "" if row.default in (None, (), {}) else f"default: {row.default}"
    more = "; ".join(filter(None, (_WRITTEN.get(row.kind), ", ".join(choices_of(row)), default)))
    return f"{row.words[:-1]} ({more})." if more else row.words


LAUNCHPAD: dict[str, dagster.Field] = {
    "branch_from": _field(
        dagster.StringSource,
        "Start from a checkpoint of another run: RUN@STEP, for example my-run@40. What is left "
        "out here is as that run had it, except intent, owner and drills. With `project` the code "
        "is that of its folder now; without, as that run stored it.",
    ),
    "branch_from_attempt": _field(
        dagster.IntSource,
        "Whose checkpoint of that step (the newest attempt's that has one).",
    ),
    **_fields((*ASKED, *DECLARED, *CADENCE, LAUNCHER, RANKS, *PLACE[len(CLUSTER) :])),
    "intent": dagster.Field(
        dagster.StringSource,
        description="What the run is for, in a sentence; it is recorded.",
    ),
    "owner": dagster.Field(
        dagster.StringSource,
        is_required=False,
        default_value=OWNER,
        description="Who answers for the run.",
    ),
    "config": _field(
        {str: dagster.Any},
        "Overrides by key, for example {steps: 40, lr: 0.003}, where `project` is left out, as for a "
        "branch.",
    ),
    "retention": _field(
        Shape(_fields(RETENTION)),  # type: ignore[no-untyped-call]
        "Which checkpoints are kept when nobody holds them; the others go, once the newest was read.",
    ),
    "cluster": _field(
        Shape(_fields(CLUSTER)),  # type: ignore[no-untyped-call]
        "What is asked of a cluster, for kubernetes only; what is left out is as in its settings.",
    ),
}


def training_runs(site: Site) -> AssetsDefinition:
    """Return the asset; the site's projects, with their keys, are what its launchpad offers."""

    def training_runs(
        context: AssetExecutionContext, app: ResourceParam[App]
    ) -> MaterializeResult[None]:
        """Starts a training run: materialize it, and its launchpad opens; only the intent is needed.

        Each materialization is one run that was declared in Dagster: by a person, here or by the job
        declare_training_run, or by a project's schedule. Runs of the command `tracks run` are not among
        them: "Never materialized" says that none was declared here, whatever trained. Within seconds
        the first attempt of a run appears as a partition of training_attempts, where those of `tracks
        run` are too, started and retried by the sensors. When it is red the error names the value that
        is wrong; to execute it again declares no second run. A run needs a snapshot of its dataset
        first; nothing else is to be materialized by hand. `project` chooses what is trained: `tracks
        projects add DIR` adds yours.
        """
        _check_alone(context, site)
        declared = _declare(site, context, app, read_in(context.op_execution_context.op_config))
        metadata, name = run_metadata(declared), declared.model_family
        if name in (each.name for each in site.trained):
            also = site.key(name, names.TRAINING)
            context.log_event(AssetMaterialization(also, metadata=metadata))
        return MaterializeResult(metadata=metadata)

    return asset(
        key=site.key(names.TRAINING_RUNS),
        config_schema={**LAUNCHPAD, "project": _project_field(site)},
        group_name="training",
        kinds={"python"},
        owners=["team:training"],
    )(site.body(training_runs))


def project_training(site: Site, project: Project) -> AssetsDefinition:
    """Return the asset of one project, whose materialization declares a run of it."""
    registered = next(each for each in site.projects if each.name == project.name)

    def training(
        context: AssetExecutionContext, app: ResourceParam[App]
    ) -> MaterializeResult[None]:
        filled = read_in(context.op_execution_context.op_config)
        overrides = filled.pop("config", None) or {}
        filled = {"intent": _intent(context), **filled, "project": {project.name: overrides}}
        metadata = run_metadata(_declare(site, context, app, filled))
        also = site.key(names.TRAINING_RUNS)
        context.log_event(AssetMaterialization(also, metadata=metadata))
        return MaterializeResult(metadata=metadata)

    dataset = [] if project.dataset is None else [site.dataset_key(project.dataset)]
    shown = project.assets
    return asset(
        key=site.key(project.name, names.TRAINING),
        deps=[*dataset, *(AssetKey(each.split("/")) for each in shown.upstream)],
        config_schema={
            **LAUNCHPAD,
            "intent": _field(dagster.StringSource, "What the run is for, in a sentence."),
            "config": dagster.Field(
                _keys_field(project, is_own=not registered.is_shipped),
                is_required=False,
                description="Overrides of the project's config.",
            ),
        },
        group_name=shown.group or names.PROJECTS_GROUP,
        kinds=set(shown.kinds or ("python",)),
        owners=list(shown.owners or ("team:training",)),
        tags={**shown.tags, names.TAG_PROJECT: project.name},
        automation_condition=site.automation.get(project.name),
        description=(
            f"Trains {project.name}: materialize it, and a training run is declared.\n\n"
            "By a person here, a schedule, a sensor, or an automation condition: nothing has to be "
            "filled in. Each materialization is one run that was declared in Dagster; it is green as "
            "soon as the run is declared, and its attempts are partitions of training_attempts. What "
            f"comes of it, once it is promoted, is {project.name}/{names.MODEL}. When it is red the "
            "error names the value that is wrong; to execute it again declares no second run."
        ),
    )(site.body(training))


def _intent(context: AssetExecutionContext) -> str:
    """Return what a run is for that nobody gave an intent, by who asked for it."""
    tags = context.run.tags
    for tag, words in _ASKED_BY.items():
        if tag in tags:
            return f"Materialized in Dagster by {words.format(tags[tag])}."
    return "Materialized in Dagster."


def _declare(
    site: Site, context: AssetExecutionContext, app: App, filled: Mapping[str, Any]
) -> RunDeclared:
    """Declare the run that was asked for, and tag the Dagster run with it; Failure for bad input."""
    # Dagster's own retries would declare it again, and its first one may yet train.
    context.instance.add_run_tags(context.run.run_id, names.NO_RETRIES)
    try:
        policy = app.policy
        default_id = partial(_default_id, first_try(context.instance, context.run))
        prepared = _prepared(site, app, filled, policy, default_id, remark=context.log.warning)
        if (existing := app.tracks.find_run(names.check_run_id(prepared.run_id))) is not None:
            check_as_declared(existing, prepared, filled)
        declared = app.declare(prepared, policy)
    except InvalidInput as error:
        raise Failure(str(error), allow_retries=False) from error
    tags = {names.TAG_TRAINING_RUN: declared.run_id, names.TAG_PROJECT: declared.model_family}
    context.instance.add_run_tags(context.run.run_id, tags)
    return declared


def declare_training_run(site: Site) -> AssetJob:
    """Return the job."""
    return define_asset_job(
        site.name(names.DECLARE_TRAINING_RUN_JOB),
        selection=[site.key(names.TRAINING_RUNS)],
        executor_def=in_process_executor,  # one step of a second
        tags=names.NO_RETRIES,
        description=(
            "Starts a training run, as the asset training_runs does. Fill in the launchpad (only "
            "`intent` is needed; every field explains itself), then launch."
        ),
    )


def _project_field(site: Site) -> dagster.Field:
    """Return the field that chooses one project and overrides its keys.

    No key has a default here: what nobody gave is the project's to say when the run is declared.
    """
    offered = {
        each.name: dagster.Field(
            _keys_field(each.project, is_own=not each.is_shipped),
            is_required=False,
            description="Overrides of its config; {} for none.",
        )
        for each in site.projects
        if each.project is not None
    }
    first = site.default_project
    return dagster.Field(
        # Noneable: of a plain Selector Dagster writes every choice into the launchpad.
        Noneable(Selector(offered)),  # type: ignore[no-untyped-call]
        is_required=False,
        description=(
            f"The project, and overrides of its config: {{{first}: {{steps: 40}}}}. Left out: {first}, "
            "or for a branch the project of its source. `tracks projects add DIR` adds yours."
        ),
    )


def _keys_field(project: Project, *, is_own: bool) -> Permissive | Shape:
    """Return its keys with their types, and those of ours that any config may have. The launchpad
    refuses others, unless the project takes any.

    is_own: its words are a person's. Dagster stores them with the job, so they hold no secret.
    """
    own = {**OUR_KEYS, **project.keys}
    words = {
        name: f"{key.default!r}{f': {key.meaning}' if key.meaning else ''}"
        for name, key in own.items()
    }
    if is_own:
        words = redact_json(words, partial(redact, secrets=own_secrets()))
    keys = {SKIP_WINDOWS: dagster.Field(dagster.Any, is_required=False)}
    for name, key in own.items():
        kind = _TYPES.get(type(key.default), dagster.Any)
        keys[name] = dagster.Field(kind, is_required=False, description=words[name])
    return Permissive(keys) if project.is_open else Shape(keys)  # type: ignore[no-untyped-call]


def _check_alone(context: AssetExecutionContext, site: Site) -> None:
    """Raise Failure where the Dagster run makes other assets too: in no order, snapshots among them.

    Edges to the snapshots would give an order, but then Dagster's UI warns of shipped snapshots that
    are not materialized, also when the run trains on other data.
    """
    own = site.key(names.TRAINING_RUNS)
    others = sorted(
        key.to_user_string() for key in context.job_def.asset_layer.selected_asset_keys - {own}
    )
    if others:
        raise Failure(
            f"This Dagster run makes {', '.join(others[:NAMED_MAX])} as well, and in no order. No "
            f"training run is declared: materialize {names.TRAINING_RUNS} alone, after its snapshot.",
            allow_retries=False,
        )


def read_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that were filled in, those of `retention` and `cluster` beside the others.

    A null that was filled in is left out too, but where it has a meaning.
    """
    read = dict(config)
    parts = [read.pop(part, None) or {} for part in PARTS]
    return {
        name: tuple(value) if isinstance(value, list) else value
        for values in (read, *parts)
        for name, value in values.items()
        if value is not None or name == NO_STEPS
    }


def filling_in(project: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the launchpad's config that declares a run of `project` with these values of fields, as
    `read_in` reads them."""
    inner = {
        part: {row.name: given[row.name] for row in rows if row.name in given}
        for part, rows in PARTS.items()
    }
    names_in_parts = {name for values in inner.values() for name in values}
    outer = {name: value for name, value in given.items() if name not in names_in_parts}
    parts = {part: values for part, values in inner.items() if values}
    return {"project": {project: {}}, **outer, **parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTry:
    """The Dagster run that declares, or the first of those that it repeats because they failed."""

    dagster_run_id: str
    at: datetime


def first_try(instance: DagsterInstance, run: DagsterRun) -> FirstTry:
    """Return what a declaration without a run id is named by.

    A run that failed may have declared before it died: its repetition declares the same training run.
    The repetition of one that succeeded declares another.
    """
    first, at = run.run_id, datetime.now(UTC)
    for _ in range(TRIES_MAX):
        record = instance.get_run_record_by_id(first)
        if record is None:  # deleted, and still the one that was repeated
            break
        at, parent_id = record.create_timestamp, record.dagster_run.parent_run_id
        parent = None if parent_id is None else instance.get_run_by_id(parent_id)
        if parent_id is None or (parent is not None and parent.is_success):
            break
        first = parent_id
    return FirstTry(dagster_run_id=first, at=at)


def _default_id(first: FirstTry, name: str) -> str:
    return new_run_id(name, day=f"{first.at:%Y%m%d}", new_uid=lambda: first.dagster_run_id)


def _prepared(
    site: Site,
    app: App,
    filled: Mapping[str, Any],
    policy: RetryPolicy,
    default_id: Callable[[str], str],
    *,
    remark: Callable[[str], object],
) -> Prepared:
    """Return what the launchpad asks for; of a branch with what it takes over. Raises InvalidInput.

    default_id: of a run of that project. remark: called with what a person should know of its code.
    """
    origin = None
    if (branch_from := filled.get("branch_from")) is not None:
        origin = find_origin(
            app.tracks,
            branch_from,
            run_id=filled.get("run_id"),
            attempt_id=filled.get("branch_from_attempt"),
        )
    elif "branch_from_attempt" in filled:
        raise InvalidInput(
            "branch_from_attempt names whose checkpoint branch_from means; give both."
        )
    if "project" in filled and filled.get("config"):
        raise InvalidInput("project and config both give overrides; write them below project.")
    chosen = filled.get("project", {None: filled.get("config")})
    [(name, overrides)] = chosen.items()
    is_inherited = name is None and origin is not None and not origin.is_of_family
    name = name or (site.default_project if origin is None else origin.family)
    launcher = filled.get("launcher")
    found = None if is_inherited else _code_of(site, app, name, launcher)
    for words in () if found is None else found.remarks:
        remark(words)
    return prepare(
        {each: value for each, value in filled.items() if each in NAMES},
        overrides or {},
        # The code that a branch inherits has its source's version, but for this package's.
        read_code_version(app.settings.root) if found is None else found,
        family=name,
        origin=origin,
        policy=policy,
        otherwise={"run_id": default_id(name), "owner": OWNER},
    )


def _code_of(site: Site, app: App, name: str, launcher: str | None) -> FoundCode:
    """Return the project's code as it is now; raises InvalidInput."""
    return code_of(app.tracks, site.find_project(app, name), launcher=launcher)
