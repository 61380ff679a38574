"""The main job as `./run` starts it: the whole story on an empty home, in minutes, leaving nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.homes import COMMAND_S_MAX, embedded, losses

pytestmark = [pytest.mark.full, pytest.mark.timeout(2 * COMMAND_S_MAX)]


def processes_of(home: Path) -> list[str]:
    """Return the command lines of all processes that work on `home`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has just gone, or is not ours
            continue
        if f"TRACKS_HOME={home}".encode() in environment:
            found.append(command)
    return found


def test_the_main_job_tells_its_story_and_leaves_nothing_running(tmp_path: Path) -> None:
    home = embedded(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tracks_dagster.main_job"],
        env={**os.environ, **home.variables},
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for expected in (
        "on a CPU build that is how it is played",
        "preempted",
        "gpu_oom",
        "same losses over 7 steps",
        "retried by retry_oom",
        "promoted to 'candidate'",
    ):
        assert expected in done.stdout
    report = Path(done.stdout.split("Report: ")[1].splitlines()[0])
    assert [step for step, _ in losses(home, report.stem)] == list(range(1, 121))
    assert "<svg" in report.read_text()
    assert processes_of(home.settings.home) == []
    assert home.call("fsck").returncode == 0
