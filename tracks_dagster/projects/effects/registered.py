"""The projects of a home, which Dagster's schedules and launchpad know by name.

`TRACKS_HOME/projects/NAME` is a link to the project's folder: one of a user's own, as it is now, or a
version that was stored for everybody (`home.stored_projects`), unpacked below `.stored`. To make one is
atomic and fails where the name is there, so two commands at once need no lock. What the folder's file
says is read again each time. The examples whose data ship with the product are always there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from tracks_dagster.projects.effects.project_file import FILE, NAME, file_of, read_project, slug
from tracks_dagster.projects.project import Project
from tracks_dagster.track.errors import InvalidInput, SettingsError
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.unforeseen import problem_of

FOLDER = "projects"  # of a home
VERSIONS = ".stored"  # in it: NAME/NUMBER-SHA256, the versions that were stored
_VERSION = re.compile(rf"\{VERSIONS}/[^/]+/(?P<number>[0-9]+)-[0-9a-f]+")  # a home may be moved
SHIPPED = ("gpt", "tabular")  # examples: a folder each; what else lies there has to be added
DEFAULT_PROJECT = "gpt"  # where nobody names one, and there is none in the folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A project by its name. is_shipped: it is one of the examples; is_given: no home has it, the
    deployment names its folder. version: the stored one that `folder` has; None of a folder of a user's
    own, as it is now.

    project: None where it cannot be read; problem: why, in words.
    """

    name: str
    folder: Path
    project: Project | None = None
    problem: str = ""
    is_shipped: bool = False
    is_given: bool = False
    version: int | None = None

    def read(self) -> Project:
        """Return the project; raises InvalidInput where it cannot be read."""
        if self.project is None:
            raise InvalidInput(self.problem)
        return self.project


def load_projects(home: Path, examples: Path) -> tuple[Registered, ...]:
    """Return the projects that ship and those of `home`, by name; writes nothing.

    A project that cannot be read is among them, with its problem. Raises nothing of theirs: they must
    not keep the others from being loaded.
    """
    return (*load_shipped(examples), *load_own(home))


def load_own(home: Path) -> tuple[Registered, ...]:
    """Return the projects that were added to `home`, as `load_projects`."""
    return tuple(_read_link(home, name) for name in _names(home))


def load_shipped(examples: Path) -> tuple[Registered, ...]:
    """Return the projects that ship, of that folder; raises nothing, as `load_projects`."""
    return tuple(_read_example(examples, name) for name in SHIPPED)


def read_folder(folder: Path) -> Registered:
    """Return the project of a folder that is in no home; raises nothing, as `load_projects`."""
    folder = folder.absolute()
    try:
        project = read_project(folder)
    except Exception as error:  # noqa: BLE001 - of that project alone
        return replace(_unread(slug(folder.name, "project"), folder, error), is_given=True)
    return Registered(name=project.name, folder=folder, project=project, is_given=True)


def find_registered(home: Path, examples: Path, name: str) -> Registered:
    """Return that project as its folder is now, and look at no other's.

    Raises InvalidInput naming those that exist.
    """
    names = [*SHIPPED, *_names(home)]
    if name not in names:
        raise InvalidInput(f"{unknown('project', name, names)} {_HOW}")
    return _read_example(examples, name) if name in SHIPPED else _read_link(home, name)


def read_to_add(folder: Path) -> Project:
    """Return the project of `folder` if a home can have it; writes nothing.

    Raises SettingsError for a folder without a valid project file, InvalidInput for the name of one
    that ships.
    """
    if not os.path.isfile(folder / FILE):  # noqa: PTH113 - Path.is_file raises for a name too long
        raise InvalidInput(f"{folder} holds no project: there is no {FILE} in it.")
    project = read_project(folder)
    if project.name in SHIPPED:
        raise InvalidInput(
            f"{project.name} is a project that ships; give yours another name, in {file_of(folder)}."
        )
    return project


