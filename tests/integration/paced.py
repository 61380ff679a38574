"""Runs of two ranks that last as long as a test needs them to, and what must hold of them after."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.homes import COMMAND_S_MAX, Home

TRAINER = Path(__file__).with_name("paced_trainer.py")
SCRIPT = ("--trainer", str(TRAINER), "--json")


@contextmanager
def paced(home: Home, run_id: str, *, steps: int, pace_s: float) -> Iterator[subprocess.Popen[str]]:
    """Give `tracks run` of two ranks whose steps take at least `pace_s`; it is over at the end."""
    command = start_paced(home, run_id, steps=steps, pace_s=pace_s)
    try:
        yield command
    finally:
        for _ in range(2):  # the second ends everything at once
            if command.poll() is None:
                command.terminate()
                time.sleep(1.0)
        command.wait(timeout=COMMAND_S_MAX)


def start_paced(home: Home, run_id: str, *, steps: int, pace_s: float) -> subprocess.Popen[str]:
    """Start the same and return at once."""
    size = ("--ranks", "2", "--steps", str(steps), "--checkpoint-every", "20")
    config = ("--seed", "7", "--set", f"pace_s={pace_s}", "--set", "global_batch=24")
    intent = ("--intent", "A run of the tests.")
    return home.start("run", "--run-id", run_id, *intent, *size, *config, *SCRIPT)


def step_of(home: Home, run_id: str) -> int:
    """Return the newest step of a run that its journals tell; 0 before there is one."""
    line = home.line(run_id)
    return 0 if line is None or line.step is None else line.step
