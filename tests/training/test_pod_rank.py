"""What stands between torchrun and one rank: whose signals count."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tracks_dagster.training.pods.rank_files import read_ranks

WAIT_S_MAX = 60.0
RANK = "import pathlib, time; pathlib.Path('ready').touch(); time.sleep(600)"


def until(happened: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WAIT_S_MAX
    while not happened():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def test_only_torchrun_s_sigterm_ends_a_rank_at_once_no_matter_who_else_sends_one(
    tmp_path: Path,
) -> None:
    given = {"command": [sys.executable, "-c", RANK], "folder": str(tmp_path), "environment": {}}
    (tmp_path / "pod.json").write_text(json.dumps({"first_rank": 0, "ranks": 1, **given}))
    words = [sys.executable, "-m", "tracks_dagster.training.pods.rank", str(tmp_path), "0"]
    with subprocess.Popen(words, env={**os.environ, "WORLD_SIZE": "2", "RANK": "0"}) as between:
        until((tmp_path / "ready").exists)
        # As a site's Slurm does, which signals every process of a step.
        subprocess.run(["kill", "-TERM", str(between.pid)], check=True)
        time.sleep(0.5)
        assert between.poll() is None
        assert not read_ranks(tmp_path, (0,))[0].has_ended
        os.kill(between.pid, signal.SIGTERM)
        assert between.wait(WAIT_S_MAX) == 128 + signal.SIGKILL
    assert read_ranks(tmp_path, (0,))[0].signal == signal.SIGKILL
