"""A trainer whose parameters do not divide evenly, run as a script by real ranks.

One rank trains a plain module, several FSDP2 or DDP. Beside the store lies `task.json` (see `Task`);
what a rank held when it began and when it ended goes there too, whole, for the test to compare.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tests.training.save_faults import plant
from tracks_dagster.track import names
from tracks_dagster.training import attempt
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.state_dict import collect
from tracks_dagster.training.saves.trained import Trained

SAMPLES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the ranks are given. fault: one of `save_faults`; checks_names: against DCP's own."""

    steps: int
    is_sharded: bool
    fault: str | None = None
    checks_names: bool = False

    def write(self, folder: Path) -> None:
        """Leave it where the ranks look."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "task.json").write_text(json.dumps(asdict(self)))


class Uneven(nn.Module):
    """Seven rows and two: two ranks hold 4 and 3, and of three the last one holds 1 and none."""

    count: torch.Tensor
    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(5, 7)
        self.head = nn.Linear(7, 2)
        self.frozen = nn.Parameter(torch.linspace(0, 1, 15).reshape(5, 3), requires_grad=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(3, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 5) to (B, 2)."""
        if self.training:
            self.count += 1
            self.average.mul_(0.9).add_(0.3)
        y: torch.Tensor = self.head(nn.functional.gelu(self.lift(x)))
        return y


def build(a: Attempt, task: Task) -> Trained:
    """Return the model as this gang holds it, and its optimizer."""
    random_state.seed_all(3, rank=0)
    model: nn.Module = Uneven()
    if task.is_sharded and a.world_size > 1:
        mesh = init_device_mesh("cpu", (a.world_size,))
        fully_shard(model.lift, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif a.world_size > 1:
        model = DistributedDataParallel(model)
    return Trained(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.05))


def train(a: Attempt, task: Task, folder: Path) -> None:
    """Train to the task's last step."""
    trained = build(a, task)
    model, optimizer = trained.model, trained.optimizer
    x = torch.linspace(-1, 1, SAMPLES * 5).reshape(SAMPLES, 5)

    def rehearse() -> None:
        model(x[:2]).sum().backward()

    a.register(model=model, optimizer=optimizer, rehearse=rehearse)
    sampler = a.sampler(SAMPLES, seed=3)
    data = TensorDataset(x, torch.stack([x.sum(1), x.prod(1)], dim=1))
    is_first = True
    for step, batch in a.steps(DataLoader(data, batch_sampler=sampler), until=task.steps):
        if is_first:
            dump(trained, a, folder / f"began-{number()}.pt")
            is_first = False
        optimizer.zero_grad()
        inputs, targets = batch
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if task.checks_names:
            check_names(trained)
        plant(task.fault, a, step, model)
        a.report(step, loss=loss)
    dump(trained, a, folder / f"ended-{number()}.pt")


def dump(trained: Trained, a: Attempt, path: Path) -> None:
    """Let rank 0 write every tensor, whole. Collective."""
    tensors = collect(trained).tensors
    whole = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in tensors.items()
    }
    if a.rank == 0:
        torch.save({name: tensor.detach().clone() for name, tensor in whole.items()}, path)


def check_names(trained: Trained) -> None:
    """Raise unless DCP's own state dict has the same names, shapes and sharding."""
    model, optimizer = get_state_dict(trained.model, trained.optimizer)
    flat, _ = flatten_state_dict({"model": model, "optimizer": optimizer})
    theirs = {name: forms(value) for name, value in flat.items() if torch.is_tensor(value)}
    ours = {name: forms(value) for name, value in collect(trained).tensors.items()}
    if ours != theirs:
        raise AssertionError(f"{ours} is not {theirs}")


def forms(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, str]:
    """Return what a checkpoint's plan depends on."""
    placements = str(tensor.placements) if isinstance(tensor, DTensor) else ""
    return tensor.shape, tensor.dtype, placements


def number() -> str:
    """Return which attempt this is."""
    return os.environ[names.ENV_ATTEMPT_ID]


def main() -> None:
    """Be one rank."""
    folder = Path(os.environ[names.ENV_WORK]).parent
    task = Task(**json.loads((folder / "task.json").read_text()))
    with attempt.join() as a:
        train(a, task, folder)


if __name__ == "__main__":
    main()
