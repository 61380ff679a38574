"""Which code a run is declared with, packed, and whether its interpreter can run it.

The code is the project of a folder, or one script.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tracks_dagster.attempts.effects.local.checkout import read_code_diff, read_code_version
from tracks_dagster.attempts.effects.local.code_archive import (
    PackedCode,
    pack_folder,
    pack_script,
)
from tracks_dagster.attempts.ports import FoundCode
from tracks_dagster.data.effects.own_checks import check_python
from tracks_dagster.processes.process import worker_environment
from tracks_dagster.projects.effects.project_file import (
    FILE,
    file_of,
    find_project,
    project_of_script,
    read_eval_version,
    read_project,
)
from tracks_dagster.projects.effects.registered import load_shipped
from tracks_dagster.projects.project import OwnEval, Project, has_function, script_of
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.redact import Redact


def project_folder(given: Path | None) -> Path | None:
    """Return the folder of the project that was named, or that the command was called in.

    Raises InvalidInput for a folder that was named and holds no project.
    """
    if given is None:
        return find_project(Path.cwd())
    if not file_of(given).is_file():
        raise InvalidInput(f"{given} holds no project: there is no {FILE} in it.")
    return given


def read_project_code(
    folder: Path,
    *,
    store_url: str,
    clean: Redact,
    evals: Sequence[Path] = (),
    launcher: str | None = None,
    starts_here: bool = True,
) -> FoundCode:
    """Read and pack the project of `folder`; raises SettingsError or InvalidInput.

    store_url: what an interpreter of its own has to reach. clean: whatever it would change in a diff
    holds a secret, and is left out. evals: files beside those that the project names. launcher: None
    for the one that its file names; on a cluster the interpreter is the image's, and cannot be looked
    at here; evals run on this machine. starts_here: False where nothing of it does.
    """
    project = _with_evals(read_project(folder), folder, evals)
    if starts_here:
        project = with_interpreters(project, store_url, launcher)
    entries = (project.entry, *(each.entry for each in project.evals))
    packed = pack_folder(
        folder, needed=(file_of(folder).name, *filter(None, map(_file_of, entries)))
    )
    _check_evals(project, folder)
    return _found(project, packed, folder, clean)


def find_shipped(examples: Path, name: str, *, store_url: str, clean: Redact) -> FoundCode | None:
    """Return the code of that example as it ships now; None where none of the name can be read."""
    registered = next((each for each in load_shipped(examples) if each.name == name), None)
    if registered is None or registered.project is None:
        return None
    return read_project_code(registered.folder, store_url=store_url, clean=clean)


def read_script_code(script: Path, *, clean: Redact, evals: Sequence[Path] = ()) -> FoundCode:
    """Read and pack one script, and `evals` beside it; raises InvalidInput for what is not Python."""
    folder = script.absolute().parent
    project = _with_evals(project_of_script(script), folder, evals)
    packed = pack_script(script, *(each.entry[0] for each in project.evals))
    check_python(script.read_bytes(), script, what="The trainer")
    _check_is_alone(script, stored={each.entry[0] for each in project.evals})
    _check_evals(project, folder)
    return _found(project, packed, folder, clean)


def _check_is_alone(script: Path, *, stored: Collection[str]) -> None:
    """Raise InvalidInput where the script imports what lies beside it and is not stored with it."""
    nodes = list(ast.walk(ast.parse(script.read_bytes())))
    names = {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    folder = script.absolute().parent
    beside = sorted(
        path.name
        for name in {each.partition(".")[0] for each in names} - {"", script.stem}
        for path in (folder / f"{name}.py", folder / name)
        if path.name not in stored and (path.is_file() or any(path.glob("*.py")))
    )
    if beside:
        raise InvalidInput(
            f"{script.name} imports {', '.join(beside)} beside it, and --trainer stores one file "
            f"alone. Make the folder a project: `tracks init {folder}` writes a tracks.yaml, and "
            "`tracks run` there stores all of its files."
        )


def with_interpreters(project: Project, store_url: str, launcher: str | None) -> Project:
    """Return the project with each interpreter that starts here as a path; raises InvalidInput.

    launcher: None for the one that its file names.
    """
    python = project.python
    own = [each for each in project.evals if has_function(each.entry)]
    if python is not None and (launcher or project.value("launcher")) == LOCAL:
        project = replace(project, python=check_interpreter(python, store_url=store_url))
    elif python is not None and any(each.python is None for each in own):
        check_interpreter(python, store_url=store_url)
    evals = (
        replace(each, python=check_interpreter(each.python, store_url=store_url))
        if each.python is not None and has_function(each.entry)
        else each
        for each in project.evals
    )
    return replace(project, evals=tuple(evals))


def _file_of(entry: Sequence[str]) -> str | None:
    script = script_of(entry)
    return None if script is None else str(script)


def _with_evals(project: Project, folder: Path, evals: Sequence[Path]) -> Project:
    """Return the project with an eval more for each file, called after it."""
    known = list(project.evals)
    for path in evals:
        try:
            place = path.parent.resolve() / path.name
            name = place.relative_to(folder.resolve()).as_posix()
        except ValueError as error:
            raise InvalidInput(
                f"--eval {path} lies outside of {folder}; only what is in it is stored with the run."
            ) from error
        if path.suffix != ".py" or not path.is_file():
            raise InvalidInput(
                f"--eval {path} is not a Python file; a command belongs into {FILE}."
            )
        called = project_of_script(path).name
        if any(each.name == called for each in known):
            raise InvalidInput(f"--eval {path}: the project has an eval {called} already.")
        version = read_eval_version((name,), folder)
        known.append(OwnEval(name=called, entry=(name,), version=version, dataset=project.dataset))
    return replace(project, evals=tuple(known))


def _check_evals(project: Project, folder: Path) -> None:
    for each in project.evals:
        if has_function(each.entry):
            script = folder / each.entry[0]
            check_python(script.read_bytes(), script, what=f"The eval {each.name}")


def _found(project: Project, packed: PackedCode, folder: Path, clean: Redact) -> FoundCode:
    return FoundCode(
        project=project,
        archive=packed.data,
        folder=str(folder.resolve()),
        code=read_code_version(folder),
        code_diff=read_code_diff(folder, clean),
        remarks=packed.remarks,
    )


# --- a person's own interpreter -------------------------------------------------------------------


CHECK_S_MAX = 60.0  # the first start from a cold network disk
LINES_MAX = 5
# Finds without importing: torch alone takes seconds to import.
_CHECK = """
import sys
from importlib.util import find_spec
missing = [name for name in sys.argv[1:] if find_spec(name) is None]
if missing:
    raise SystemExit("it lacks " + " and ".join(missing))
