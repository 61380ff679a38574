"""Trains the GPT on a snapshot of text, on any number of ranks: plain torch, and the lines with `a.`.

`tracks run` in this folder starts it. Copy the folder to begin a project of your own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from data import Windows
from model import Gpt, loss
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, default_collate

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.training import attempt as tracks

BETAS = (0.9, 0.95)
GRADIENT_NORM_MAX = 1.0
LR_SHARE_MIN = 0.1  # the cosine ends at this share of the peak
HELD_OUT = 16  # samples at the text's end, where `validate_every` asks for a validation loss


def main() -> None:
    """Train the attempt that `tracks` started to the config's last step."""
    # cuBLAS sums in a fixed order only with a workspace of fixed size; read when it first starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    with tracks.join() as a:
        config = a.config
        if config["d_model"] % config["heads"]:
            raise InvalidInput("d_model is not a multiple of heads; change one of the two.")
        samples = Windows(a.snapshot(), config["context"])
        torch.manual_seed(config["seed"])  # the same weights on every rank
        bare = Gpt(config).to(a.device)
        model: nn.Module = DistributedDataParallel(bare) if a.world_size > 1 else bare
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=config["lr"], betas=BETAS, weight_decay=config["weight_decay"]
        )
        scheduler = LambdaLR(optimizer, lambda done: lr_share(done, config))
        torch.manual_seed(config["seed"] + 1 + a.rank)  # another dropout on every rank

        def rehearse() -> None:
            (batch,) = a.split(default_collate([samples[0]] * config["micro_batch"]))
            loss(model, batch).backward()

        a.register(model=model, optimizer=optimizer, scheduler=scheduler, rehearse=rehearse)
        every = config.get("validate_every", 0)  # a run of before has no such key
        held_out = HELD_OUT if every else 0
        sampler = a.sampler(len(samples) - held_out, seed=config["seed"])
        loader = DataLoader(samples, batch_sampler=sampler, num_workers=config["loader_workers"])
        for step, batch in a.steps(loader, until=config["steps"]):
            lr = float(scheduler.get_last_lr()[0])
            optimizer.zero_grad(set_to_none=True)
            total = backward(model, a.split(batch), config["accumulation"])
            norm = nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
            optimizer.step()
            scheduler.step()
            a.report(step, loss=total, lr=lr, grad_norm=float(norm))
            if every and step % every == 0 and a.rank == 0:
                with a.evaluating():
                    indices = range(len(samples) - held_out, len(samples))
                    batch = default_collate([samples[index] for index in indices])
                    found = validate(bare, [each.to(a.device) for each in batch])
                a.evaluated(step, validation_loss=found)


def backward(model: nn.Module, parts: Any, accumulation: int) -> torch.Tensor:
    """Add up the gradients of a step's micro-batches; return the step's mean loss."""
    total: Any = 0.0
    for number, micro in enumerate(parts, start=1):
        is_last = number == accumulation
        is_wrapped = isinstance(model, DistributedDataParallel)
        # Ranks exchange gradients in the last backward only: once a step is enough.
        with model.no_sync() if is_wrapped and not is_last else nullcontext():
            part = loss(model, micro) / accumulation
            part.backward()
        total = total + part.detach()
    return total


def validate(model: nn.Module, batch: Any) -> float:
    """Return the mean loss of a batch that is not trained on, without dropout."""
    model.eval()
    with torch.no_grad():
        found = float(loss(model, batch))
    model.train()
    return found


def lr_share(done: int, config: Mapping[str, Any]) -> float:
    """Return the share of the peak learning rate after `done` steps: linear warm-up, then cosine.

    With 10 of 40 steps warm-up: 0.1 for the first step, 1.0 after 10, 0.55 after 25, 0.1 at the end.
    """
    warmup, steps = config["warmup_steps"], config.get("horizon") or config["steps"]
    if done < warmup:
        return (done + 1) / warmup
    progress = min(1.0, (done - warmup) / max(1, steps - warmup))
    return LR_SHARE_MIN + (1 - LR_SHARE_MIN) * 0.5 * (1 + math.cos(math.pi * progress))


if __name__ == "__main__":
    main()
