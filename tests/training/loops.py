"""The smallest training loop there is, for tests that join in their own process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training.attempt import Attempt

SAMPLES = 100


def train_linear(
    a: Attempt,
    *,
    until: int,
    on_step: Callable[[int, nn.Module], None] = lambda step, model: None,
    model: nn.Module | None = None,
    **metrics: float,
) -> nn.Module:
    """Train a line, or `model`, through 100 points; `on_step` is called before each report."""
    torch.manual_seed(5)
    x = torch.linspace(-1, 1, SAMPLES).unsqueeze(1)
    model = model or nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    a.register(model=model, optimizer=optimizer)
    sampler = a.sampler(SAMPLES, seed=5)
    loader = DataLoader(TensorDataset(x, 3 * x + 1), batch_sampler=sampler)
    for step, batch in a.steps(loader, until=until):
        optimizer.zero_grad()
        loss = torch.zeros(())
        parts = list(a.split(batch))
        for inputs, targets in parts:
            part = nn.functional.mse_loss(model(inputs), targets) / len(parts)
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        optimizer.step()
        on_step(step, model)
        a.report(step, loss=loss, **metrics)
    return model
