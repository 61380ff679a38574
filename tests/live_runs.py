"""Runs that train while a test looks: tracks with an open attempt, and a journal that grows.

A run of 8 ranks is preempted after step 60, runs out of memory after step 120 and resumes from step 110
with half the micro-batch; rank 5 computes twice as long from there on. A step takes a second by the
journal's clock, which ends `now`, so that lights and pace are those of a run that trains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from tests.bodies import CONFIG
from tests.histories import History
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import ComputeRequest, ConfigChange, RankPlace
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, format_time

STEPS = 400
BATCH = 24
OWN_S, DATA_S, STEP_S = 0.2, 0.03, 0.97
SLOW_RANK, SLOW_FACTOR = 5, 2.0
HALVED = (ConfigChange(key="micro_batch", before=4, after=2, why="half the activations"),)


def loss_of(step: int) -> float:
    """Return the loss of a step: it falls, and it is noisy."""
    return 2.0 + 3.0 * math.exp(-step / 60.0) + 0.08 * math.sin(step * 2.4)


class LiveRun:
    """One such run. `grow` lets it train on; `write` stores its records."""

    def __init__(
        self,
        store: ObjectStore,
        run_id: str,
        *,
        now: datetime,
        ranks: int = 8,
        steps: int = 180,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        self.store = store
        self._metrics = dict(metrics or {})
        self.run_id = run_id
        self.ranks = ranks
        self._bytes = b""
        self._began = now - timedelta(seconds=steps + 60)
        config = {**CONFIG, "steps": STEPS, "global_batch": BATCH, "lr": 3e-4}
        compute = ComputeRequest(ranks=ranks, device_class="h100")
        self.history = History(run_id, begin=self._began - timedelta(seconds=90)).declare(
            config=config, compute=compute, intent="See whether a longer warm-up <helps>."
        )
        self._attempt("preempted", range(1, 61), commits=(20, 50))
        self._attempt("gpu_oom", range(51, 121), commits=(80, 110))
        self._open(remediation=HALVED, config={**config, "micro_batch": 2})
        self.step = 110
        self.grow(steps - self.step)
        self.history.commit(min(steps, 150))

    def write(self) -> LiveRun:
        """Store every record."""
        self.history.write_to(self.store)
        return self

    def grow(self, count: int) -> None:
        """Ship `count` more steps of the open attempt."""
        last = self.step + count
        self._ship(range(self.step + 1, last + 1), slow=True)
        self.step = last

    def rewind(self) -> LiveRun:
        """End the open attempt, and resume from its newest checkpoint."""
        self.history.end("preempted", last_step=self.step)
        self._open()
        self.step = self.history.state.attempts[-1].resumed_step
        return self.write()

    def _attempt(self, reason: str, steps: range, *, commits: Iterable[int]) -> None:
        self._open()
        self._ship(steps)
        for step in commits:
            self.history.commit(step)
        self.history.end(reason, last_step=steps[-1])

    def _open(self, **changes: Json) -> None:
        self._bytes = b""
        number = len(self.history.state.attempts) + 1
        places = tuple(
            RankPlace(
                rank=rank,
                node=f"node-{rank // 8}",
                pid=100 + rank,
                pid_started=1.5,
                boot_id="boot-1",
                device=f"cuda:{rank % 8}",
                accelerator="NVIDIA H100",
            )
            for rank in range(self.ranks)
        )
        self.history.open(**changes).supervise(f"dagster-{number}")
        self.history.place(world_size=self.ranks, ranks=places).restore()

    def _ship(self, steps: range, *, slow: bool = False) -> None:
        number = len(self.history.state.attempts)
        for step in steps:
            for line in self._lines(step, slow=slow):
                self._bytes += json.dumps(line).encode() + b"\n"
        prefix = journal_prefix(AttemptRef(self.run_id, number), self.history.launch_id, 0)
        self.store.put(f"{prefix}{0:012d}.jsonl", self._bytes)

    def _lines(self, step: int, *, slow: bool) -> Iterable[dict[str, Json]]:
        at = format_time(self._began + timedelta(seconds=step))
        yield {
            "kind": "step",
            "t": at,
            "step": step,
            "loss": loss_of(step),
            "metrics": {"accuracy": 1.0 - loss_of(step) / 8, **self._metrics},
            "step_s": STEP_S,
            "data_s": DATA_S,
            "own_s": OWN_S,
            "lr": 3e-4 * min(1.0, step / 40),
            "grad_norm": 1.0 + 0.2 * math.sin(step),
            "cursor_to": step * BATCH,
            "indices_sha256": f"{step:064x}",
        }
        if step % 5 == 0:
            factor = SLOW_FACTOR if slow else 1.0
            own = [OWN_S * (factor if rank == SLOW_RANK else 1.0) for rank in range(self.ranks)]
            yield {
                "kind": "ranks",
                "t": at,
                "step": step,
                "over": 5,
                "step_s": [STEP_S] * self.ranks,
                "own_s": own,
                "data_s": [DATA_S] * self.ranks,
                "util": [91] * self.ranks,
                "rss_bytes": [2**30] * self.ranks,
                "device_bytes": [40 * 2**30] * self.ranks,
            }
        if step % 20 == 0:
            metrics = {"validation_loss": loss_of(step) + 0.1}
            yield {"kind": "evaluated", "t": at, "step": step, "metrics": metrics}
