"""A small model of two ranks whose steps take a time of their own: `pace_s` each, in its config."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training import attempt

SAMPLES = 512

with attempt.join() as a:
    torch.manual_seed(a.config["seed"])
    model: nn.Module = nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 1)
    )
    if a.world_size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.linspace(-1, 1, SAMPLES * 16).reshape(SAMPLES, 16).sin()
    data = TensorDataset(x, x.prod(1, keepdim=True))

    def rehearse() -> None:
        """One backward pass, before any state is loaded."""
        model(x[:2]).sum().backward()

    a.register(model=model, optimizer=optimizer, rehearse=rehearse)
    loader = DataLoader(data, batch_sampler=a.sampler(SAMPLES, seed=a.config["seed"]))
    for step, (inputs, targets) in a.steps(loader, until=a.config["steps"]):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        time.sleep(a.config["pace_s"])
        a.report(step, loss=loss)
