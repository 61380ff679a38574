"""Our component for Dagster's `dg`: a folder with a defs.yaml is a project that is trained.

Public. Its attributes are the keys of a tracks.yaml, and `prefix`; so `tracks run` in that folder knows
it too. All of these components with one prefix are one set of definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from dagster import (
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
    ModelWrapValidatorHandler,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails

from tracks_dagster.factory import build_defs
from tracks_dagster.projects.effects.project_file import ProjectFile, slug
from tracks_dagster.projects.effects.registered import read_folder
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import Prefix

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


class TrainedProjectFile(ProjectFile):  # type: ignore[misc, valid-type]  # made of a table
    """The attributes: the keys of a tracks.yaml, and how all names begin in Dagster."""

    prefix: Annotated[str, PlainValidator(_prefix)] = ""

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

    def __init__(self, *, folder: Path, prefix: str) -> None:
        self.folder = folder
        self.prefix = prefix

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
        read_folder(Path(context.path)).read()
        prefix = getattr(attributes, "prefix", "")
        return cls(folder=Path(context.path), prefix=prefix)

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return what all projects of this prefix share, with the first of them; of another nothing."""
        every = context.component_tree.get_all_components(TrainedProject)
        folders = sorted(each.folder for each in every if each.prefix == self.prefix)
        return (
            build_defs(folders, prefix=self.prefix) if folders[0] == self.folder else Definitions()
        )
