"""A trainer in which everything that a resume can lose matters: run as a script by real ranks.

Dropout, per-sample augmentation, numpy's and python's random numbers, a learning-rate schedule,
gradient accumulation, momentum, and an order of samples that changes with every epoch. Beside the
store lies `plan.json` (see `Plan`): where each attempt is killed, and how its resume is broken.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

from tests.training.resume_faults import plant
from tracks_dagster.track import names
from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.sampling import SampleIndex, sample_rng
from tracks_dagster.training.saves import random_state

SAMPLES = 50  # with 12 a step an epoch ends inside a step, every four or so
FEATURES = 6
MOMENTS = ("data", "gradients", "optimizer", "journal")  # what a step has just finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """When all ranks are killed: at one of MOMENTS of a step, or so many seconds after it."""

    step: int
    moment: str
    later_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the ranks are given. kills: of attempt 1, 2, …; those after the last one live.

    fault: one of `resume_faults`, planted in every attempt but the first.
    """

    steps: int
    seed: int = 7
    workers: int = 0
    fault: str | None = None
    kills: tuple[Kill, ...] = ()

    def write(self, folder: Path) -> None:
        """Leave it where the ranks look."""
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(asdict(self)))


def read_plan(folder: Path) -> Plan:
    """Return what `Plan.write` left."""
    stored = json.loads((folder / "plan.json").read_text())
    return Plan(**{**stored, "kills": tuple(Kill(**kill) for kill in stored["kills"])})


class Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of a plane, augmented: each sample's noise depends on (seed, epoch, index) only."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._x = np.random.default_rng(3).normal(size=(SAMPLES, FEATURES))

    def __getitem__(self, index: SampleIndex) -> tuple[torch.Tensor, torch.Tensor]:
        noise = sample_rng(self._seed, index.epoch, int(index)).normal(scale=0.1, size=FEATURES)
        x = torch.from_numpy((self._x[index] + noise).astype(np.float32))
        return x, x.sum(0, keepdim=True)


class Executioner:
    """Kills all ranks at once, by rank 0's hand, when the plan says so."""

    def __init__(self, a: Attempt, kill: Kill | None, last_step: int) -> None:
        """Collective: rank 0 learns the others' process ids."""
        self._kill = kill if a.rank == 0 else None
        self._last_step = last_step
        self._waiting: threading.Timer | None = None
        pids: list[int | None] = [os.getpid()] * a.world_size
        if a.world_size > 1:
            dist.all_gather_object(pids, os.getpid())
        self._pids = [pid for pid in reversed(pids) if pid is not None]  # itself last

    def at(self, step: int, moment: str) -> None:
        """Take note of every moment of every step."""
        if self._waiting is not None and step == self._last_step:
            self._waiting.join()  # else a fast run would end before it is killed
        if self._kill is None or self._waiting is not None or moment != self._kill.moment:
            return
        if step < self._kill.step:  # an attempt may resume after it, and is killed at once then
            return
        if self._kill.later_s == 0:
            self._strike()
        self._waiting = threading.Timer(self._kill.later_s, self._strike)
        self._waiting.start()

    def _strike(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)


def train(a: Attempt, plan: Plan, kill: Kill | None) -> None:
    """Train to the plan's last step, or to the kill."""
    random_state.seed_all(plan.seed, rank=0)  # the same weights on every rank
    bare = nn.Sequential(
        nn.Linear(FEATURES, 8),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(8, 8),
        nn.GELU(),
        nn.Linear(8, 1),
    )
    model = DistributedDataParallel(bare) if a.world_size > 1 else bare
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = LambdaLR(optimizer, lambda done: 1.0 / (1.0 + 0.05 * done))
    random_state.seed_all(plan.seed, rank=1 + a.rank)
    a.register(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        rehearse=lambda: model(torch.ones(2, FEATURES)).sum().backward(),
    )
    sampler = a.sampler(SAMPLES, seed=plan.seed)
    loader = DataLoader(Noisy(plan.seed), batch_sampler=sampler, num_workers=plan.workers)
    executioner = Executioner(a, kill, last_step=plan.steps)
    for step, batch in a.steps(loader, until=plan.steps):
        executioner.at(step, "data")
        optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros(())
        parts = list(a.split(batch))
        for number, (x, y) in enumerate(parts, start=1):
            is_last = number == len(parts)
            wait = isinstance(model, DistributedDataParallel) and not is_last
            with model.no_sync() if wait else nullcontext():
                jitter = random.random() * float(np.random.random())
                part = nn.functional.mse_loss(model(x) * (1 + 0.1 * jitter), y) / len(parts)
                part.backward()
            loss += part.detach()
        executioner.at(step, "gradients")
        optimizer.step()
        scheduler.step()
        executioner.at(step, "optimizer")
        a.report(step, loss=loss, lr=float(scheduler.get_last_lr()[0]))
        executioner.at(step, "journal")


def main() -> None:
    """Be one rank."""
    plan = read_plan(Path(os.environ[names.ENV_WORK]).parent)
    number = int(os.environ[names.ENV_ATTEMPT_ID]) - 1
    if plan.fault is not None and number > 0:
        plant(plan.fault)
    with attempt.join() as a:
        train(a, plan, plan.kills[number] if number < len(plan.kills) else None)


if __name__ == "__main__":
    main()
