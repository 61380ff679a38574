"""The projects that ship, for tests: what their files say, and the code beside them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import tracks_dagster
from tracks_dagster.projects.effects.project_file import read_project
from tracks_dagster.projects.project import Project, resolve_config
from tracks_dagster.track.records import Json

EXAMPLES = Path(tracks_dagster.__file__).parent / "examples"


@cache
def example(name: str = "gpt") -> Project:
    """Return the project of that name."""
    return read_project(EXAMPLES / name)


def saves(project: Project) -> tuple[int | None, float | None]:
    """Return after how many steps and seconds its runs save."""
    return project.value("checkpoint_every_steps"), project.value("checkpoint_every_s")


def example_config(given: Mapping[str, Json], *, name: str = "gpt", ranks: int = 1) -> Json:
    """Return its whole config with what is given."""
    return resolve_config(example(name), given, ranks=ranks)


def import_example(name: str, *modules: str) -> list[ModuleType]:
    """Import modules of its folder, as a rank does that starts there; other tests see none of them."""
    folder = EXAMPLES / name
    shadowed = {each: sys.modules.pop(each, None) for each in ("data", "model")}
    sys.path.insert(0, str(folder))
    try:
        return [_load(folder / f"{module}.py") for module in modules]
    finally:
        sys.path.remove(str(folder))
        for each, before in shadowed.items():
            sys.modules.pop(each, None)
            if before is not None:
                sys.modules[each] = before


def _load(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
