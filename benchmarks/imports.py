"""A cluster's history into a new home: one million rows of sacct, as `-D -P` prints them, SQLite.

Of each job a row, and one for its batch script, its extern step and one srun: 250 000 attempts. A
process of its own imports them, so that its memory is that of an import.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

ROWS = 1_000_000
ROWS_OF_JOB = 4
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
STATES = (
    *(("COMPLETED", "0:0"),) * 60,
    *(("FAILED", "1:0"),) * 25,
    *(("CANCELLED by 1001", "0:0"),) * 8,
    *(("TIMEOUT", "0:0"), ("NODE_FAIL", "0:0"), ("OUT_OF_MEMORY", "0:125"), ("PREEMPTED", "0:0")),
)
HEADER = (
    "JobIDRaw|JobID|JobName|User|Account|Partition|Cluster|State|ExitCode|Submit|Start|End|ElapsedRaw|"
    "NNodes|AllocTRES|NodeList|WorkDir|SubmitLine"
)
TRES = "billing=32,cpu=32,gres/gpu:a100=8,gres/gpu=8,mem=500G,node=1"

AT_MOST = {"import_s": 300.0, "import_mb": 500.0}
WHY = {
    "import_s": "seconds of a whole import: a busy machine alone may miss it",
    "import_mb": "what an import keeps grows with what it reads",
}


def run(rows: int = ROWS) -> dict[str, float]:
    """Return how long an import takes, in seconds and in seconds of CPU, and its peak of memory."""
    with tempfile.TemporaryDirectory(prefix="tracks-import-") as name:
        folder = Path(name)
        path = folder / "jobs.sacct"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines(rows))
        took = subprocess.run(
            [sys.executable, "-m", "benchmarks.imports", str(path), str(folder / "home")],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    found: dict[str, float] = json.loads(took.stdout)
    return found


def lines(rows: int) -> Iterator[str]:
    """Yield the header and that many rows, the same every time."""
    drawn = random.Random(0)
    yield HEADER
    for job in range(1, rows // ROWS_OF_JOB + 1):
        state, code = drawn.choice(STATES)
        start = BEGIN + timedelta(seconds=10 * job)
        times = f"{start:%Y-%m-%dT%H:%M:%S}|{start:%Y-%m-%dT%H:%M:%S}"
        elapsed = drawn.randrange(1, 86_400)
        end = f"{start + timedelta(seconds=elapsed):%Y-%m-%dT%H:%M:%S}|{elapsed}|1|{TRES}"
        node = f"gpu{drawn.randrange(512):03d}"
        name = f"train-{drawn.randrange(300)}"
        who = f"user{drawn.randrange(80)}|team{drawn.randrange(9)}|gpu|c"
        submitted = f"/home/x/{name}|sbatch --nodes=1 --gres=gpu:8 {name}.sh"
        yield f"{job}|{job}|{name}|{who}|{state}|{code}|{times}|{end}|{node}|{submitted}"
        state, _, _ = state.partition(" ")
        for step in ("batch", "extern", "0"):
            yield f"{job}.{step}|{job}.{step}|{step}||x||c|{state}|{code}|{times}|{end}|{node}||"


def _import(path: Path, home: Path) -> dict[str, float]:
    from tracks_dagster.reasons.user_rules import NO_RULES
    from tracks_dagster.settings import Settings
    from tracks_dagster.wings.history.effects.files import LinesOfFile
    from tracks_dagster.wings.history.effects.importing import import_history
    from tracks_dagster.wings.history.slurm import Sacct
    from tracks_dagster.wiring import open_tracks

    tracks = open_tracks(Settings.from_environment({"TRACKS_HOME": str(home)}))
    history = LinesOfFile(system="slurm", path=path, parse=Sacct(zone=UTC).read)
    began, began_cpu = time.monotonic(), time.process_time()
    done = import_history(tracks, history, "slurm", rules=NO_RULES, by="benchmark")
    assert done.bad_count == 0, done.bad[:3]
    return {
        "import_s": time.monotonic() - began,
        "import_cpu_s": time.process_time() - began_cpu,
        "import_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "import_attempts": float(done.new),
    }


if __name__ == "__main__":
    print(json.dumps(_import(Path(sys.argv[1]), Path(sys.argv[2]))))
