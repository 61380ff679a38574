"""Whole `tracks` commands in fresh processes, timed: as a person or a cron job would call them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WRONG_USE = 2
COMMAND_S_MAX = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """One command. wall_s: with Python's start and end; inside_s: without; cpu_s: of the processor,
    with Python's start; peak_mb: of its memory."""

    wall_s: float
    inside_s: float
    cpu_s: float
    peak_mb: float


def time_command(arguments: Sequence[str], environment: Mapping[str, str], *, rounds: int) -> Took:
    """Return the medians of `rounds` runs of a command, and its greatest peak.

    Raises RuntimeError with its complaint when it was used in a wrong way.
    """
    took = [_once(arguments, environment) for _ in range(rounds)]
    return Took(
        wall_s=statistics.median(each.wall_s for each in took),
        inside_s=statistics.median(each.inside_s for each in took),
        cpu_s=statistics.median(each.cpu_s for each in took),
        peak_mb=max(each.peak_mb for each in took),
    )


def _once(arguments: Sequence[str], environment: Mapping[str, str]) -> Took:
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        out = Path(folder) / "took.json"
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.timed_command", str(out), *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
        )
        wall_s = time.perf_counter() - started
        if done.returncode >= WRONG_USE or not out.exists():
            problem = f"tracks {' '.join(arguments)} ended with {done.returncode}: {done.stderr}"
            raise RuntimeError(problem)
        measured = json.loads(out.read_text())
    return Took(wall_s=wall_s, **measured)
