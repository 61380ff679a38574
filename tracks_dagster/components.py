"""Our component for Dagster's `dg`: a folder with a defs.yaml is a project that is trained.

Public. Its attributes are the keys of a tracks.yaml, `prefix` and `datasets`; so `tracks run` in that
folder knows it too. All of these components with one prefix are one set of definitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from dagster import (
    AssetKey,
    AutomationCondition,
    Component,
    ComponentLoadContext,
    ComponentTypeSpec,
    Definitions,
    Scaffolder,
    ScaffoldRequest,
    scaffold_component,
    scaffold_with,
)
from pydantic import (
    BaseModel,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from tracks_dagster.factory import DatasetSource, build_defs
from tracks_dagster.projects.effects.project_file import COMPONENT_FILE, ProjectFile, slug
from tracks_dagster.projects.effects.registered import read_folder
from tracks_dagster.projects.schedule import check_cron
from tracks_dagster.track.effects.settings_file import FileModel
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import Prefix

EAGER = "eager"
STARTER = Path(__file__).parent / "training" / "projects" / "starter.py"
# As `tracks init` finds them in it.
STARTER_KEYS = {"steps": 300, "lr": 0.003, "global_batch": 64, "micro_batch": 64, "seed": 7}


class TrainedProjectScaffolder(Scaffolder[Any]):
    """Writes a project that trains as it is."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        """Write defs.yaml, and a train.py where there is none."""
        folder = request.target_path
        name = slug(folder.name, "project")
        scaffold_component(request, {"name": name, "entry": "train.py", "config": STARTER_KEYS})
        if not (folder / "train.py").exists():
            (folder / "train.py").write_bytes(STARTER.read_bytes())


def _prefix(value: object) -> str:
    try:
        return Prefix(str(value)).text
    except InvalidInput as error:
        raise ValueError(str(error)) from error


class DatasetFile(FileModel):
    """Where the files of a dataset are: `defs.site.DatasetSource`, as a file has it.

    path, checks: of files relative to the folder of defs.yaml. automation: "eager", or the five fields
    of a cron expression.
    """

    example = "{path: data, deps: [raw]}"
    path: str = Field(description="write where the files are, such as path: data")
    deps: tuple[str, ...] = ()
    checks: str | None = None
    in_place: bool = False
    automation: str | None = None

    @field_validator("automation")
    @classmethod
    def _is_condition(cls, given: str | None) -> str | None:
        if given is None or given == EAGER:
            return given
        try:
            return check_cron(given)
        except ValueError as error:
            raise ValueError(f"write {EAGER}, or a cron: {error}") from error

    def source(self, folder: Path) -> DatasetSource:
        """Return the source, of a project in that folder."""
        automation: AutomationCondition[Any] | None = None
        if self.automation == EAGER:
            automation = AutomationCondition.eager()
        elif self.automation is not None:
            automation = AutomationCondition.on_cron(self.automation)
        return DatasetSource(
            path=self.path if "://" in self.path else folder / self.path,
            deps=[AssetKey.from_user_string(each) for each in self.deps],
            checks=None if self.checks is None else folder / self.checks,
            in_place=self.in_place,
            automation=automation,
        )


class TrainedProjectFile(ProjectFile):  # type: ignore[misc, valid-type]  # made of a table
    """The attributes: the keys of a tracks.yaml, how all names begin in Dagster, and where the files of
    datasets are."""

    prefix: Annotated[str, PlainValidator(_prefix)] = ""
    datasets: Mapping[str, DatasetFile] = {}

    @model_validator(mode="before")
    @classmethod
    def _as_written(cls, given: Any) -> Any:
        """Dagster's reader of YAML takes the key `on` of a schedule for a truth."""
        schedule = given.get("schedule") if isinstance(given, Mapping) else None
        if not isinstance(schedule, Mapping) or True not in schedule:
            return given
        words = {"on" if key is True else key: value for key, value in schedule.items()}
        return {**given, "schedule": words}

    @model_validator(mode="wrap")
    @classmethod
    def _as_dagster_takes_it(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """Raise errors of a type of pydantic's: Dagster raises each again, with its line."""
        try:
            return read(given)
        except ValidationError as error:
            found = error.errors(include_url=False)
        raise ValidationError.from_exception_data(
            cls.__name__,
            [
                InitErrorDetails(
                    type="value_error", loc=each["loc"], input=given, ctx={"error": each["msg"]}
                )
                for each in found
            ],
        )


@scaffold_with(TrainedProjectScaffolder)
class TrainedProject(Component):
    """A project that is trained, evaluated and promoted as assets of this deployment.

    The folder of its defs.yaml has the code. It brings `NAME/training`, whose materialization declares
    a run, `NAME/model`, which is materialized at each promotion, and once for all projects the sensors
    that supervise, retry and evaluate.
    """

    def __init__(
        self, *, folder: Path, prefix: str, datasets: Mapping[str, DatasetSource] | None = None
    ) -> None:
        self.folder = folder
        self.prefix = prefix
        self.datasets = datasets or {}

    @classmethod
    def get_spec(cls) -> ComponentTypeSpec:
        """Who answers for it."""
        return ComponentTypeSpec(tags=["training", "pytorch"])

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Its attributes; Dagster shows what is wrong with one at its line."""
        return TrainedProjectFile

    @classmethod
    def load(cls, attributes: BaseModel | None, context: ComponentLoadContext) -> Self:
        """Return the project of that folder; raises InvalidInput with the lines of what is wrong."""
        folder = Path(context.path)
        read_folder(folder).read()
        given = attributes if isinstance(attributes, TrainedProjectFile) else None
        if given is None:
            return cls(folder=folder, prefix="")
        datasets = {name: each.source(folder) for name, each in given.datasets.items()}
        return cls(folder=folder, prefix=given.prefix, datasets=datasets)

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return what all projects of this prefix share, with the first of them; of another nothing."""
        every = context.component_tree.get_all_components(TrainedProject)
        ours = sorted((e for e in every if e.prefix == self.prefix), key=lambda each: each.folder)
        if ours[0].folder != self.folder:
            return Definitions()
        folders = [each.folder for each in ours]
        return build_defs(folders, prefix=self.prefix, datasets=_datasets(ours))


def _datasets(components: Sequence[TrainedProject]) -> dict[str, DatasetSource]:
    """Return the sources of all; raises InvalidInput where two say where one dataset's files are."""
    found: dict[str, tuple[Path, DatasetSource]] = {}
    for each in components:
        for name, source in each.datasets.items():
            if name in found:
                raise InvalidInput(
                    f"datasets: {name} is given in {found[name][0] / COMPONENT_FILE} and in "
                    f"{each.folder / COMPONENT_FILE}; give it once."
                )
            found[name] = (each.folder, source)
    return {name: source for name, (_, source) in found.items()}
