"""What starting costs: `tracks status` and loading the code location, beside a bare Python.

In seconds of the processor, own and kernel's, so that a busy machine changes little. The commands run
in turns, each in a fresh process; the least of a few counts, when caches were full.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence

ROUNDS = 3  # of each
START_S_MAX = 300.0

BARE = "bare_python_s"
COMMANDS = {
    BARE: ("-c", "pass"),
    "status": ("-c", "from tracks_dagster.cli import main; main(['status'])"),
    "code_location": ("-c", "import tracks_dagster.definitions"),
    "trainer": ("-c", "from tracks_dagster.training import attempt"),
    "bare_torch": ("-c", "import torch"),
}


def run() -> dict[str, float]:
    """Return how many bare starts of Python each start takes, and the seconds of a bare one."""
    seen: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as home:
        for _ in range(ROUNDS):
            for name, arguments in COMMANDS.items():
                seen[name].append(_cpu_s(arguments, home))
    least = {name: min(seconds) for name, seconds in seen.items()}
    bare_s = least.pop(BARE)
    return {BARE: bare_s} | {f"{name}_to_bare_python": s / bare_s for name, s in least.items()}


def _cpu_s(arguments: Sequence[str], home: str) -> float:
    """Return the processor's seconds of one Python; raises CalledProcessError when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "TRACKS_HOME": home},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=START_S_MAX,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
