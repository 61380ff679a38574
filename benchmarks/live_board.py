"""What the board costs with 200 open runs of 64 ranks: seconds a page, memory, requests to the store.

A process of its own serves the pages of a store in a folder and asks for them, as a browser would; each
read of the store is counted. The journals are a step a second, 400 steps long, with a line of all ranks
every 5 steps. `first` is the first page of a process that has read nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

RUNS, RANKS, STEPS = 200, 64, 400
READ_S_MAX = 120.0  # until the journals of all runs were read
PAGE_S_MAX = 60.0
REFRESHES = 5

AT_MOST = {
    "live_board_fleet_first_s": 1.0,
    "live_board_fleet_s": 1.0,
    "live_board_fleet_kb": 150.0,
    "live_board_run_first_s": 1.0,
    "live_board_run_s": 1.0,
    "live_board_compare_s": 1.0,
    "live_board_memory_mb": 300.0,
    "live_board_requests_of_a_run_in_the_fleet": 4.0,
    "live_board_requests_of_a_run_page": 23.0,  # 5, and 6 for the three journals in each of 3 readings
}
WHY = {
    **dict.fromkeys(AT_MOST, "the machine was busy"),
    "live_board_requests_of_a_run_in_the_fleet": "a run was read again",
    "live_board_fleet_kb": "a row of the fleet grew: it has 750 bytes",
    "live_board_memory_mb": "journals or pictures are kept",
}


def run() -> dict[str, float]:
    """Return the figures; raises CalledProcessError where the process fails."""
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.live_board", folder, "make"],
            stdin=subprocess.DEVNULL,
            check=True,
        )
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.live_board", folder, "look"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
        )
        found: dict[str, float] = json.loads(done.stdout)
        return found


def make(home: Path) -> None:
    """Make the home, in a process of its own: what that takes is not memory of the board."""
    from tests.live_runs import LiveRun
    from tracks_dagster.settings import Settings
    from tracks_dagster.wiring import build

    app = build(Settings.from_environment({"TRACKS_HOME": str(home)}))
    now = datetime.now(UTC)
    for run_id in run_ids():
        LiveRun(app.store, run_id, now=now, ranks=RANKS, steps=STEPS).write()
    app.projector.scan()


def run_ids() -> Iterator[str]:
    """Yield the names of the runs."""
    return (f"run-{number:03d}" for number in range(RUNS))


def look(home: Path) -> dict[str, float]:
    """Serve the board of this home and look at it; return the figures."""
    import uvicorn

    from tracks_dagster.settings import Settings
    from tracks_dagster.wings.watch.board.effects.serving import guarded, listen
    from tracks_dagster.wings.watch.board.effects.sources import FLEET_FRESH_S, FRESH_S, Sources

    count = count_requests()
    sources = Sources(Settings.from_environment({"TRACKS_HOME": str(home)}))
    listener = listen(0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        guarded(sources),
        http="h11",
        loop="asyncio",
        lifespan="off",
        log_level="warning",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    found = {"live_board_fleet_first_s": timed(address)}
    began_at = time.monotonic()
    while len(sources.fleet().readings) < RUNS:
        if time.monotonic() - began_at > READ_S_MAX:
            raise RuntimeError(f"{len(sources.fleet().readings)} of {RUNS} runs were read")
        time.sleep(0.1)
    found["live_board_fleet_all_read_s"] = time.monotonic() - began_at
    with urlopen(address, timeout=PAGE_S_MAX) as reply:
        found["live_board_fleet_kb"] = len(reply.read()) / 1000
    time.sleep(FLEET_FRESH_S)
    count.clear()
    seconds = []
    for _ in range(REFRESHES):
        seconds.append(timed(address))
        time.sleep(FLEET_FRESH_S)
    found["live_board_fleet_s"] = sorted(seconds)[REFRESHES // 2]
    found["live_board_requests_of_a_run_in_the_fleet"] = count.total() / REFRESHES / RUNS
    one = f"{address}/runs/{next(run_ids())}"
    found["live_board_run_first_s"] = timed(one)
    time.sleep(FRESH_S)
    count.clear()
    found["live_board_run_s"] = timed(one)
    found["live_board_requests_of_a_run_page"] = float(count.total())
    both = "&".join(f"run={run_id}" for run_id, _ in zip(run_ids(), range(2), strict=False))
    found["live_board_compare_s"] = timed(f"{address}/compare?{both}")
    found["live_board_memory_mb"] = peak_mb()
    server.should_exit = True
    thread.join(10)
    sources.close()
    return found


def count_requests() -> Counter[str]:
    """Count every read of a store in a folder from now on, by its kind."""
    from tracks_dagster.stores.local import LocalStore

    found: Counter[str] = Counter()
    for name in ("get", "read_into", "list", "folders"):
        counted(LocalStore, name, found)
    return found


def counted(kind: type, name: str, found: Counter[str]) -> None:
    """Count the calls of a method."""
    method = getattr(kind, name)

    def call(*arguments: object, **named: object) -> object:
        found[name] += 1
        return method(*arguments, **named)

    setattr(kind, name, call)


def timed(address: str) -> float:
    """Return how long a page takes."""
    began_at = time.perf_counter()
    with urlopen(address, timeout=PAGE_S_MAX) as reply:
        reply.read()
    return time.perf_counter() - began_at


def peak_mb() -> float:
    """Return the most memory that this process had."""
    status = Path("/proc/self/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    place, what = Path(sys.argv[1]) / "home", sys.argv[2]
    if what == "make":
        make(place)
    else:
        print(json.dumps(look(place)))
