"""Hugging Face's Trainer in an attempt: its checkpoints, when and where the attempt wants them.

    trainer = Trainer(model, TrainingArguments("out", **a.config), train_dataset=data)
    trainer.train(resume_from_checkpoint=follow(a, trainer))

The Trainer writes and loads its own folders; the attempt says when, and stores them. Written against
transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.training.adapters import SUMS_DIFFER, Norms
from tracks_dagster.training.attempt import Attempt

RANDOM_SAMPLES = (
    "Samples that are made with random numbers (a random collator, an augmentation) differ after a "
    "resume in the middle of an epoch: the Trainer fetches a batch ahead, and restores the random "
    "numbers only after its first fetch."
)
DATA_AGAIN = "A resume begins the epoch's data again: ignore_data_skip is set."
BEST = "best"  # the artifact
BEST_MODEL = (
    "The best model so far stays on the machine that found it: load_best_model_at_end finds those of "
    "its own attempt only."
)


def follow(a: Attempt, trainer: Trainer) -> str | None:
    """Let the attempt save, watch and stop `trainer`; return the folder to resume from, or None.

    Pass it to `trainer.train(resume_from_checkpoint=…)`. Of the Trainer's own settings it changes two:
    logging_nan_inf_filter, which hides a NaN, is switched off, and where save_total_limit is not set
    the machine keeps one folder. Raises InvalidInput for settings that would undo what the attempt
    does.
    """
    args = trainer.args
    _check(a, args)
    args.logging_nan_inf_filter = False
    if args.save_total_limit is None:
        args.save_total_limit = 1  # the attempt has stored the others
    a.arm(cast(torch.nn.Module, trainer.model))
    found = a.folder(inexact=tuple(_inexact(args)))
    following = _Following(a, trainer)
    trainer.add_callback(following)
    trainer.training_step = following.keeping_losses(trainer.training_step)
    trainer.evaluate = _in_evaluation(a, trainer.evaluate)
    return None if found is None else str(found)


class _Following(TrainerCallback):
    """Ends each step in the attempt. The last of the callbacks: it sees what the others want."""

    def __init__(self, a: Attempt, trainer: Trainer) -> None:
        self._attempt = a
        self._trainer = trainer
        # Of the running step's micro-batches, scaled to add up.
        self._losses: list[torch.Tensor] = []
        self._norms = Norms(trainer.accelerator)
        self._committed = 0

    def keeping_losses(
        self, training_step: Callable[..., torch.Tensor]
    ) -> Callable[..., torch.Tensor]:
        """Return `training_step` that also keeps each loss: a callback gets only means of many."""

        def step(*args: Any, **kwargs: Any) -> torch.Tensor:
            loss = training_step(*args, **kwargs)
            self._losses.append(loss.detach())
            return loss

        return step

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Follow a learning rate that changed since the folder, which brought back the old one."""
        self._attempt.loops(True)
        schedule = self._trainer.lr_scheduler
        schedule = getattr(schedule, "scheduler", schedule)  # what accelerate wrapped
        self._attempt.follow_rate([self._trainer.optimizer], [schedule])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the step; save where the attempt wants it."""
        loss = torch.stack(self._losses).sum()
        self._losses.clear()
        # Raises for NaN: nothing is saved of it.
        self._attempt.report(state.global_step, loss=loss, **self._norms.take())
        is_last = state.global_step >= state.max_steps
        ends = self._attempt.ends(state.global_step, last=is_last)
        control.should_save |= ends.save or control.should_training_stop
        if ends.stop:
            control.should_evaluate = False  # the grace is for the save

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        **kwargs: Any,
    ) -> None:
        """Take in what an evaluation found."""
        numbers = {name: each for name, each in metrics.items() if isinstance(each, int | float)}
        self._attempt.evaluated(state.global_step, **numbers)
        self._save_where_it_stops(state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save where another callback stops the training here."""
        self._save_where_it_stops(state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Say that the loop came to its end, and leave the best model where the Trainer put it back."""
        self._attempt.loops(False)
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            folder = self._attempt.work / BEST
            self._trainer.save_model(str(folder))
            (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle of settings
            self._attempt.artifact(folder, name=BEST)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Commit what the Trainer wrote, also where its own settings asked for it."""
        step = state.global_step
        folder = Path(cast(str, args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        if self._attempt.commit_folder(step, folder):
            self._committed = step

    def _save_where_it_stops(self, state: TrainerState, control: TrainerControl) -> None:
        """Save the last step where an evaluation, as of early stopping, made it the last one."""
        if control.should_training_stop and self._committed < state.global_step:
            control.should_save = True


def _in_evaluation(a: Attempt, evaluate: Callable[..., Any]) -> Callable[..., Any]:
    def evaluating(*args: Any, **kwargs: Any) -> Any:
        with a.evaluating():
            return evaluate(*args, **kwargs)

    return evaluating


def _check(a: Attempt, args: TrainingArguments) -> None:
    """Refuse settings that would undo what the attempt does."""
    refused = {
        "enable_jit_checkpoint": (args.enable_jit_checkpoint, "it takes SIGTERM from the attempt"),
        "auto_find_batch_size": (
            args.auto_find_batch_size,
            "it would hide an out-of-memory and change the global batch; a retry halves the "
            "micro-batch and says so",
        ),
        "save_only_model": (args.save_only_model, "nothing could resume from such a checkpoint"),
        "save_strategy='best'": (
            args.save_strategy == SaveStrategy.BEST,
            "it drops every other save; the run's retention keeps the best by its metric",
        ),
    }
    for name, (is_set, why) in refused.items():
        if is_set:
            raise InvalidInput(f"TrainingArguments has {name}: {why}. Leave it out.")
    a.check_roles(
        micro_batch=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
    )


def _inexact(args: TrainingArguments) -> Iterator[str]:
    """Yield what the Trainer cannot restore exactly, and why."""
    yield RANDOM_SAMPLES
    if args.ignore_data_skip:
        yield DATA_AGAIN
    if args.load_best_model_at_end:
        yield BEST_MODEL
    if args.world_size > 2:
        yield SUMS_DIFFER
