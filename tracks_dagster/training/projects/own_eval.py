"""Runs an eval of a project's own on one checkpoint: a file's function `evaluate`, or a command.

It starts in a copy of the run's stored code, as a rank does. The function gets the checkpoint's folder
and that of the data, and returns its metrics by name; a command prints them as a JSON object in its
last line. Among them `samples` is how many it measured, and `seconds` what it measured of its own time,
by `load`, `infer` and `score`. Files that it leaves in the artifacts folder are kept. A scorer gets the
files that another eval left, in the place of the checkpoint's.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from tracks_dagster.evals.ports import EvalSpec
from tracks_dagster.projects.project import eval_version, fill_entry, has_function, script_of
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import Artifact, Program, ScoredEval
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.states.evals import (
    NOT_FINITE,
    artifact_key,
    is_artifact_name,
    result_key,
)
from tracks_dagster.training.data import data_folder
from tracks_dagster.training.projects.code import CODE, command_line, lay_out, paths
from tracks_dagster.training.saves.handoff import write_checkpoint

FUNCTION = "evaluate"
ARTIFACTS_MAX = 32  # their names stand in a record of 16 KiB
ARTIFACT_BYTES_MAX = 64 * 1024 * 1024  # of one eval
MEASURED = ("load", "infer", "score")  # the seconds that an eval may measure itself
LINE_BYTES_MAX = 64 * 1024  # of a command's last line
SHOWN_CHARACTERS = 200

_METRIC = re.compile(r"[A-Za-z0-9_@./%-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnResult:
    """What an eval measured. sample_count: None where it did not say. left_out: why files that it left
    were not kept, "" where all were."""

    metrics: Mapping[str, float]
    sample_count: int | None
    seconds: Mapping[str, float]
    artifacts: tuple[Artifact, ...] = field(default=())
    left_out: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return what goes into the stored result."""
        return {
            "metrics": dict(self.metrics),
            "sample_count": self.sample_count,
            "seconds": dict(self.seconds),
            "artifacts": [asdict(each) for each in self.artifacts],
            "message": self.left_out,
        }


def evaluate_own(
    store: ObjectStore, spec: EvalSpec, program: Program, *, work: Path, cache: Path
) -> OwnResult:
    """Measure what `spec` names in folders below `work`, and store the artifacts.

    cache: this machine's, of snapshots of files. Changes this process's working directory and import
    path. Raises InvalidInput for what the eval returned, CheckpointCorrupt, DataRejected, and whatever
    the eval itself raises.
    """
    began = time.monotonic()
    code, artifacts = work / CODE, work / "artifacts"
    measured = work / ("checkpoint" if spec.scored is None else "scored")
    lay_out(code, code=_read_code(store, spec.code_key), key=spec.code_key, files=spec.files)
    _check_version(spec, program, code)
    if spec.scored is None:
        write_checkpoint(store, spec.checkpoint, measured, config=spec.config)
    else:
        _write_scored(store, spec, spec.scored, measured)
    data = None
    if spec.snapshot is not None:
        data = data_folder(store, spec.snapshot, cache=cache, folder=work / "data")
    artifacts.mkdir()
    fetched = time.monotonic()
    what = f"{spec.suite} of step {spec.checkpoint.step}"
    os.chdir(code)
    os.environ.update(paths(code, program.python, os.environ))
    if has_function(program.entry):
        found = _call(code / program.entry[0], measured, data, artifacts)
    else:
        folders = {measured.name: measured, "data": data or "", "artifacts": artifacts}
        values = {**spec.config, **{name: str(path) for name, path in folders.items()}}
        words = fill_entry(program.entry, values, config_path=program.config_name or "")
        found = _run(command_line(words, program.python), work / "stdout", what)
    ended = time.monotonic()
    result = read_result(found, what)
    kept, left_out = _keep(store, spec.result_key, artifacts)
    return OwnResult(
        metrics=result.metrics,
        sample_count=result.sample_count,
        seconds={"fetch": fetched - began, "evaluate": ended - fetched, **result.seconds},
        artifacts=kept,
        left_out=left_out,
    )


def _read_code(store: ObjectStore, key: str | None) -> bytes:
    if key is None:
        raise InvalidInput("The run has no stored code; nothing was evaluated.")
    try:
        return read_addressed(store, key)
    except ObjectLost as error:
        raise InvalidInput(f"The run's stored code {error}; nothing was evaluated.") from error


def _check_version(spec: EvalSpec, program: Program, code: Path) -> None:
    """Refuse other code than the run declared, which a retry may have brought: the numbers would stand
    under a version that did not measure them."""
    script = script_of(program.entry)
    path = None if script is None else code / script
    content = path.read_bytes() if path is not None and path.is_file() else b""
    of = "" if spec.scored is None else spec.scored.suite_version
    found = eval_version(program.entry, content, of=of)
    if found != spec.suite_version:
        raise InvalidInput(
            f"{script} in the code of attempt {spec.checkpoint.attempt_id} is version {found} of "
            f"{spec.suite}, and the run was declared with {spec.suite_version}. Declare a branch with "
            f"the new code: tracks run --from {spec.run_id}@{spec.checkpoint.step}."
        )


