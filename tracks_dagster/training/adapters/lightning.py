"""Lightning's Trainer in an attempt: its checkpoints, with what they lack, when the attempt wants them.

    trainer = Trainer(max_steps=…, accumulate_grad_batches=…)
    trainer.fit(model, loader, ckpt_path=follow(a, trainer))

Lightning's own checkpoint has no random numbers, and in the middle of an epoch the data begins again.
Both are restored here. Written against lightning 2.6.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.training.adapters import SUMS_DIFFER, read_place, write_place
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves import random_state

LIGHTNING = "lightning.ckpt"
READ_AGAIN = (
    "After a resume in the middle of an epoch its first batches are fetched again and skipped; random "
    "numbers that the model's hooks drew at the epoch's start are not drawn again."
)
VALIDATION = (
    "A validation that was due after the step of a checkpoint is not run by the attempt that resumes "
    "from it."
)
UNSIZED = (
    "A loader without a length is read one batch ahead: samples that are made with random numbers "
    "differ after a resume."
)


def follow(a: Attempt, trainer: Trainer) -> str | None:
    """Let the attempt save, watch and stop `trainer`; return the checkpoint to resume from, or None.

    Pass it to `trainer.fit(…, ckpt_path=…)`. Raises CheckpointMismatch where the folder is not
    a checkpoint of this function's, InvalidInput where the Trainer has other ranks than the attempt.
    """
    a.check_roles(accumulation=trainer.accumulate_grad_batches)
    inexact = [READ_AGAIN, VALIDATION, UNSIZED]
    if trainer.world_size > 2:
        inexact.append(SUMS_DIFFER)
    if trainer.world_size != a.world_size:
        raise InvalidInput(
            f"The Trainer has {trainer.world_size} ranks and the attempt {a.world_size}: give it "
            "devices and num_nodes of the gang's, and no launcher of its own."
        )
    found = a.folder(inexact=tuple(inexact))
    trainer.callbacks.append(_Following(a, read_place(a, found) if found else None))
    return str(found / LIGHTNING) if found else None


class _Following(Callback):
    """Ends each step in the attempt. saved: what this rank wrote beside Lightning's file, or None.

    Random numbers of training do not depend on validations, which a resumed attempt may skip: what
    they drew is undone.
    """

    def __init__(self, a: Attempt, saved: Mapping[str, Json] | None) -> None:
        self._attempt = a
        self._saved = saved
        # Of the running step's batches, each divided by the accumulation.
        self._losses: list[torch.Tensor] = []
        self._ended = self._committed = 0
        self._epoch = -1  # the one whose batches are being read
        self._epoch_random: Json = None  # the random numbers before its first batch
        self._random: Json = None  # those after the last batch that was trained on
        self._validation = ExitStack()
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go to where the data continues; take SIGTERM back, which Lightning ends without a save."""
        self._attempt.loops(True)
        for part in pl_module.children():  # Lightning calls training_step, never the module itself
            self._attempt.arm(part)
        schedulers = [each.scheduler for each in trainer.lr_scheduler_configs]
        self._attempt.follow_rate(trainer.optimizers, schedulers)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)
        self._ended = self._committed = trainer.global_step
        self._epoch = trainer.current_epoch
        saved = self._saved
        if saved is not None:
            random_state.restore(saved["epoch_random"] if saved["batches"] else saved["random"])
        self._epoch_random = random_state.capture()
        fetcher = trainer.fit_loop._data_fetcher
        loaders = trainer.fit_loop._combined_loader
        assert fetcher is not None
        assert loaders is not None
        is_restored = any(hasattr(loader, "load_state_dict") for loader in loaders.flattened)
        if not is_restored:  # else Lightning did
            for loader in loaders.flattened:
                _set_epoch(loader, self._epoch)
            iter(fetcher)
        if saved is None:
            return
        self._random = random_state.capture()
        if saved["batches"]:
            batches = saved["batches"] * trainer.accumulate_grad_batches // saved["accumulation"]
            _skip(fetcher, 0 if is_restored else batches)
            _scale_progress(trainer, batches)
            self._random = saved["random"]
        assert fetcher.iterator is not None
        fetcher.iterator = _beginning_with(self._random, fetcher.iterator)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an epoch with the random numbers that the last step of the one before left."""
        if self._epoch == trainer.current_epoch:  # `on_train_start` did
            return
        self._epoch = trainer.current_epoch
        random_state.restore(self._random)
        self._epoch_random = self._random

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Report the step where the optimizer took one; save where the attempt wants it."""
        self._random = random_state.capture()
        self._losses.append(_loss_of(outputs))
        step = trainer.global_step
        if step == self._ended:  # gradients accumulate
            return
        # At an epoch's end they may be fewer than Lightning divided each by.
        loss = torch.stack(self._losses).mean() * trainer.accumulate_grad_batches
        self._losses.clear()
        self._attempt.report(step, loss=loss)  # raises for NaN: nothing is saved of it
        ends = self._attempt.ends(step, last=self._is_last(trainer))
        self._ended = step
        if ends.save:
            self._save(trainer, batch_idx + 1)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the time of a validation be none of a step's."""
        if not trainer.sanity_checking and self._random is not None:
            self._validation.enter_context(self._attempt.evaluating())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take in what it found, and undo what it did to the random numbers."""
        if trainer.sanity_checking or self._random is None:  # before the first step
            return
        self._validation.close()
        random_state.restore(self._random)
        found = {name: float(each) for name, each in trainer.callback_metrics.items()}
        self._attempt.evaluated(trainer.global_step, **found)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last step where another callback made it the last one; leave what was the best."""
        self._attempt.loops(False)
        if self._committed < self._ended:
            self._save(trainer, 0)
        for callback in trainer.checkpoint_callbacks:
            best = Path(getattr(callback, "best_model_path", "") or "missing")
            if getattr(callback, "monitor", None) is not None and best.exists():
                self._attempt.artifact(best, name=f"best-{callback.monitor}")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """End the time of a validation that failed."""
        self._validation.close()

    def _is_last(self, trainer: Trainer) -> bool:
        if 0 <= trainer.max_steps <= trainer.global_step:
            return True
        epochs = trainer.max_epochs
        is_last_epoch = epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
        return is_last_epoch and trainer.is_last_batch

    def _save(self, trainer: Trainer, batches: int) -> None:
        """Write and commit a folder: Lightning's file, and beside it what each rank adds."""
        folder = self._attempt.work / "lightning" / f"step-{self._ended}"
        trainer.save_checkpoint(folder / LIGHTNING)
        folder.mkdir(parents=True, exist_ok=True)
        own = {
            "batches": 0 if trainer.is_last_batch else batches,
            "accumulation": trainer.accumulate_grad_batches,
            "epoch_random": self._epoch_random,
            "random": self._random,
        }
        write_place(self._attempt, folder, own)
        if self._attempt.commit_folder(self._ended, folder):
            self._committed = self._ended
        shutil.rmtree(folder, ignore_errors=True)  # the attempt has it; other ranks remove it, too


