"""A model whose forward pass takes `forward_s`, of its config, so that a drill can slow it down."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training import attempt

SAMPLES = 512


class Waits(nn.Module):
    """A layer that takes its time, as a large one would."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x as it is, later."""
        time.sleep(self.seconds)
        return x


with attempt.join() as a:
    torch.manual_seed(a.config["seed"])
    model: nn.Module = nn.Sequential(nn.Linear(16, 1), Waits(a.config["forward_s"]))
    if a.world_size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
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
        a.report(step, loss=loss)