"""


def ask_interpreter(python: str) -> Mapping[str, Json]:
    """Return what `foresee_software` says by that interpreter; {} where it does not answer in time."""
    try:
        done = _run(python, "-m", "tracks_dagster.training.software")
        done.check_returncode()
        found: dict[str, Json] = parse_json(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}  # its gang says why it cannot start, and records what it finds
    return found


def check_interpreter(python: str, *, store_url: str) -> str:
    """Return the path of `python`, as the caller's PATH has it: a daemon's may have another.

    Raises InvalidInput where it starts nothing, or lacks what a rank on that store imports.
    """
    package, needed = "tracks-dagster", ["torch", "tracks_dagster"]
    if store_url.startswith("s3:"):
        package, needed = "'tracks-dagster[s3]'", [*needed, "boto3"]
    doing = f"The project's interpreter {python} cannot run it"
    path = shutil.which(python)
    if path is None:
        raise InvalidInput(f"{doing}: there is no such program; write its path under python:.")
    try:
        done = _run(path, "-c", _CHECK, *needed)
    except OSError as error:
        raise InvalidInput(f"{doing}: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise InvalidInput(f"{doing}: it did not answer within {CHECK_S_MAX:g} s.") from error
    if done.returncode != 0:
        output = " ".join(done.stderr.strip().splitlines()[-LINES_MAX:])
        raise InvalidInput(
            f"{doing}: {output or f'it ended with {done.returncode}'}. Install {package} into that "
            f"environment: {python} -m pip install {package}"
        )
    # A link of a venv stays one; without `..`, as that program calls itself.
    plain = os.path.abspath(path)  # noqa: PTH100
    return (
        plain if os.path.realpath(plain) == os.path.realpath(path) else str(Path(path).absolute())
    )


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        # What lies in the folder of who asks is not what a rank finds; an older Python ignores it.
        env={**worker_environment(), "PYTHONSAFEPATH": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=CHECK_S_MAX,
        check=False,
    )
