"""What it costs to play a queue: 100 000 submissions by the rules of the live queue, in one process.

Each is submitted, decided about, run and torn down; what waits is looked at as the live queue does,
under the shipped policy. A decision costs by what runs and waits: about ten of `acme` run at once on 64
devices, and about 50 shares of `pai` on 16.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.simulation.schedule import play_under
from tracks_dagster.simulation.served import Overheads
from tracks_dagster.simulation.workloads import (
    MEMORY_BYTES,
    Workload,
    acme,
    cluster,
    pai,
)

SUBMISSIONS = 100_000
OVERHEADS = Overheads(bring_up_s=60.0, save_s=10.0, tear_down_s=5.0)
MAKERS: dict[str, Callable[[], Workload]] = {
    "acme": lambda: acme(SUBMISSIONS, seed=0, devices=cluster(8, 8, memory_bytes=MEMORY_BYTES)),
    "pai": lambda: pai(SUBMISSIONS, seed=0, devices=cluster(2, 8, memory_bytes=MEMORY_BYTES)),
}
AT_MOST = {f"play_100000_{name}_s": 60.0 for name in MAKERS}
WHY = dict.fromkeys(AT_MOST, "every decision looks at all that runs and waits; a busy machine")


def run() -> dict[str, float]:
    """Return seconds of the clock, the decisions, and what one took in milliseconds."""
    found: dict[str, float] = {}
    for name, make in MAKERS.items():
        workload = make()
        started_s, cpu_s = time.perf_counter(), time.process_time()
        played = play_under(SchedulingPolicy(), workload, OVERHEADS)
        found |= {
            f"play_100000_{name}_s": time.perf_counter() - started_s,
            f"play_100000_{name}_cpu_s": time.process_time() - cpu_s,
            f"play_{name}_decisions": float(played.decisions),
        }
    return found
