"""torchdata's loader and Hugging Face's streaming data set, cut in two: no loss changes.

In `--full` only, which installs them. `test_own_state.py` has doubles of both, and every other state.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tracks_dagster.training.attempt import Attempt

STEPS, ROWS, BATCH = 8, 10, 2  # five steps a pass
Trainer = Callable[[Attempt, int], None]
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # the libraries' own


def installed(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(module) is None,
        reason=f"{module} is not installed; `./run test --full` installs it",
    )


def stateful_loader(a: Attempt, until: int) -> None:
    """Torchdata's loader, which nobody registers; its shuffle is of its own."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows = [torch.full((1,), row / ROWS) for row in range(ROWS)]
    train(a, until, StatefulDataLoader(rows, batch_size=BATCH, shuffle=True))


def streaming_rows(a: Attempt, until: int) -> None:
    """A data set of shards that has the place in it, in torch's loader."""
    from datasets import Dataset

    rows = Dataset.from_dict({"x": [[row / ROWS] for row in range(ROWS)]})
    stream: Any = rows.to_iterable_dataset(num_shards=3).with_format("torch")
    train(a, until, DataLoader(stream, batch_size=BATCH), per_rank={"rows": stream})


def train(a: Attempt, until: int, loader: Any, **registered: Any) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    a.register(model=model, optimizer=optimizer, **registered)
    for step, batch in a.steps(loader, until=until):
        x = batch["x"] if isinstance(batch, dict) else batch
        optimizer.zero_grad()
        loss = (model(x) - x.square()).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        a.report(step, loss=loss)


def losses_of(folder: Path, trainer: Trainer, *untils: int) -> dict[int, float]:
    """Train attempts one after the other, each up to its step; return the last one's losses."""
    run = TrainingRun(folder, store=FakeObjectStore(), steps=STEPS, every_steps=None)
    for until in untils:
        torch.manual_seed(5)
        with run.joined() as a:
            trainer(a, until)
    return {step: line["loss"] for step, line in run.steps(len(untils)).items()}


@pytest.mark.parametrize("cut_at", [3, 5, 6])  # in a pass, at its end, in the next one
@pytest.mark.parametrize(
    "trainer",
    [
        pytest.param(stateful_loader, marks=installed("torchdata")),
        pytest.param(streaming_rows, marks=installed("datasets")),
    ],
)
def test_a_cut_in_two_changes_no_loss(tmp_path: Path, trainer: Trainer, cut_at: int) -> None:
    calm = losses_of(tmp_path / "calm", trainer, STEPS)
    cut = losses_of(tmp_path / "cut", trainer, cut_at, STEPS)
    assert list(calm) == list(range(1, STEPS + 1))
    assert cut == {step: calm[step] for step in range(cut_at + 1, STEPS + 1)}
