"""A Dagster job that a run worker of these tests runs: it waits until it is asked to end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dagster import job, op

WAIT_S_MAX = 240.0  # longer than a test waits for what it does meanwhile
ENV_FLAG = "WORKER_MAY_END"  # a file; the op ends when it is there


@op
def waits() -> None:
    """Wait for the file."""
    give_up_at = time.monotonic() + WAIT_S_MAX
    while not Path(os.environ[ENV_FLAG]).exists():
        if time.monotonic() > give_up_at:
            raise TimeoutError("Nobody let the op end.")
        time.sleep(0.05)


@job
def waiting_job() -> None:
    """One op, in the run worker's own process tree."""
    waits()