def _write_scored(store: ObjectStore, spec: EvalSpec, scored: ScoredEval, folder: Path) -> None:
    """Write the files that the scored eval left, each verified. A part of them would give a number, and
    a wrong one: raises InvalidInput unless all are there."""
    what = f"{scored.eval_id}, attempt {scored.number}, which {spec.suite} scores"
    if scored.message:
        raise InvalidInput(f"{what}, has not all of its files: {scored.message}")
    if not scored.artifacts:
        raise InvalidInput(
            f"{what}, left no artifacts: let it write files to its artifacts folder, and declare a "
            f"branch with that code: tracks run --from {spec.run_id}@{spec.checkpoint.step}."
        )
    written_at = result_key(spec.run_id, scored.eval_id, scored.number)
    for each in scored.artifacts:
        if not is_artifact_name(each.name):
            raise InvalidInput(f"{what}, has a file {_shown(each.name)} outside of its folder.")
        key = artifact_key(written_at, each.name)
        try:
            data = read_addressed(store, key, each.sha256, bytes_max=each.size_bytes)
        except ObjectLost as error:
            raise InvalidInput(f"{what}, cannot be scored: {error}.") from error
        path = folder / each.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _call(script: Path, measured: Path, data: Path | None, artifacts: Path) -> object:
    """Import the file from the stored code and call its function."""
    roots = (script.parent, Path.cwd(), Path.cwd() / "src")
    sys.path[:0] = dict.fromkeys(str(each) for each in roots if each.is_dir())
    loader = SourceFileLoader(script.stem, str(script))
    module = ModuleType(script.stem)
    module.__file__ = str(script)
    sys.modules[script.stem] = module  # worker processes and pickles look for it there
    loader.exec_module(module)
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise InvalidInput(
            f"{script.name} has no function {FUNCTION}(checkpoint_folder, data_folder)."
        )
    wants = "artifacts_folder" in inspect.signature(function).parameters
    more = {"artifacts_folder": artifacts} if wants else {}
    result: object = function(measured, data, **more)
    return result


def _run(words: Sequence[str], output: Path, what: str) -> object:
    """Run a command and return the JSON of its last line; its stderr is this process's."""
    with output.open("wb") as file:
        try:
            code = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=file, check=False
            ).returncode
        except OSError as error:
            raise InvalidInput(
                f"{what}: {words[0]} cannot be started: {error.strerror}."
            ) from error
    if code != 0:
        how = f"ended with {code}" if code > 0 else f"was ended by signal {-code}"
        raise InvalidInput(f"{what}: {words[0]} {how}.")
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - LINE_BYTES_MAX))
        lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else ""
    try:
        return parse_json(last, foreign=True)
    except ValueError as error:
        raise InvalidInput(
            f"{what}: the last line of {words[0]} is not a JSON object of metrics: "
            f'{last[:SHOWN_CHARACTERS]!r}. Print one, such as {{"accuracy": 0.9}}, last.'
        ) from error


def read_result(found: object, what: str) -> OwnResult:
    """Return what an eval measured; raises InvalidInput naming the value that is not one.

    Every metric is a finite number. what: the eval, in words.
    """
    if not isinstance(found, Mapping):
        raise InvalidInput(
            f"{what} returned {_shown(found)} and no metrics by name; return a mapping, such as "
            '{"accuracy": 0.9}.'
        )
    values = dict(found)
    samples, seconds = values.pop("samples", None), values.pop("seconds", {})
    if not values:
        raise InvalidInput(
            f'{what} returned no metric; return one at least, such as {{"loss": 2.5}}.'
        )
    return OwnResult(
        metrics={_metric(name, what): _number(name, value, what) for name, value in values.items()},
        sample_count=_count(samples, what),
        seconds=_seconds(seconds, what),
    )


def _metric(name: object, what: str) -> str:
    if not isinstance(name, str) or not _METRIC.fullmatch(name):
        raise InvalidInput(
            f"{what} named a metric {_shown(name)}; use up to 64 letters, digits and _ @ . / % -."
        )
    return name


def _number(name: str, value: Any, what: str) -> float:
    """Return a metric as a float; a tensor or an array of one number is one."""
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InvalidInput(
            f"{what} measured {name} = {_shown(value)}, which is not a number."
        ) from None
    if not math.isfinite(number):
        raise InvalidInput(
            f"{what} measured {name} = {number}, {NOT_FINITE}: it says nothing of the checkpoint. "
            "Look at the data and the code of the eval."
        )
    return number


def _count(value: object, what: str) -> int | None:
    if value is None or (type(value) is int and value >= 1):
        return value
    raise InvalidInput(f"{what} measured {_shown(value)} samples; use a whole number, 1 or more.")


def _seconds(value: object, what: str) -> dict[str, float]:
    if not isinstance(value, Mapping) or not set(value) <= set(MEASURED):
        raise InvalidInput(
            f"{what} named seconds {_shown(value)}; name some of: {', '.join(MEASURED)}."
        )
    return {name: _number(f"seconds of {name}", seconds, what) for name, seconds in value.items()}


def _shown(value: object) -> str:
    return repr(value)[:SHOWN_CHARACTERS]


def _keep(store: ObjectStore, result_key: str, folder: Path) -> tuple[tuple[Artifact, ...], str]:
    """Store the files below `folder` by name as far as they fit, and say which did not."""
    kept: list[Artifact] = []
    left: list[str] = []
    room = ARTIFACT_BYTES_MAX
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        name, size = path.relative_to(folder).as_posix(), path.stat().st_size
        if len(kept) == ARTIFACTS_MAX or size > room or not is_artifact_name(name):
            left.append(name)
            continue
        data = path.read_bytes()
        store.put(artifact_key(result_key, name), data)
        kept.append(Artifact(name=name, size_bytes=len(data), sha256=sha256_hex(data)))
        room -= len(data)
    if not left:
        return tuple(kept), ""
    return tuple(kept), (
        f"{len(left)} files that it left were not kept, {_shown(left[0])} first: at most "
        f"{ARTIFACTS_MAX} files of together {ARTIFACT_BYTES_MAX} bytes are, under plain names."
    )
