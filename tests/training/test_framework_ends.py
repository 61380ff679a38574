"""How a framework's loop ended: all its steps, its early stopping, or something that left it.

In `--full` only, which installs the frameworks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.fakes import FakeObjectStore
from tests.training.gangs import TrainingRun
from tracks_dagster.track.artifacts import artifacts_of
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.leaving import LeftEarly
from tracks_dagster.training.saves.artifacts import write_out

STEPS, EVALUATED_EVERY = 12, 2
pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]  # the frameworks' own
OnStep = Callable[[int], None]


class Worsens(nn.Module):
    """A model whose evaluations grow from one to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)
        self.evaluations = 0

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.evaluations += not self.training
        lost = self.line(x).square().mean()
        return {"loss": lost if self.training else lost * 0 + self.evaluations, "logits": x}


@pytest.fixture
def run(tmp_path: Path, store: FakeObjectStore, request: pytest.FixtureRequest) -> TrainingRun:
    steps = STEPS if getattr(request, "param", True) else None
    sizes = {"global_batch": 2, "micro_batch": 2}
    return TrainingRun(tmp_path, store=store, steps=steps, every_steps=5, **sizes)


def by_huggingface(a: Attempt, folder: Path, *, stops_early: bool, on_step: OnStep) -> None:
    transformers = pytest.importorskip("transformers")
    from tracks_dagster.training.adapters.huggingface import follow

    class OwnCallback(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            on_step(state.global_step + 1)

    best: dict[str, Any] = {}
    callbacks = [OwnCallback()]
    if stops_early:
        each = {"eval_steps": EVALUATED_EVERY, "save_steps": EVALUATED_EVERY}
        best = {"eval_strategy": "steps", "load_best_model_at_end": True, **each}
        best["label_names"] = ["x"]  # else it computes no loss of an evaluation
        callbacks.append(transformers.EarlyStoppingCallback(early_stopping_patience=2))
    args = transformers.TrainingArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        **best,
    )
    data = [{"x": torch.ones(1)}] * 200
    trainer = transformers.Trainer(
        Worsens(), args, train_dataset=data, eval_dataset=data[:8], callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=follow(a, trainer))


def by_lightning(a: Attempt, folder: Path, *, stops_early: bool, on_step: OnStep) -> None:
    if find_spec("lightning") is None:
        pytest.skip("lightning is not installed; `./run test --full` installs it")
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    from tracks_dagster.training.adapters.lightning import follow

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Worsens()

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.model(batch)["loss"]  # type: ignore[no-any-return]

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("val_loss", self.model(batch)["loss"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    class OwnCallback(Callback):
        def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
            on_step(trainer.global_step + 1)

    callbacks: list[Callback] = [OwnCallback()]
    if stops_early:
        callbacks.append(EarlyStopping("val_loss", patience=2))
        callbacks.append(ModelCheckpoint(folder, monitor="val_loss", save_top_k=1))
    off = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(
        max_epochs=STEPS // EVALUATED_EVERY,
        accelerator="cpu",
        callbacks=callbacks,
        enable_checkpointing=stops_early,
        **off,
    )
    loader = DataLoader([torch.ones(1)] * 4, batch_size=2)  # type: ignore[arg-type]
    trainer.fit(Module(), loader, loader, ckpt_path=follow(a, trainer))


def leave(a: Attempt, train: Any, folder: Path, on_step: OnStep, *, catches: bool) -> bool:
    """Train until the script leaves by itself; returns whether that was sys.exit(0)."""
    with suppress(KeyError if catches else ()):
        try:
            train(a, folder, stops_early=False, on_step=on_step)
        except SystemExit:
            return not catches
    return False


TRAINERS = [by_huggingface, by_lightning]


@pytest.mark.parametrize("train", TRAINERS)
@pytest.mark.parametrize("run", [True, False], indirect=True, ids=["steps known", "not known"])
def test_a_loop_that_came_to_its_end_is_complete(
    run: TrainingRun, tmp_path: Path, train: Callable[..., None]
) -> None:
    with run.joined() as a:
        train(a, tmp_path / "out", stops_early=False, on_step=lambda step: None)
        finished = a.finish()
    assert finished.is_complete
    assert f"Step {STEPS}, the last one" in finished.words
    assert run.final().step == STEPS


@pytest.mark.parametrize("train", TRAINERS)
@pytest.mark.parametrize("run", [True, False], indirect=True, ids=["steps known", "not known"])
def test_early_stopping_is_not_a_completion_and_its_last_step_is_saved(
    run: TrainingRun, tmp_path: Path, train: Callable[..., None]
) -> None:
    with run.joined() as a:
        train(a, tmp_path / "out", stops_early=True, on_step=lambda step: None)
        finished = a.finish()
    stopped = 3 * EVALUATED_EVERY  # the first is the best, and two more have no patience
    assert not finished.is_complete
    assert f"stopped after step {stopped}" in finished.words
    assert run.final().step == stopped
    (best,) = artifacts_of(note.body for note in run.state.notes)
    write_out(run.store, run.run_id, best.sha256, tmp_path / "best")
    names = {path.name for path in (tmp_path / "best").iterdir()}
    assert names
    assert not names & {"training_args.bin", "optimizer.pt"}


@pytest.mark.parametrize("train", TRAINERS)
@pytest.mark.parametrize("run", [True, False], indirect=True, ids=["steps known", "not known"])
@pytest.mark.parametrize("catches", [False, True], ids=["exit", "an error that was caught"])
def test_a_loop_that_was_left_in_its_middle_is_neither(
    run: TrainingRun, tmp_path: Path, train: Callable[..., None], catches: bool
) -> None:
    def leaves(step: int) -> None:
        if step == 6:
            {}["no"] if catches else sys.exit(0)

    with run.joined() as a:
        exits = leave(a, train, tmp_path / "out", leaves, catches=catches)
        with pytest.raises(LeftEarly, match="after step 5"):
            a.finish(exits=exits)
    assert run.final().step == 5
