"""Which code a command runs: the project of a folder, or one script."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tracks_dagster.attempts.effects.local.checkout import read_code_diff, read_code_version
from tracks_dagster.attempts.effects.local.code_archive import pack_folder, pack_script
from tracks_dagster.attempts.effects.local.interpreter import check_interpreter
from tracks_dagster.data.effects.project_file import (
    FILE,
    find_project,
    project_of_script,
    read_project,
)
from tracks_dagster.data.project import Project, script_of
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import CodeVersion
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.text.redact import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCode:
    """A project, its packed files, its folder and the version of the checkout that it lies in."""

    project: Project
    archive: bytes
    folder: str
    code: CodeVersion
    code_diff: bytes | None

    def called(self, name: str) -> FoundCode:
        """Return the same code as that of a project of another name, whose run it continues."""
        return replace(self, project=replace(self.project, name=name))


def project_folder(given: Path | None) -> Path | None:
    """Return the folder of the project that was named, or that the command was called in.

    Raises InvalidInput for a folder that was named and holds no project.
    """
    if given is None:
        return find_project(Path.cwd())
    if not (given / FILE).is_file():
        raise InvalidInput(f"{given} holds no project: there is no {FILE} in it.")
    return given


def read_project_code(given: Settings, folder: Path, *, launcher: str = LOCAL) -> FoundCode:
    """Read and pack the project of `folder`; raises SettingsError or InvalidInput.

    launcher: on a cluster the interpreter is the image's, and cannot be looked at here.
    """
    project = read_project(folder)
    if project.python is not None and launcher == LOCAL:
        path = check_interpreter(project.python, store_url=given.store_url)
        project = replace(project, python=path)
    script = script_of(project.entry)
    needed = (FILE, *([] if script is None else [str(script)]))
    packed = pack_folder(folder, needed=needed)
    return _found(given, project, packed.data, folder)


def read_script_code(given: Settings, script: Path) -> FoundCode:
    """Read and pack one script; raises InvalidInput for one that is no Python."""
    packed = pack_script(script)
    try:
        compile(script.read_bytes(), str(script), "exec")
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"The trainer is no Python that runs here: {error}.") from error
    except (RecursionError, MemoryError) as error:  # how Python says that it is nested too deeply
        raise InvalidInput("The trainer is nested too deeply for Python to read.") from error
    return _found(given, project_of_script(script), packed.data, script.absolute().parent)


def _found(given: Settings, project: Project, archive: bytes, folder: Path) -> FoundCode:
    return FoundCode(
        project=project,
        archive=archive,
        folder=str(folder.resolve()),
        code=read_code_version(folder),
        code_diff=read_code_diff(folder, partial(redact, secrets=given.secrets)),
    )