def check_free(home: Path, name: str, folder: Path) -> None:
    """Raise InvalidInput where another folder of a home has that name, SettingsError for what is not
    a link."""
    link = home / FOLDER / name
    if not os.path.lexists(link) or version_of(link) is not None:
        return
    if not link.is_symlink():
        raise SettingsError(f"{link} is not a link of a project; take it away.")
    if (there := link.readlink()).resolve() == folder.resolve():
        return
    gone = "" if there.is_dir() else ", which does not exist any more"
    raise InvalidInput(
        f"Another project is called {name}: the one of {there}{gone}. Take it away with "
        f"`tracks projects remove {name}`, or change the name in {folder / FILE}."
    )


def drop_link(home: Path, name: str) -> None:
    """Take a home's own folder for a project away: what is stored counts then."""
    link = home / FOLDER / name
    if link.is_symlink() and version_of(link) is None:
        link.unlink()


def add_project(home: Path, name: str, folder: Path) -> None:
    """Add a project that `read_to_add` returned to a home; the same one again changes nothing.

    Raises InvalidInput where another project has its name.
    """
    folder, link = folder.absolute(), home / FOLDER / name
    try:
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(folder, target_is_directory=True)
    except FileExistsError:
        check_free(home, name, folder)
        if version_of(link) is not None:  # from now on it is this folder, as it is
            link.unlink(missing_ok=True)
            add_project(home, name, folder)
    except OSError as error:
        raise SettingsError(f"{link} cannot be written ({error.strerror}).") from error


def remove_project(home: Path, name: str) -> Path:
    """Take a project away and return its folder, which stays as it is; its runs stay too.

    Raises InvalidInput for one that is not there or that ships.
    """
    own = _names(home)
    if name in SHIPPED:
        raise InvalidInput(
            f"{name} ships and is always there; its schedule has a switch in the UI."
        )
    if name not in own:
        raise InvalidInput(f"{unknown('project', name, own)} {_HOW}")
    link = home / FOLDER / name
    folder = link.readlink()
    link.unlink(missing_ok=True)
    return folder


def version_of(link: Path) -> int | None:
    """Return the number of the stored version that a link leads to; None for a folder of one's own."""
    try:
        folder = link.readlink()
    except OSError:
        return None
    found = _VERSION.fullmatch(str(folder))
    return None if found is None else int(found["number"])


_HOW = "`tracks projects add DIR` adds one, `tracks projects list` shows them."


def _names(home: Path) -> list[str]:
    """Return the names of the links in that home; what is not a link of ours is passed over."""
    try:
        links = [each.name for each in (home / FOLDER).iterdir() if each.is_symlink()]
    except OSError:  # there is no home yet, or nobody may look
        return []
    return sorted(filter(NAME.fullmatch, links))


def _read_link(home: Path, name: str) -> Registered:
    link = home / FOLDER / name
    try:
        folder = link.parent / link.readlink()
        found = _read(name, folder, f"Put it back, or `tracks projects remove {name}`.")
        return replace(found, version=version_of(link))
    except Exception as error:  # noqa: BLE001 - of that project alone
        return _unread(name, link, error)


def _read_example(examples: Path, name: str) -> Registered:
    folder = examples / name
    try:
        found = _read(name, folder, "Put it back: it is a part of the product.")
    except Exception as error:  # noqa: BLE001 - of that project alone
        return replace(_unread(name, folder, error), is_shipped=True)
    return replace(found, is_shipped=True)


def _unread(name: str, folder: Path, error: Exception) -> Registered:
    why = error if isinstance(error, OSError) else problem_of(error)
    return Registered(name=name, folder=folder, problem=f"The project {name} cannot be read: {why}")


def _read(name: str, folder: Path, hint: str) -> Registered:
    if not folder.is_dir():
        raise InvalidInput(f"its folder {folder} does not exist any more. {hint}")
    project = read_project(folder)
    if project.name != name:
        raise InvalidInput(
            f"{file_of(folder)} calls it {project.name} now. `tracks projects remove {name}`, then "
            f"`tracks projects add {folder}`."
        )
    return Registered(name=name, folder=folder, project=project)
