"""Runs one evaluation as a process on this machine.

A process of its own, so that an evaluator that crashes or uses up memory harms nobody else. What it
measured goes to the object store; here only how it ended is of interest.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracks_dagster.evals.ports import EvalOutcome, EvalSpec
from tracks_dagster.processes import warm
from tracks_dagster.processes.process import (
    find_process,
    known_process,
    now_text,
    worker_environment,
    write_json,
    write_process,
)
from tracks_dagster.projects.project import has_function
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import ENV_CACHE
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.text.redact import Redact, redact

EVALUATOR = "tracks_dagster.training.evaluate"
EVAL_S_MAX = 3600.0  # of an eval that names no limit of its own
MESSAGE_LINES_MAX = 20
PID_FILE = "eval.pid"  # of the evaluator: found where its run worker has died
END_S_MAX = 20.0
POLL_S = 0.05
TAIL_BYTES_MAX = 64 * 1024  # of what it wrote to stderr


class LocalEvaluator:
    """Implements `ports.Evaluator`. work: where the spec's file lies while the process runs.

    of_family: turns an eval of a model family, which has no program, into that of its example.
    warm_address: of a warm parent for gangs, which this uses where one listens.
    """

    def __init__(
        self,
        work: Path,
        *,
        clean: Redact = redact,
        of_family: Callable[[EvalSpec], EvalSpec] = lambda spec: spec,
        warm_address: Path | None = None,
    ) -> None:
        self._work = work
        self._clean = clean
        self._of_family = of_family
        self._warm_address = warm_address

    @contextmanager
    def alone(self, result_key: str) -> Iterator[bool]:
        """Hold the lock of that evaluation; the kernel frees it, whatever happens to this process."""
        folder = self._folder(result_key)
        path = folder.with_suffix(".lock")
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            lock = path.open("w")
        except OSError as error:
            raise GangError(f"Cannot lock an evaluation below {self._work}: {error}.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            # Its last holder removed the file after this one was opened: there may be a newer one.
            if not (path.exists() and path.stat().st_ino == os.fstat(lock.fileno()).st_ino):
                yield False
                return
            try:
                _clear(folder)
                yield True
            finally:
                path.unlink()

    def run(self, spec: EvalSpec) -> EvalOutcome:
        """Evaluate within the time limit. Raises GangError when no process can be started."""
        started_at, spec = now_text(), self._of_family(spec)
        folder = self._folder(spec.result_key)
        try:
            folder.mkdir(parents=True)
            path = folder / "spec.json"
            write_json(path, to_json(spec))
            exit_code, text = self._run(path, spec)
        except OSError as error:
            raise GangError(f"Cannot start an evaluator below {self._work}: {error}.") from error
        finally:
            _clear(folder)
        lines = self._clean(text).strip().splitlines()
        return EvalOutcome(
            exit_code=exit_code,
            message="\n".join(lines[-MESSAGE_LINES_MAX:]),
            started_at=started_at,
            finished_at=now_text(),
        )

    def _folder(self, result_key: str) -> Path:
        return self._work / f"eval-{sha256_hex(result_key.encode())[:16]}"

    def _run(self, path: Path, spec: EvalSpec) -> tuple[int | None, str]:
        """Return (exit code or None, what it wrote to stderr). Whatever it started ends with it."""
        limit_s = EVAL_S_MAX if spec.timeout_s is None else spec.timeout_s
        with (path.parent / "stderr").open("w+b") as written:
            child = self._start(path, spec, written.fileno())
            how, is_over = "", False
            try:
                if (process := find_process(child.pid)) is not None:
                    write_process(path.parent / PID_FILE, process)
                is_over = _has_ended(child, limit_s)
                code = child.poll()
            finally:
                _end_group(child)
            if not is_over:
                where = "; timeout: of the eval in tracks.yaml sets it" if spec.program else ""
                how = f"\nended after its time limit of {limit_s:g} s{where}"
            written.seek(max(0, written.seek(0, os.SEEK_END) - TAIL_BYTES_MAX))
            text = written.read().decode("utf-8", errors="replace") + how
        if code is not None and code < 0:
            return None, f"{text}\nended by signal {-code}"
        return code, text

    def _start(
        self, path: Path, spec: EvalSpec, errors: int
    ) -> subprocess.Popen[bytes] | warm.Child:
        """Start the evaluator as the leader of a group; it is forked where a warm parent listens."""
        words = ["-m", EVALUATOR, str(path)]
        environment = {**worker_environment(), ENV_CACHE: str(self._work.parent / "cache")}
        environment |= {"PYTHONUNBUFFERED": "1", **spec.environment}
        interpreter = _interpreter(spec)
        if self._warm_address is not None:
            address = warm.at_interpreter(self._warm_address, interpreter)
            start = warm.Start(
                words=words, cwd=str(Path.cwd()), environment=environment, leads_session=True
            )
            with Path(os.devnull).open("wb") as nowhere:
                child = warm.ask(address, start, nowhere.fileno(), errors, python=interpreter)
            if child is not None:
                return child
        return subprocess.Popen(
            [interpreter, *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            process_group=0,
        )


def _has_ended(child: subprocess.Popen[bytes] | warm.Child, limit_s: float) -> bool:
    """Wait until the evaluator has ended, for at most `limit_s`; whether it has."""
    if isinstance(child, subprocess.Popen):
        with suppress(subprocess.TimeoutExpired):
            child.wait(limit_s)
        return child.poll() is not None
    give_up_at = time.monotonic() + limit_s
    while child.poll() is None and not (child.is_orphan and find_process(child.pid) is None):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(POLL_S)
    return True


def _interpreter(spec: EvalSpec) -> str:
    """Return what runs the evaluator: the eval's own interpreter, for its file to be imported by."""
    program = spec.program
    is_own = program is not None and program.python is not None and has_function(program.entry)
    return program.python if is_own and program and program.python else sys.executable


def _clear(folder: Path) -> None:
    """End what lives of an evaluation whose run worker is gone, and remove its folder."""
    left = known_process(folder / PID_FILE)
    give_up_at = time.monotonic() + END_S_MAX
    while left is not None and (members := left.group):
        if time.monotonic() > give_up_at:
            raise GangError(
                f"Cannot end the evaluator in {folder}: processes {members} still live {END_S_MAX:g} s "
                "after SIGKILL (a device or file system that does not answer?)."
            )
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    if folder.exists():
        shutil.rmtree(folder)


def _end_group(child: subprocess.Popen[bytes] | warm.Child) -> None:
    """End the evaluator and what it started; one that has ended by itself leaves nothing."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        if child.poll() is None:  # it has not come to lead a group yet
            child.kill()
    child.wait()
