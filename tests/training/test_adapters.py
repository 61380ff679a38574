"""What the adapters refuse, switch off and end, with each framework in this process.

In `--full` only, which installs them; `tests/real/test_framework_examples.py` runs whole projects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.utils.data import DataLoader

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tracks_dagster.track.errors import InvalidInput, NonFinite, TrainingError
from tracks_dagster.track.records import Json
from tracks_dagster.training.attempt import Attempt

STEPS, NAN_STEP = 6, 4
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # the frameworks' own


def installed(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(module) is None,
        reason=f"{module} is not installed; `./run test --full` installs it",
    )


@pytest.fixture
def run(tmp_path: Path, store: FakeObjectStore) -> TrainingRun:
    sizes = {"global_batch": 6, "micro_batch": 2}
    return TrainingRun(tmp_path, store=store, steps=STEPS, every_steps=2, **sizes)


class TurnsNan(nn.Module):
    """A line; the loss of its step NAN_STEP is NaN, in the last of three micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)
        self.passes = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.passes += 1
        factor = math.nan if self.passes == 3 * NAN_STEP else 1.0
        return {"loss": self.line(x).square().mean() * factor}


def train_by_huggingface(a: Attempt, folder: Path) -> None:
    from tracks_dagster.training.adapters.huggingface import follow

    trainer = huggingface_trainer(folder, TurnsNan(), max_steps=STEPS, disable_tqdm=True)
    trainer.train_dataset = [{"x": torch.ones(1)}] * 36
    trainer.train(resume_from_checkpoint=follow(a, trainer))


