"""What starting costs: `tracks status` and loading the code location, beside a bare Python.

And what 200 projects add to that load. In seconds of the processor, own and kernel's, so that a busy
machine changes little. The commands run in turns, each in a fresh process; the least of a few counts,
when caches were full.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROUNDS = 3  # of each
START_S_MAX = 300.0

PROJECTS = 200
PROJECT = """\
name: {name}
entry: train.py --lr={{lr}}
dataset: data-{number}
evals: {{heldout: evaluate.py}}
promotion: {{eval: heldout, metric: loss, at_most: 5.5}}
schedule: {{cron: "0 3 * * *"}}
config: {{steps: 300, lr: 0.003, global_batch: 64, seed: 7, width: 128, depth: 4, dropout: 0.1}}
"""
LOAD = "from tracks_dagster.definitions import defs; defs.get_repository_def()"

BARE, LOCATION, MANY = "bare_python_s", "code_location", "200_projects"
COMMANDS = {
    BARE: ("-c", "pass"),
    "status": ("-c", "from tracks_dagster.cli import main; main(['status'])"),
    LOCATION: ("-c", LOAD),
    MANY: ("-c", LOAD),
    "trainer": ("-c", "from tracks_dagster.training import attempt"),
    "bare_torch": ("-c", "import torch"),
}


AT_MOST = {"200_projects_to_code_location": 3.0, "200_projects_s": 5.0}
WHY = {
    "200_projects_to_code_location": "something is done for each project again",
    "200_projects_s": "the same, or this machine is slower than most",
}


def run() -> dict[str, float]:
    """Return how many bare starts of Python each start takes, and the seconds of a bare one."""
    seen: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        home, many = Path(folder) / "home", Path(folder) / "many"
        add_projects(many, PROJECTS)
        for _ in range(ROUNDS):
            for name, arguments in COMMANDS.items():
                seen[name].append(_cpu_s(arguments, many if name == MANY else home))
    least = {name: min(seconds) for name, seconds in seen.items()}
    bare_s, many_s = least.pop(BARE), least.pop(MANY)
    found = {f"{name}_to_bare_python": s / bare_s for name, s in least.items()}
    of_many = {f"{MANY}_s": many_s, f"{MANY}_to_{LOCATION}": many_s / least[LOCATION]}
    return {BARE: bare_s, **found, **of_many}


def add_projects(home: Path, count: int) -> None:
    """Add `count` projects, each with a dataset, an eval, a rule and a schedule, to a new home."""
    (home / "projects").mkdir(parents=True)
    for number in range(count):
        name = f"project-{number:03d}"
        folder = home / "folders" / name
        folder.mkdir(parents=True)
        (folder / "tracks.yaml").write_text(PROJECT.format(name=name, number=number))
        (folder / "train.py").write_text("")
        (folder / "evaluate.py").write_text("def evaluate(*_): ...\n")
        (home / "projects" / name).symlink_to(folder)


def _cpu_s(arguments: Sequence[str], home: Path) -> float:
    """Return the processor's seconds of one Python; raises CalledProcessError when it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "TRACKS_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=START_S_MAX,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
