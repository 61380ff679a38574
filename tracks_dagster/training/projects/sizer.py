"""Starts a script to have its memory sized, as a rank of a gang is started, and reads what was found.

The process is the project's own interpreter, in a folder with a copy of the code; what it finds is one
JSON file. Nothing here imports torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tracks_dagster.attempts.ports import RankCommand
from tracks_dagster.attempts.sizing import SizeRequest, StepMemory
from tracks_dagster.processes.logs import private, read_tail
from tracks_dagster.processes.process import worker_environment, write_json
from tracks_dagster.track import names
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import TrainingError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.training.gang_parent import as_alone
from tracks_dagster.training.projects.code import CODE, command_line, lay_out, paths

SIZE_S_MAX = 600.0  # of one process: imports, the script's own start and two steps
LINES_MAX = 12  # of what a script wrote before it failed


def size_steps(
    request: SizeRequest,
    *,
    command: RankCommand,
    code: bytes,
    code_key: str,
    cache: Path,
    clean: Redact,
) -> StepMemory:
    """Run two steps of the script and return the memory that they took.

    cache: as in `AttemptPlace`. Raises TrainingError, with the script's last words, where it ended in
    another way, or took longer than `SIZE_S_MAX`.
    """
    with tempfile.TemporaryDirectory(prefix="tracks-size-") as scratch:
        work = Path(scratch)
        lay_out(work / CODE, code=code, key=code_key, files=command.files)
        report, log = work / "report.json", work / "log"
        asked = {**asdict(request), "work": scratch, "cache": str(cache), "report": str(report)}
        write_json(work / "request.json", asked)
        environment = {**as_alone(worker_environment()), names.ENV_SIZE: str(work / "request.json")}
        environment.pop(names.ENV_RUN_ID, None)
        environment |= paths(work / CODE, command.python, environment)
        how = _run(command_line(command.words, command.python), work, log, environment)
        if how is None and report.exists():
            return from_json(StepMemory, parse_json(report.read_text("utf-8")))
        words = clean(read_tail(log)).strip().splitlines()
        why = how or "it ended before its first step was reported"
        raise TrainingError("\n".join([f"The script cannot be sized: {why}.", *words[-LINES_MAX:]]))


def _run(words: list[str], work: Path, log: Path, environment: dict[str, str]) -> str | None:
    """Run the script to its end; return how it failed, None where it did not."""
    try:
        with open(log, "ab", opener=private) as written:
            child = subprocess.Popen(
                words,
                cwd=work / CODE,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
    except OSError as error:
        return f"{words[0]} cannot be started: {error.strerror}"
    try:
        code = child.wait(SIZE_S_MAX)
    except subprocess.TimeoutExpired:
        return f"it ran for longer than {SIZE_S_MAX:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return None if code == 0 else f"it ended with {code}"
