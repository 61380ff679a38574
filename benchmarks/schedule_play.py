"""What it costs to play a queue: 100 000 submissions by the rules of the live queue, in one process.

Each is submitted, decided about, run and torn down; what waits is looked at as the live queue does,
under the shipped policy. A decision costs by what runs and waits: here about ten run at once.
"""

from __future__ import annotations

import time

from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.wings.lab.simulation.schedule import play_under
from tracks_dagster.wings.lab.simulation.served import Overheads
from tracks_dagster.wings.lab.simulation.workloads import MEMORY_BYTES, acme, cluster

SUBMISSIONS = 100_000
OVERHEADS = Overheads(bring_up_s=60.0, save_s=10.0, tear_down_s=5.0)
AT_MOST = {"play_100000_s": 60.0}
WHY = dict.fromkeys(AT_MOST, "every decision looks at all that runs and waits; a busy machine")


def run() -> dict[str, float]:
    """Return seconds of the clock and of the processor, and how often the rules were asked."""
    workload = acme(SUBMISSIONS, seed=0, devices=cluster(8, 8, memory_bytes=MEMORY_BYTES))
    started_s, cpu_s = time.perf_counter(), time.process_time()
    played = play_under(SchedulingPolicy(), workload, OVERHEADS)
    return {
        "play_100000_s": time.perf_counter() - started_s,
        "play_100000_cpu_s": time.process_time() - cpu_s,
        "play_decisions": float(played.decisions),
    }
