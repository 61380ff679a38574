"""Makes skypilot/spot_jobs-VERSION.db by SkyPilot's own functions: no cloud, and a clock of ours.

python -m venv /tmp/sky && /tmp/sky/bin/pip install skypilot aiosqlite greenlet
HOME=/tmp/skyhome /tmp/sky/bin/python tests/wings/history/golden/make_skypilot.py

Nothing of it names a machine or a user.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import sqlite3
import types
from pathlib import Path
from typing import Any

import sky
from sky.backends import backend_utils
from sky.jobs import state
from sky.jobs.state import ManagedJobStatus, RecoverySource

BEGAN_S = 1_767_225_600  # 2026-01-01
NODES = ("node-1", "node-2")
OOM = "CUDA out of memory. Tried to allocate 2 GiB"
PAGE_BYTES = 1024  # it has many tables, of which most are empty

now_s = float(BEGAN_S)


class Clock(dt.datetime):
    """The time that SkyPilot reads."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        """Return it, without a zone as SkyPilot does."""
        return dt.datetime.fromtimestamp(now_s, dt.UTC).replace(tzinfo=None)


def at(minute: float) -> None:
    """Let it be so many minutes after the beginning."""
    global now_s
    now_s = BEGAN_S + 60.0 * minute


async def nothing(_: object) -> None:
    """Called back by SkyPilot."""


def submit(
    name: str, *, tasks: int = 1, accelerators: str | None = "A100:8", nodes: int = 2
) -> tuple[int, str]:
    """Submit a job; return its number and SkyPilot's words for its resources."""
    at(0)
    job = state.set_job_info_without_job_id(
        name=name,
        workspace="nlp",
        entrypoint="sky jobs launch",
        pool=None,
        pool_hash=None,
        user_hash="alice",
    )
    task = sky.Task(name=name, num_nodes=nodes)
    asked = {"accelerators": accelerators} if accelerators else {"cpus": "4+"}
    task.set_resources(sky.Resources(**asked))
    words = backend_utils.get_task_resources_str(task, is_managed_job=True)
    for number in range(tasks):
        own = f"{name}-{number}" if tasks > 1 else name
        state.set_pending(job, number, own, words, "{}", eligible_at=now_s)
    return job, words


async def start(
    job: int, words: str, minute: float, task: int = 0, nodes: tuple[str, ...] = NODES
) -> None:
    """Let a task start, and run ten minutes later."""
    at(minute)
    await state.set_starting_async(job, task, "sky-2026", now_s, words, {}, nothing)
    at(minute + 10)
    place = {"cloud": "GCP", "region": "us-central1", "zone": "us-central1-a"}
    state.set_job_infra(job, **place, current_node_names=list(nodes))
    await state.set_started_async(job, task, now_s, nothing)


async def main() -> None:
    """Play eight jobs."""
    job, words = submit("train")  # preempted, recovered elsewhere; then its controller restarted
    await start(job, words, 0)
    at(60)
    await state.set_recovering_async(job, 0, False, nothing)
    at(65)
    await state.set_backoff_pending_async(job, 0)
    at(68)
    await state.set_restarting_async(job, 0, recovering=True)
    at(70)
    state.set_job_infra(job, current_node_names=["node-1", "node-3"])
    await state.set_recovered_async(job, 0, now_s, nothing)
    at(90)
    restart = RecoverySource.RESTART
    await state.set_recovering_async(job, 0, True, nothing, recovery_source=restart)
    at(100)
    await state.set_recovered_async(job, 0, now_s, nothing)
    at(180)
    await state.set_succeeded_async(job, 0, now_s, nothing)

    job, words = submit("fails")  # is restarted on errors, and fails again
    await start(job, words, 0)
    at(30)
    await state.set_recovering_async(job, 0, False, nothing, user_job_failure_reason=OOM)
    at(40)
    await state.set_recovered_async(job, 0, now_s, nothing)
    at(60)
    await state.set_failed_async(job, 0, ManagedJobStatus.FAILED, OOM)

    job, words = submit("cancelled")
    await start(job, words, 0)
    at(60)
    await state.set_cancelling_async(job, nothing)
    await state.set_cancelled_async(job, nothing)

    job, words = submit("runs")
    await start(job, words, 0)
    submit("waits")
    job, _ = submit("cancelled-waiting")
    at(5)
    state.set_pending_cancelled(job)

    job, words = submit("nowhere")
    at(1)
    await state.set_starting_async(job, 0, "sky-2026", now_s, words, {}, nothing)
    at(20)
    none = "Failed to provision all possible launchable resources."
    await state.set_failed_async(job, 0, ManagedJobStatus.FAILED_NO_RESOURCE, none)

    job, words = submit("pipeline", tasks=2, accelerators=None, nodes=1)
    await start(job, words, 0, 0, ("node-9",))
    at(30)
    await state.set_succeeded_async(job, 0, now_s, nothing)
    await start(job, words, 31, 1, ("node-9",))
    at(50)
    await state.set_failed_async(job, 1, ManagedJobStatus.FAILED, "ValueError: x is not y")


if __name__ == "__main__":
    state.datetime = types.SimpleNamespace(datetime=Clock)
    state.time = types.SimpleNamespace(time=lambda: now_s)
    asyncio.run(main())
    made = Path(__file__).parent / "skypilot" / f"spot_jobs-{sky.__version__}.db"
    made.unlink(missing_ok=True)
    with sqlite3.connect(Path.home() / ".sky" / "spot_jobs.db") as stored:
        stored.execute("pragma wal_checkpoint(truncate)")
        stored.execute("vacuum into ?", (str(made),))
    with sqlite3.connect(made) as small:
        small.execute(f"pragma page_size={PAGE_BYTES}")
        small.execute("vacuum")
