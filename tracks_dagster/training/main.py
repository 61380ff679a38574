"""The training loop of all shipped families: `python -m tracks_dagster.training.main`, on each rank.

Also an example of how to use `join`.
"""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, default_collate

from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.families import family_code
from tracks_dagster.training.families.family import Config
from tracks_dagster.training.saves import random_state

BETAS = (0.9, 0.95)
GRADIENT_NORM_MAX = 1.0
LR_SHARE_MIN = 0.1  # the cosine ends at this share of the peak


def main() -> None:
    """Train the attempt that the environment names."""
    # cuBLAS sums in a fixed order only with a workspace of fixed size; read when it first starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    with attempt.join() as a:
        train(a)


def train(a: Attempt) -> None:
    """Train the attempt's family on its snapshot to the config's last step."""
    config, family = a.config, family_code(a.model_family)
    table = a.snapshot()
    samples = family.samples(config, table)
    random_state.seed_all(config["seed"], rank=0)  # the same weights on every rank
    bare = family.build(config, table).to(a.device)
    model = DistributedDataParallel(bare) if a.world_size > 1 else bare
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config["lr"], betas=BETAS, weight_decay=config["weight_decay"]
    )
    scheduler = LambdaLR(optimizer, lambda done: lr_share(done, config))
    random_state.seed_all(config["seed"], rank=1 + a.rank)  # another dropout on every rank

    def rehearse() -> None:
        (batch,) = a.split(default_collate([samples[0]] * config["micro_batch"]))
        family.loss(model, batch).backward()  # type: ignore[no-untyped-call]

    a.register(model=model, optimizer=optimizer, scheduler=scheduler, rehearse=rehearse)
    sampler = a.sampler(len(samples), seed=config["seed"])
    loader = DataLoader(samples, batch_sampler=sampler, num_workers=config["loader_workers"])
    for step, batch in a.steps(loader, until=config["steps"]):
        lr = float(scheduler.get_last_lr()[0])
        optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=a.device)
        accumulation = config["accumulation"]
        for number, micro in enumerate(a.split(batch), start=1):
            with _synced(model, on=number == accumulation):
                part = family.loss(model, micro) / accumulation
                part.backward()
            loss += part.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        scheduler.step()
        a.report(step, loss=loss, lr=lr, gradient_norm=float(norm))


def lr_share(done: int, config: Config) -> float:
    """Return the share of the peak learning rate after `done` steps: linear warm-up, then cosine.

    With 10 of 40 steps warm-up: 0.1 for the first step, 1.0 after 10, 0.55 after 25, 0.1 at the end.
    """
    warmup: int = config["warmup_steps"]
    steps: int = config["steps"]
    if done < warmup:
        return (done + 1) / warmup
    progress = min(1.0, (done - warmup) / max(1, steps - warmup))
    return LR_SHARE_MIN + (1 - LR_SHARE_MIN) * 0.5 * (1 + math.cos(math.pi * progress))


def _synced(model: nn.Module, *, on: bool) -> AbstractContextManager[object]:
    """Exchange gradients in this backward only when `on`: once a step is enough."""
    if on or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    return model.no_sync()


if __name__ == "__main__":
    main()
