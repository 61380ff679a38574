"""What an idle home costs: `tracks up` with one finished run, and a bare Dagster daemon beside it.

Both wait for nothing, side by side in one span of time. Counted are the seconds of the processor that
all their processes used, those that ended meanwhile included, and the memory that they hold: `pss`
shares a page among those that map it, `rss` counts it once for each of them. So a busy machine changes
little. The bare daemon has no sensor, no schedule and no web server.

`run_many` measures the same of homes with 200 projects: `tracks up`, and Dagster's own daemon with
`build_defs` of them, as a team has it, at ticks every 5 and every 30 seconds.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from benchmarks.start import PROJECTS, add_projects

IDLE_S = 90.0  # the span in which they are measured
SETTLE_S = 180.0  # before it: what a start leaves to do is over, and warm parents have ended
READY_S_MAX = 300.0
RUN_S_MAX = 600.0
END_S_MAX = 60.0
POLL_S = 0.5
SCRIPT = """\
from tracks_dagster.training import attempt
import torch

with attempt.join() as a:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    a.register(model=model, optimizer=optimizer)
    for step, _ in a.steps(range(4), until=4):
        a.report(step, loss=1.0 / step)
"""
BARE = "from dagster import Definitions\n\ndefs = Definitions()\n"
TEAM = """\
from pathlib import Path
from tracks_dagster.factory import build_defs

defs = build_defs(sorted(Path({folders!r}).iterdir()), tick_s={tick_s})
"""
TICKS_S = (5, 30)
BARE_INSTANCE = "telemetry: {enabled: false}\nnux: {enabled: false}\n"

AT_MOST = {
    "idle_percent_of_a_core": 5.0,
    "idle_pss_mb": 450.0,
    "idle_200_projects_percent_of_a_core": 5.0,
}
WHY = {
    "idle_percent_of_a_core": "a run of this home was open, its code changed meanwhile, or "
    "the span held a quarter of an hour, at which checkpoints are collected",
    "idle_pss_mb": "a page of the UI was open, or a warm parent has not ended yet",
    "idle_200_projects_percent_of_a_core": "as of idle_percent_of_a_core",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What some processes have used so far, and hold now."""

    cpu_s: float
    pss_mb: float
    rss_mb: float
    count: int


def run() -> dict[str, float]:
    """Return per cent of a core and megabytes, of an idle home and of a bare daemon."""
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder:
        home, bare = Path(folder) / "home", Path(folder) / "bare"
        finish_a_run(home)
        with up(home), own_daemon(bare, BARE):
            return measured({"idle": home, "idle_bare_daemon": bare})


def run_many() -> dict[str, float]:
    """Return the same of 200 projects: `tracks up`, and Dagster's own daemon by its ticks."""
    with tempfile.TemporaryDirectory(prefix="tracks-bench-") as folder, ExitStack() as running:
        many = Path(folder) / "many"
        add_projects(many, PROJECTS)
        finish_a_run(many)
        running.enter_context(up(many))
        homes = {f"idle_{PROJECTS}_projects": many}
        for tick_s in TICKS_S:
            team = Path(folder) / f"team-{tick_s}"
            text = TEAM.format(folders=str(many / "folders"), tick_s=tick_s)
            running.enter_context(own_daemon(team, text))
            homes[f"idle_{PROJECTS}_projects_own_daemon_{tick_s}_s"] = team
        return measured(homes)


def measured(homes: Mapping[str, Path]) -> dict[str, float]:
    """Return what each home used in one span, by the name of its figures."""
    time.sleep(SETTLE_S)
    before = {name: use_of(home) for name, home in homes.items()}
    time.sleep(IDLE_S)
    after = {name: use_of(home) for name, home in homes.items()}
    found: dict[str, float] = {}
    for name in homes:
        used_s = after[name].cpu_s - before[name].cpu_s
        if used_s < 0.0:
            raise RuntimeError(f"{name}: a process ended whose seconds no other one has taken over")
        found |= {
            f"{name}_percent_of_a_core": 100.0 * used_s / IDLE_S,
            f"{name}_pss_mb": after[name].pss_mb,
            f"{name}_rss_mb": after[name].rss_mb,
            f"{name}_processes": float(after[name].count),
        }
    return found


def finish_a_run(home: Path) -> None:
    """Train four steps below `home`; raises CalledProcessError when that fails."""
    script = home.parent / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "tracks_dagster", "run", "--trainer", str(script)]
    subprocess.run(
        [*command, "--run-id", "idle", "--intent", "Be finished."],
        env={**os.environ, "TRACKS_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=RUN_S_MAX,
        check=True,
    )


@contextmanager
def up(home: Path) -> Iterator[None]:
    """Hold `tracks up` of that home; it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tracks_dagster", "up", "--port", str(port)]
    with _process(command, {"TRACKS_HOME": str(home)}) as process:
        give_up_at = time.monotonic() + READY_S_MAX
        while True:
            try:
                with urlopen(f"http://127.0.0.1:{port}/server_info", timeout=5):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > give_up_at:
                    raise RuntimeError(f"tracks up of {home} does not answer") from None
                time.sleep(POLL_S)
        yield


@contextmanager
def own_daemon(folder: Path, definitions: str) -> Iterator[None]:
    """Hold Dagster's own daemon on an instance and a code location of these definitions."""
    folder.mkdir()
    (folder / "dagster.yaml").write_text(BARE_INSTANCE)
    (folder / "location.py").write_text(definitions)
    command = [sys.executable, "-m", "dagster._daemon", "run", "-f", str(folder / "location.py")]
    home = {"TRACKS_HOME": str(folder / "home"), "TRACKS_DAGSTER": ""}
    with _process(command, {"DAGSTER_HOME": str(folder), **home}):
        yield


@contextmanager
def _process(command: list[str], variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Hold a process; at the end it gets SIGTERM, and SIGKILL where that does not end it."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def use_of(folder: Path) -> Use:
    """Return what the processes use whose environment names `folder`."""
    of_folder = f"={folder}\0".encode()
    cpu_s = pss_kb = rss_kb = count = 0.0
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or of_folder not in (process / "environ").read_bytes():
                continue
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            memory = (process / "smaps_rollup").read_text()
        except OSError:
            continue  # it ended, or is another user's
        # utime, stime and those of the children that ended; proc_pid_stat(5)
        cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        pss_kb += _kb("Pss", memory)
        rss_kb += _kb("Rss", memory)
        count += 1
    return Use(
        cpu_s=cpu_s, pss_mb=pss_kb * 1024 / 1e6, rss_mb=rss_kb * 1024 / 1e6, count=int(count)
    )


def _kb(name: str, memory: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", memory, re.MULTILINE)
    return 0 if found is None else int(found[1])
