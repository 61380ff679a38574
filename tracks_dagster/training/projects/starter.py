"""An example to replace by your own training: a small model that learns to continue some text.

`tracks init` writes it as train.py into a folder without code. It needs no download: it learns from
the code beside it.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training import attempt

CONTEXT = 32  # bytes that the model sees before the one that it predicts
CONFIG = {"steps": 300, "lr": 0.003, "global_batch": 64, "micro_batch": 64, "seed": 7}


def main() -> None:
    """Train the attempt that `tracks` started, or one of your own with `python train.py`."""
    with attempt.join(config=CONFIG) as a:
        torch.manual_seed(a.config["seed"])
        windows = read_text().unfold(0, CONTEXT + 1, 1)  # (N, CONTEXT + 1): every run of bytes
        model = build().to(a.device)
        wrapped = DistributedDataParallel(model) if a.world_size > 1 else model
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=a.config["lr"])
        a.register(model=wrapped, optimizer=optimizer)
        sampler = a.sampler(len(windows), seed=a.config["seed"])
        loader = DataLoader(TensorDataset(windows), batch_sampler=sampler)
        for step, batch in a.steps(loader, until=a.config["steps"]):
            optimizer.zero_grad()
            total = torch.zeros((), device=a.device)
            for (micro,) in a.split(batch):  # a remedy may halve the micro-batch
                loss = F.cross_entropy(wrapped(micro[:, :-1]), micro[:, -1])
                part = loss * len(micro) / len(batch[0])
                part.backward()
                total += part.detach()
            optimizer.step()
            a.report(step, loss=total)


def read_text() -> torch.Tensor:
    """Return the bytes of the code beside this file, (N,) int64."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return torch.tensor(list(b"".join(file.read_bytes() for file in files)))


def build() -> nn.Module:
    """Return a model that maps bytes (B, CONTEXT) to logits of the next one (B, 256)."""
    return nn.Sequential(
        nn.Embedding(256, 16),
        nn.Flatten(),
        nn.Linear(16 * CONTEXT, 128),
        nn.GELU(),
        nn.Linear(128, 256),
    )


if __name__ == "__main__":
    main()
