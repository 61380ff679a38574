"""What a tick of the watch over health costs with 200 open runs of 64 ranks.

The tick is that of the sensor, eight runs at a time, over a store in a folder and the embedded ledger.
Measured are seconds, those of the processor, and reads of the store a run: of the first tick of a
process, which goes back in each journal, and of later ones, between which every run trains 15 steps.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta

from benchmarks.live_board import RANKS, RUNS, STEPS, count_requests, run_ids
from tracks_dagster.ledger.effects.deciding import decide_due
from tracks_dagster.ledger.effects.ticks import AT_ONCE_MAX, PART_S_MAX, TimeSlice
from tracks_dagster.settings import Settings
from tracks_dagster.wings.watch.health.effects.watch import WatchHealth
from tracks_dagster.wiring import build

TICKS, STEPS_BETWEEN = 3, 15
ALL_S_MAX = 600.0  # of a tick here: the sensor's is cut after PART_S_MAX, and the next one goes on

AT_MOST = {
    "live_watch_s": PART_S_MAX,
    "live_watch_requests_of_a_run": 4.0,
}
WHY = {
    "live_watch_s": "a tick is cut, and a run is looked at in every second one only",
    "live_watch_requests_of_a_run": "a journal is read again",
}


def run() -> dict[str, float]:
    """Return what the ticks cost; raises AssertionError where one did not come to every run."""
    from tests.live_runs import LiveRun

    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        app = build(Settings.from_environment({"TRACKS_HOME": folder}))
        now = datetime.now(UTC)
        runs = [
            LiveRun(app.store, run_id, now=now, ranks=RANKS, steps=STEPS).write()
            for run_id in run_ids()
        ]
        app.projector.scan()
        watch, world = WatchHealth(), app.world(app.policy)
        count = count_requests()

        def tick() -> tuple[float, float, float]:
            count.clear()
            app.tracks.now = lambda: now
            began_s, cpu_s = time.perf_counter(), time.process_time()
            found = decide_due(
                world, (watch,), TimeSlice(at_once=AT_ONCE_MAX, seconds_max=ALL_S_MAX)
            )
            assert (found.problems, found.cut_at) == ((), None), found.problems[:1]
            took_s = time.perf_counter() - began_s
            return took_s, time.process_time() - cpu_s, count.total() / RUNS

        first = tick()
        later = []
        for _ in range(TICKS):
            now += timedelta(seconds=STEPS_BETWEEN)
            for each in runs:
                each.grow(STEPS_BETWEEN)
            later.append(tick())
        figures = ("s", "cpu_s", "requests_of_a_run")
        usual = (statistics.median(each) for each in zip(*later, strict=True))
        return {
            **{f"live_watch_first_{name}": each for name, each in zip(figures, first, strict=True)},
            **{f"live_watch_{name}": each for name, each in zip(figures, usual, strict=True)},
        }
