"""Runs one evaluation as a process on this machine.

A process of its own, so that an evaluator that crashes or uses up memory harms nobody else. What it
measured goes to the object store; here only how it ended is of interest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tracks_dagster.attempts.effects.local.processes import (
    now_text,
    worker_environment,
    write_json,
)
from tracks_dagster.data.ports import EvalOutcome, EvalSpec
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.text.redact import Redact, redact

EVALUATOR = "tracks_dagster.training.evaluate"
EVAL_S_MAX = 3600.0
MESSAGE_LINES_MAX = 20


class LocalEvaluator:
    """Implements `ports.Evaluator`. work: where the spec's file lies while the process runs."""

    def __init__(self, work: Path, *, clean: Redact = redact, time_limit_s: float = EVAL_S_MAX):
        self._work = work
        self._clean = clean
        self._time_limit_s = time_limit_s

    def run(self, spec: EvalSpec) -> EvalOutcome:
        """Evaluate within the time limit. Raises GangError when no process can be started."""
        started_at = now_text()
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="eval-", dir=self._work) as folder:
                path = Path(folder) / "spec.json"
                write_json(path, to_json(spec))
                exit_code, text = self._run(path)
        except OSError as error:
            raise GangError(f"Cannot start an evaluator below {self._work}: {error}.") from error
        lines = self._clean(text).strip().splitlines()
        return EvalOutcome(
            exit_code=exit_code,
            message="\n".join(lines[-MESSAGE_LINES_MAX:]),
            started_at=started_at,
            finished_at=now_text(),
        )

    def _run(self, spec: Path) -> tuple[int | None, str]:
        """Return (exit code or None, what it wrote to stderr)."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", EVALUATOR, str(spec)],
                env=worker_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=self._time_limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            written = (error.stderr or b"").decode("utf-8", errors="replace")
            return None, f"{written}\nended after its time limit of {self._time_limit_s:g} s"
        text = done.stderr.decode("utf-8", errors="replace")
        if done.returncode < 0:
            return None, f"{text}\nended by signal {-done.returncode}"
        return done.returncode, text
