"""A trainer in plain torch that `a.register` keeps; the config's fault says how it does not.

In it all matters that a resume can lose: dropout, an order that changes with the epoch, momentum, a
schedule.
"""

import signal
import sys

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt


class Scale(nn.Module):
    """Sets its weight from the first batch, and keeps where a checkpoint does not look that it has."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(torch.ones(8))
        self.is_set = False
        self.register_buffer("moved", torch.zeros(8), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "attribute" and not self.is_set:
            with torch.no_grad():
                self.weight.copy_(1 / (1 + x.detach().std(0)))
        self.is_set = self.fault == "attribute"
        if self.fault == "buffer":
            self.moved = 0.9 * self.moved + 0.1 * x.detach().mean(0)
        return x * self.weight + self.moved


def train(a: Attempt, fault: str) -> None:
    """Train to the config's last step."""
    torch.manual_seed(3)
    x = torch.randn(52, 6)
    parts = nn.Linear(6, 8), Scale(fault), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 1)
    bare = nn.Sequential(*parts)
    model = DistributedDataParallel(bare) if a.world_size > 1 else bare
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = LambdaLR(optimizer, lambda done: 1.0 / (1.0 + 0.2 * done))
    torch.manual_seed(5 + a.rank)
    a.register(model=model, optimizer=optimizer, scheduler=scheduler)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    if fault == "order":  # of its own, and in no checkpoint
        order = torch.Generator().manual_seed(7)
        loader = DataLoader(data, batch_size=8, shuffle=True, generator=order)
    else:
        sampler = a.sampler(len(x), seed=7)
        loader = DataLoader(data, batch_sampler=sampler, num_workers=a.config["loader_workers"])
    beside = DataLoader(data, batch_size=4)  # where the fault has it, made again in each step
    other = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)  # registered nowhere
    if fault == "sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step, batch in a.steps(loader, until=a.config["steps"]):
        optimizer.zero_grad()
        total = torch.zeros(())
        for inputs, targets in a.split(batch):
            loss = mse_loss(model(inputs), targets) * len(inputs) / len(batch[0])
            loss.backward()
            total += loss.detach()
        if fault == "stuck":
            inputs, targets = next(iter(beside))
            mse_loss(model(inputs), targets).backward()
        if fault == "unregistered":
            other.step()
        optimizer.step()
        scheduler.step()
        if fault == "ranks":
            torch.save(bare.state_dict(), "latest.pt")
        a.report(step, loss=torch.nan_to_num(total) if fault == "nan" else total)
        if fault == "draws":
            torch.rand(3)


if __name__ == "__main__":
    with attempt.join() as a:
        try:
            train(a, a.config["fault"])
        except Exception:
            if a.config["fault"] != "except":
                raise
            print("training failed", file=sys.stderr)
            sys.exit(1)