def train_by_lightning(a: Attempt, folder: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer

    from tracks_dagster.training.adapters.lightning import follow

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = TurnsNan()

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            return self.model(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    off = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = Trainer(max_steps=STEPS, accumulate_grad_batches=3, accelerator="cpu", **off)
    trainer.fit(Module(), loader(), ckpt_path=follow(a, trainer))


def train_by_accelerate(a: Attempt, folder: Path) -> None:
    from accelerate import Accelerator

    from tracks_dagster.training.adapters.accelerate import follow

    accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
    model = TurnsNan()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    for x in follow(a, accelerator, batches, until=STEPS):
        with accelerator.accumulate(model):
            accelerator.backward(model(x)["loss"])
            optimizer.step()
            optimizer.zero_grad()


def train_by_dcp(a: Attempt, folder: Path) -> None:
    from tracks_dagster.training.adapters.distributed_checkpoint import follow

    model = TurnsNan()

    class State:
        def state_dict(self) -> dict[str, Any]:
            return get_model_state_dict(model)

        def load_state_dict(self, state: dict[str, Any]) -> None:
            set_model_state_dict(model, state)

    checkpoints = follow(a, {"model": State()})
    for step in range(checkpoints.load() + 1, STEPS + 1):
        loss = torch.stack([model(torch.ones(2, 1))["loss"] for _ in range(3)]).mean()
        checkpoints.save(step, loss=loss, last_step=step == STEPS)


def loader() -> DataLoader[torch.Tensor]:
    return DataLoader([torch.ones(1)] * 36, batch_size=2)  # type: ignore[arg-type]


def huggingface_trainer(folder: Path, model: nn.Module, **settings: Json) -> Any:
    """Return a Trainer with the sizes of the run's config."""
    from transformers import Trainer, TrainingArguments

    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    args = TrainingArguments(str(folder), report_to="none", use_cpu=True, **{**sizes, **settings})
    return Trainer(model, args)


@pytest.mark.parametrize(
    "train",
    [
        pytest.param(train_by_huggingface, marks=installed("transformers")),
        pytest.param(train_by_lightning, marks=installed("lightning")),
        pytest.param(train_by_accelerate, marks=installed("accelerate")),
        train_by_dcp,
    ],
)
def test_a_nan_ends_the_attempt_and_nothing_of_its_step_is_saved(
    run: TrainingRun, tmp_path: Path, train: Callable[[Attempt, Path], None]
) -> None:
    with pytest.raises(NonFinite) as ended, run.joined() as a:
        train(a, tmp_path / "out")
    assert ended.value.onset_step == NAN_STEP
    assert [each.ref.step for each in run.state.checkpoints] == [2]  # one was due after NAN_STEP


@installed("accelerate")
@pytest.mark.parametrize("by_epochs", [True, False])
@pytest.mark.parametrize(("batches", "resumed_step"), [(27, 8), (21, 6)])  # 6 steps an epoch
def test_accelerate_resumes_to_the_bit_in_an_epoch_and_between_two(
    tmp_path: Path, by_epochs: bool, batches: int, resumed_step: int
) -> None:
    losses = {}
    for name, cut in (("calm", None), ("cut", batches)):
        sizes = {"global_batch": 6, "micro_batch": 2}
        run = TrainingRun(tmp_path / name, steps=12, every_steps=2, **sizes)
        for limit in (None,) if cut is None else (cut, None):
            with run.joined() as a:
                train_two_epochs(a, by_epochs=by_epochs, batches=limit)
        losses[name] = {
            step: line["loss"] for step, line in run.steps(len(run.state.attempts)).items()
        }
        assert run.final().step == 12
    assert list(losses["calm"]) == list(range(1, 13))
    assert losses["cut"] == {step: losses["calm"][step] for step in range(resumed_step + 1, 13)}


@installed("accelerate")
def test_accelerate_goes_on_after_no_epoch_that_was_left_early(run: TrainingRun) -> None:
    with pytest.raises(TrainingError, match="epoch 0 ended before"), run.joined() as a:
        leave_an_epoch_early(a)


def leave_an_epoch_early(a: Attempt) -> None:
    from accelerate import Accelerator

    from tracks_dagster.training.adapters.accelerate import follow_epochs

    rows: Any = list(torch.randn(36, 2))
    accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
    data = accelerator.prepare(DataLoader(rows, batch_size=2))
    for _, batches in follow_epochs(a, accelerator, data, epochs=2):
        next(batches)


def train_two_epochs(a: Attempt, *, by_epochs: bool, batches: int | None) -> None:
    """Train to the end, or as if killed in the step of that many batches."""
    from accelerate import Accelerator

    from tracks_dagster.training.adapters import accelerate as adapter

    torch.manual_seed(3)
    model: Any = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    rows: Any = list(torch.randn(36, 2))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
    model, optimizer, data = accelerator.prepare(
        model, optimizer, DataLoader(rows, batch_size=2, shuffle=True)
    )
    if by_epochs:
        epochs = adapter.follow_epochs(a, accelerator, data, epochs=2)
        given = (batch for _, left in epochs for batch in left)
    else:
        given = adapter.follow(a, accelerator, data, until=12)
    for x in islice(given, batches):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()


@installed("transformers")
def test_the_trainer_hides_no_nan_and_the_machine_keeps_one_folder(
    run: TrainingRun, tmp_path: Path
) -> None:
    from tracks_dagster.training.adapters.huggingface import follow

    trainer = huggingface_trainer(tmp_path, nn.Linear(1, 1))
    assert trainer.args.logging_nan_inf_filter
    with run.joined() as a:
        assert follow(a, trainer) is None
    assert not trainer.args.logging_nan_inf_filter
    assert trainer.args.save_total_limit == 1


@installed("transformers")
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint: it takes SIGTERM"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size: it would hide an out-of-memory"),
        ({"save_only_model": True}, "save_only_model: nothing could resume"),
        (
            {"save_strategy": "best", "metric_for_best_model": "loss"},
            "save_strategy='best': it drops every other save",
        ),
        ({"per_device_train_batch_size": 3}, "micro_batch 3 .* read it from a.config"),
        ({"gradient_accumulation_steps": 2}, "accumulation 2 .* read it from a.config"),
    ],
)
def test_settings_that_undo_what_the_attempt_does_are_refused_by_name(
    run: TrainingRun, tmp_path: Path, settings: dict[str, Json], why: str
) -> None:
    from tracks_dagster.training.adapters.huggingface import follow

    trainer = huggingface_trainer(tmp_path, nn.Linear(1, 1), **settings)
    with run.joined() as a, pytest.raises(InvalidInput, match=why):
        follow(a, trainer)
