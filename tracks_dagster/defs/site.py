"""One set of our definitions in a code location: how its names begin, and whether its sensors run.

`tracks_dagster.factory` makes a set, and what makes a single definition takes the site that it is for.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from dagster import (
    AssetDep,
    AssetKey,
    AutomationCondition,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    DynamicPartitionsDefinition,
    SpecificPartitionsPartitionMapping,
)

from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.data.effects.datasets.catalog import DATASETS
from tracks_dagster.home.stored_projects import find_project
from tracks_dagster.projects.effects.registered import DEFAULT_PROJECT, Registered, read_folder
from tracks_dagster.projects.project import ALIAS, Project
from tracks_dagster.track import names
from tracks_dagster.track.names import NO_PREFIX, Prefix
from tracks_dagster.wiring import App

APP, ORCHESTRATOR = "app", "orchestrator"  # parameters of a body that are resources

AssetJob: TypeAlias = Any  # what `define_asset_job` returns; Dagster does not export its type
P = ParamSpec("P")
R = TypeVar("R")


TICK_S = 5  # between two ticks of a sensor, where nobody asks for fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """Where a dataset's files are, for its asset to freeze as a snapshot.

    path: a file, a folder or s3://bucket/prefix. deps: the assets that write these files, upstream of
    the dataset. checks: a Python file of checks, as of `tracks snapshots add --checks`. in_place: the
    files stay where they are and their hashes are recorded. automation: when Dagster freezes them by
    itself.
    """

    path: str | Path
    deps: Sequence[str | AssetKey] = ()
    checks: str | Path | None = None
    in_place: bool = False
    automation: AutomationCondition[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """is_on: its sensors and schedules run until somebody switches them off.

    has_examples: the projects and datasets that ship are here. projects: what is trained here.
    exports_curves: whether curves are sent to trackers; None: where the environment's home has some.
    automation: when Dagster trains a project by itself, by name. sources: of datasets, by name; what a
    launchpad and the newest snapshot leave open. settings: variables that count before those of the
    environment. tick_s: the least seconds between two ticks of a sensor.
    """

    prefix: Prefix = NO_PREFIX
    is_on: bool = True
    has_examples: bool = False
    exports_curves: bool | None = False
    projects: tuple[Registered, ...] = ()
    automation: Mapping[str, AutomationCondition[Any]] = field(default_factory=dict)
    sources: Mapping[str, DatasetSource] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    tick_s: int = TICK_S

    def every_s(self, own_s: int = TICK_S) -> int:
        """Return how far apart the ticks of a sensor are that by itself would tick so often."""
        return max(own_s, self.tick_s)

    @property
    def sensor_status(self) -> DefaultSensorStatus:
        """How a sensor begins."""
        return DefaultSensorStatus.RUNNING if self.is_on else DefaultSensorStatus.STOPPED

    @property
    def schedule_status(self) -> DefaultScheduleStatus:
        """How a schedule begins."""
        return DefaultScheduleStatus.RUNNING if self.is_on else DefaultScheduleStatus.STOPPED

    def key(self, *parts: str) -> AssetKey:
        """Return the key of an asset."""
        return asset_key(self.prefix, *parts)

    def name(self, name: str) -> str:
        """Return the name of a job, sensor, schedule or resource."""
        return self.prefix.name(name)

    def partitions(self, name: str) -> DynamicPartitionsDefinition:
        """Return a partition set."""
        return DynamicPartitionsDefinition(name=self.name(name))

    def shown_after(self, name: str) -> AssetDep:
        """Return a dependency for the graph alone: on no partition of the asset of that name.

        Left to itself Dagster looks in the other asset for partitions of the same keys and refuses
        a backfill where there are none; or it looks at every partition there ever was, each time.
        """
        return AssetDep(self.key(name), partition_mapping=SpecificPartitionsPartitionMapping([]))

    @property
    def trained(self) -> list[Project]:
        """The projects that could be read."""
        return [each.project for each in self.projects if each.project is not None]

    @property
    def default_project(self) -> str:
        """The project of a run for which nobody names one."""
        return DEFAULT_PROJECT if self.has_examples or not self.projects else self.projects[0].name

    @property
    def own_datasets(self) -> list[str]:
        """The datasets that its projects name or that have a source, but for those that ship."""
        named = (name for each in self.trained for name in (each.dataset, *self.heldout_of(each)))
        return sorted(
            {name for name in (*named, *self.sources) if name and not self.is_shipped_dataset(name)}
        )

    def heldout_of(self, project: Project) -> list[str]:
        """Return the datasets that its evals measure on."""
        return [each.dataset for each in project.evals if each.dataset]

    def is_shipped_dataset(self, dataset: str) -> bool:
        """Whether the dataset is one of the examples, which are here."""
        return self.has_examples and dataset in DATASETS

    def dataset_key(self, dataset: str) -> AssetKey:
        """Return the asset of a dataset that a project names."""
        if self.is_shipped_dataset(dataset):
            return self.key(names.snapshot_asset(dataset))
        return self.key(names.DATASET_PARTITIONS, dataset)

    def aliases(self, project: Project) -> list[str]:
        """Return the aliases that have a model in the graph, that of the promotion first."""
        first = ALIAS if project.promotion is None else project.promotion.alias
        return list(dict.fromkeys((first, *project.assets.aliases)))

    def model_key(self, project: Project, alias: str) -> AssetKey:
        """Return the asset of the checkpoint that has the alias."""
        parts = () if alias == self.aliases(project)[0] else (alias,)
        return self.key(project.name, names.MODEL, *parts)

    def find_project(self, app: App, name: str) -> Registered:
        """Return a project as its folder is now: one that was given, else one of the home or store.

        Raises InvalidInput naming those that exist.
        """
        given = [each for each in self.projects if each.name == name and each.is_given]
        if given:
            return read_folder(given[0].folder)
        return find_project(app.tracks, app.settings.home, app.settings.examples, name)

    def body(self, work: Callable[P, R]) -> Callable[P, R]:
        """Return what Dagster's decorators take: no secret is in its errors, and the parameters `app`
        and `orchestrator` are asked for by the names that these resources have here.

        Dagster reads a parameter's name as the resource's key, by the function's signature.
        """
        return without_secrets(
            _renamed(work, {each: self.name(each) for each in (APP, ORCHESTRATOR)})
        )


def _renamed(work: Callable[P, R], names_here: Mapping[str, str]) -> Callable[P, R]:
    """Return the function with these parameters under other names; a generator stays one."""
    shape = inspect.signature(work)
    ours = {here: each for each, here in names_here.items() if each in shape.parameters}
    if all(here == each for here, each in ours.items()):
        return work

    def call(*args: Any, **kwargs: Any) -> Any:
        given = {ours.get(name, name): value for name, value in kwargs.items()}
        return cast(Callable[..., Any], work)(*args, **given)

    def events(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from call(*args, **kwargs)

    named = wraps(work)(events if inspect.isgeneratorfunction(work) else call)
    parameters = [
        each.replace(name=names_here.get(each.name, each.name))
        for each in shape.parameters.values()
    ]
    named.__signature__ = shape.replace(parameters=parameters)  # type: ignore[attr-defined]
    return cast(Callable[P, R], named)


def asset_key(prefix: Prefix, *parts: str) -> AssetKey:
    """Return the key of an asset of that prefix."""
    return AssetKey(list(prefix.path(*parts)))
