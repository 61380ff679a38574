"""Our definitions for a Dagster deployment: this repository's, or any other that a user has.

    from tracks_dagster.factory import build_defs, merge
    defs = merge(mine, build_defs(["projects/churn"], prefix="ml"))

Public. It reads the project files that it is given, and those of the home where that is asked for, and
neither the environment nor a store: what the definitions need of these is built when one of them is
first used.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dagster import (
    AssetsDefinition,
    AssetSpec,
    AutomationCondition,
    Definitions,
    DynamicPartitionsDefinition,
    JobDefinition,
    ScheduleDefinition,
    SensorDefinition,
    map_asset_specs,
)

from tracks_dagster.data.effects.datasets.catalog import DATASETS
from tracks_dagster.defs.assets import datasets as own_files
from tracks_dagster.defs.assets.attempts import train_attempt, training_attempts
from tracks_dagster.defs.assets.checkpoints import (
    checkpoints,
    collect_checkpoints,
    collect_checkpoints_every_15_minutes,
)
from tracks_dagster.defs.assets.declarations import declare_training_run, training_runs
from tracks_dagster.defs.assets.evals import evals, evaluate_checkpoint, promotions
from tracks_dagster.defs.assets.projects import assets_of_projects, model_checks
from tracks_dagster.defs.assets.receipts import receipts
from tracks_dagster.defs.assets.review import incident_review, review_every_day, review_incidents
from tracks_dagster.defs.assets.snapshots import snapshots
from tracks_dagster.defs.assets.studies import studies
from tracks_dagster.defs.resources.application import resources
from tracks_dagster.defs.sensors.deciders import decider_sensors
from tracks_dagster.defs.sensors.launch_attempts import launch_attempts
from tracks_dagster.defs.sensors.retraining import retraining_schedules, retraining_sensors
from tracks_dagster.defs.sensors.run_evals import run_evals
from tracks_dagster.defs.sensors.show_datasets import show_datasets
from tracks_dagster.defs.sensors.show_studies import show_studies
from tracks_dagster.defs.sensors.watch_attempts import watch_attempts
from tracks_dagster.defs.site import TICK_S, DatasetSource, Site
from tracks_dagster.projects.effects.registered import Registered, load_shipped, read_folder
from tracks_dagster.projects.project_assets import ProjectAssets
from tracks_dagster.settings import EXAMPLES, usable_projects
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import TAG_PROJECT, Prefix
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.redact import secrets_of
from tracks_dagster.wing import load, wings

__all__ = ["DatasetSource", "build_defs", "merge"]

BUILT_AT = "tracks/built_at"  # metadata of our definitions: where build_defs was called
NAMED_MAX = 8  # collisions in an error
TICK_S_MAX = 60  # gangs that were let go are watched at ticks


def build_defs(
    projects: Iterable[str | Path | Registered] = (),
    *,
    prefix: str = "",
    added: bool = False,
    examples: bool = False,
    owners: Sequence[str] = (),
    group: str | None = None,
    tags: Mapping[str, str] | None = None,
    sensors_run: bool = True,
    exports_curves: bool | None = False,
    automation: Mapping[str, AutomationCondition[Any]] | None = None,
    datasets: Mapping[str, DatasetSource] | None = None,
    settings: Mapping[str, str] | None = None,
    tick_s: int = TICK_S,
) -> Definitions:
    """Return everything of ours that a code location needs to train `projects`, folders with a
    tracks.yaml each.

    prefix: how every name of ours begins there: `ml/evals` of an asset, `ml_run_evals` of all else.
    added: with the projects that the home has, which is read at load: those that were added to it, and
    those that are stored for everybody, as of its newest look at the store. A folder among `projects`
    comes before one of the same name. examples: the projects and datasets that ship are among it.
    owners, group, tags: of all our assets, in place of ours, or beside them; what a project's file says
    of its own counts first. sensors_run: sensors and schedules are on until somebody switches them off.
    exports_curves: with the sensor that sends curves to the trackers of trackers.yaml; None asks the
    environment's home whether it has such a file.
    automation: when Dagster trains a project by itself, by the project's name.
    datasets: where the files of datasets are and which assets write them, by the dataset's name.
    settings: `TRACKS_…` variables, TRACKS_HOME for example, that count before the environment's.
    tick_s: seconds between two ticks of a sensor, TICK_S to TICK_S_MAX: an idle daemon of Dagster's own
    costs the less, and what ends is seen the later.

    Raises InvalidInput for a prefix that cannot begin names, for two projects of one name, for a
    condition of a project that is not among them, for a source of a dataset that ships and for a secret
    among `settings`. A project that cannot be read is loaded with its problem, which its schedule's
    ticks tell.
    """
    caller = inspect.getframeinfo(sys._getframe(1), context=0)
    found = [each if isinstance(each, Registered) else read_folder(Path(each)) for each in projects]
    if added:
        names = {each.name for each in found}
        found += [each for each in usable_projects(settings) if each.name not in names]
    if examples:
        found = [*load_shipped(EXAMPLES), *found]
    _check_names(found)
    known = [each.name for each in found]
    for name in automation or {}:
        if name not in known:
            raise InvalidInput(f"automation: {unknown('project', name, known)}")
    for name in datasets or {}:
        if examples and name in DATASETS:
            raise InvalidInput(f"datasets: {name} is one of the examples; give yours another name.")
    if not TICK_S <= tick_s <= TICK_S_MAX:
        raise InvalidInput(f"tick_s: {tick_s} is not {TICK_S} to {TICK_S_MAX} seconds.")
    site = Site(
        prefix=Prefix(prefix),
        is_on=sensors_run,
        has_examples=examples,
        exports_curves=exports_curves,
        projects=tuple(found),
        automation=automation or {},
        sources=datasets or {},
        settings=_without_secrets(settings or {}),
        tick_s=tick_s,
    )
    of_wings = list(_of_wings(site))
    own = {each.name: each.assets for each in site.trained}
    changed = partial(_as_given, own=own, owners=owners, group=group, tags=tags or {})
    return Definitions(
        assets=map_asset_specs(changed, _assets(site)),
        asset_checks=list(model_checks(site)),
        jobs=[
            *(make(site) for make in _JOBS),
            *(each for each in of_wings if isinstance(each, JobDefinition)),
        ],
        schedules=[
            *retraining_schedules(site),
            *(make(site) for make in _SCHEDULES),
            *(each for each in of_wings if isinstance(each, ScheduleDefinition)),
        ],
        sensors=[
            *(make(site) for make in _SENSORS),
            *decider_sensors(site),
            *retraining_sensors(site),
            *(each for each in of_wings if isinstance(each, SensorDefinition)),
        ],
        resources=resources(site),
        metadata={BUILT_AT: f"{caller.filename}:{caller.lineno}"},
    )


def _of_wings(site: Site) -> Iterator[JobDefinition | ScheduleDefinition | SensorDefinition]:
    for package, wing in wings().items():
        for module in wing.definitions:
            yield from load(package, module).definitions(site)


def merge(*sets: Definitions) -> Definitions:
    """Return `Definitions.merge` of these, ours and a user's.

    Raises InvalidInput naming everything that two of them call by one name, with both places.
    """
    found: dict[str, tuple[object, str]] = {}
    problems = []
    for number, each in enumerate(sets, start=1):
        for name, thing, place in _named(each, f"argument {number} of merge"):
            other, there = found.setdefault(name, (thing, place))
            if other is not thing:
                problems.append(f"{name}: {there} and {place}")
    if problems:
        more = f" and {len(problems) - NAMED_MAX} more" if len(problems) > NAMED_MAX else ""
        raise InvalidInput(
            f"Two sets of definitions have one name. {'; '.join(problems[:NAMED_MAX])}{more}. Give "
            "build_defs another prefix, or yours another name."
        )
    return Definitions.merge(*sets)


def _named(found: Definitions, place: str) -> Iterator[tuple[str, object, str]]:
    """Yield everything that has a name: `asset ml/evals`, what it is, and where it is from."""
    built_at = found.metadata.get(BUILT_AT)
    default = place if built_at is None else f"build_defs at {built_at.value}"
    for each in found.assets or ():
        where = default if built_at is not None else _source(each) or default
        keys = each.keys if isinstance(each, AssetsDefinition) else [getattr(each, "key", None)]
        partitions = getattr(each, "partitions_def", None)
        if isinstance(partitions, DynamicPartitionsDefinition):  # one for all assets of a set
            yield f"partition set {partitions.name}", found, where
        yield from ((f"asset {key.to_user_string()}", each, where) for key in keys if key)
    for what, named in (
        ("job", found.jobs),
        ("sensor", found.sensors),
        ("schedule", found.schedules),
    ):
        yield from ((f"{what} {each.name}", each, default) for each in named or ())
    for key, value in (found.resources or {}).items():
        yield f"resource {key}", value, default


def _source(asset: object) -> str | None:
    """Return the file and line of a user's asset, where its function tells."""
    compute = getattr(getattr(asset, "node_def", None), "compute_fn", None)
    code = getattr(getattr(compute, "decorated_fn", None), "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"


_JOBS = (
    train_attempt,
    evaluate_checkpoint,
    declare_training_run,
    collect_checkpoints,
    review_incidents,
)
_SCHEDULES = (collect_checkpoints_every_15_minutes, review_every_day)
_SENSORS = (launch_attempts, run_evals, show_datasets, show_studies, watch_attempts)


def _assets(site: Site) -> list[AssetsDefinition | AssetSpec]:
    return [
        *(snapshots(site) if site.has_examples else ()),
        own_files.datasets(site),
        training_runs(site),
        training_attempts(site),
        receipts(site),
        checkpoints(site),
        evals(site),
        promotions(site),
        studies(site),
        incident_review(site),
        *assets_of_projects(site),
    ]


def _as_given(
    spec: AssetSpec,
    *,
    own: Mapping[str, ProjectAssets],
    owners: Sequence[str],
    group: str | None,
    tags: Mapping[str, str],
) -> AssetSpec:
    """Return the asset with what the deployment's builder says of all of ours, but for what a project's
    file says of its own."""
    of_file = own.get(spec.tags.get(TAG_PROJECT, ""), ProjectAssets())
    return spec.replace_attributes(
        owners=spec.owners if of_file.owners else list(owners) or spec.owners,
        group_name=spec.group_name if of_file.group else group or spec.group_name,
        tags={**tags, **spec.tags},
    )


def _check_names(projects: Sequence[Registered]) -> None:
    """Raise InvalidInput for two projects of one name, naming both places."""
    folders: dict[str, Path] = {}
    for each in projects:
        other = folders.setdefault(each.name, each.folder)
        if other != each.folder:
            raise InvalidInput(
                f"Two projects are called {each.name}: the one of {other} and the one of "
                f"{each.folder}. Change the name in one's tracks.yaml."
            )


def _without_secrets(settings: Mapping[str, str]) -> Mapping[str, str]:
    secrets = secrets_of(settings)
    if secrets:
        raise InvalidInput(
            f"One of {', '.join(settings)} holds a secret; give it by the environment, which keeps it "
            "out of what Dagster stores."
        )
    return settings