def _skip(fetcher: Any, batches: int) -> None:
    """Skip what the epoch had used: as many batches of today's size, which a remedy may have halved."""
    for _ in range(batches):
        next(fetcher if getattr(fetcher, "batches", None) else fetcher.iterator)
    fetcher.fetched, fetcher.done = 0, False  # Lightning adds what its progress says


def _beginning_with(random: Json, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield `batches`; the first is made with these random numbers, whatever was drawn till then.

    By `next` alone: `iter` of Lightning's loader begins it again.
    """
    random_state.restore(random)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield batch


def _scale_progress(trainer: Trainer, batches: int) -> None:
    """Let Lightning's count of the epoch's batches be of today's size, too."""
    progress = trainer.fit_loop.epoch_loop.batch_progress.current
    progress.completed = batches - (progress.ready - progress.completed)
    progress.ready = progress.started = progress.processed = batches


def _set_epoch(loader: Any, epoch: int) -> None:
    for part in (getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)):
        for each in (part, getattr(part, "sampler", None)):
            if callable(set_epoch := getattr(each, "set_epoch", None)):
                set_epoch(epoch)


def _loss_of(outputs: Any) -> torch.Tensor:
    """Return a batch's loss; raises InvalidInput where the module's training_step returns none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, torch.Tensor):
        raise InvalidInput(
            f"training_step returned {type(outputs).__name__} without a loss; return the loss, or a "
            "dict that has it as 'loss'."
        )
    return loss.detach()
