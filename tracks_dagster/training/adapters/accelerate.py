"""A loop over accelerate in an attempt: `save_state` folders, when the attempt wants them.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch, batches in follow_epochs(a, accelerator, loader, epochs=3):
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()

or, by steps, in one loop: `for batch in follow(a, accelerator, loader, until=1000):`.

Written against accelerate 1.15.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.track.records import Json
from tracks_dagster.training.adapters import SUMS_DIFFER, Norms, read_place, write_place
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.saves import random_state

RANDOM_SAMPLES = (
    "Samples that are made with random numbers (a random collator, an augmentation) differ after a "
    "resume in the middle of an epoch: accelerate reads one batch ahead."
)


def follow(a: Attempt, accelerator: Accelerator, loader: Any, *, until: int) -> Iterator[Any]:
    """Restore, then yield the batches of `loader` to the end of step `until`, pass after pass.

    What `prepare` returned, or `register_for_checkpointing` took, is restored and saved. A step is one
    of the optimizer's; its loss is what `accelerator.backward` is given. Do not leave the loop early:
    its last steps would be in no checkpoint. Raises CheckpointMismatch where other ranks
    saved the folder.
    """
    return _begin(a, accelerator, loader).until(until)


def follow_epochs(
    a: Attempt, accelerator: Accelerator, loader: Any, *, epochs: int
) -> Iterator[tuple[int, Iterator[Any]]]:
    """Restore as `follow` does, then yield the number of each epoch that is left, and its batches.

    Of the epoch that the checkpoint is in, those batches that are left. After a resume from an epoch's
    last step what the script does at its end is not done again. Go through all batches: raises
    TrainingError after an inner loop that is left early, but for the last epoch's.
    """
    return _begin(a, accelerator, loader).epochs(epochs)


def _begin(a: Attempt, accelerator: Accelerator, loader: Any) -> _Following:
    """Restore what the attempt resumes from."""
    a.check_roles(accumulation=accelerator.gradient_accumulation_steps)
    for model in accelerator._models:
        a.arm(model)
    sums = (SUMS_DIFFER,) if a.world_size > 2 else ()
    found = a.folder(inexact=(RANDOM_SAMPLES, *sums))
    following = _Following(a, accelerator, loader)
    if found is not None:
        following.restore(found)
    schedulers = [each.scheduler for each in accelerator._schedulers]
    a.follow_rate(accelerator._optimizers, schedulers)
    return following


@dataclass(kw_only=True)
class _Place:
    """Where one rank is. batches: of the running pass, used; random: after the last step;
    pass_random, pass_generator: before the pass's first batch, of the process and the sampler.
    """

    step: int = 0
    passes: int = 0
    batches: int = 0
    accumulation: int = 1
    random: Json = None
    pass_random: Json = None
    pass_generator: str = ""


class _Following:
    """Ends each step in the attempt, between two batches."""

    def __init__(self, a: Attempt, accelerator: Accelerator, loader: Any) -> None:
        self._attempt = a
        self._accelerator = accelerator
        self._loader = loader
        self._place = _Place()
        self._is_resumed = False
        self._losses: list[torch.Tensor] = []  # of the running step's batches
        self._norms = Norms(accelerator)
        self._backward = accelerator.backward
        accelerator.backward = self._listen

    def restore(self, folder: Path) -> None:
        """Load what `save_state` wrote, and where the data was."""
        self._place = _Place(**read_place(self._attempt, folder))
        self._accelerator.load_state(str(folder))
        self._is_resumed = True

    def until(self, step: int) -> Iterator[Any]:
        """Yield batches to the end of `step`."""
        while self._place.step < step:
            yield from self._batches(lambda: self._place.step + 1 == step)

    def epochs(self, count: int) -> Iterator[tuple[int, Iterator[Any]]]:
        """Yield the epochs that are left."""
        for epoch in range(self._place.passes, count):
            is_last_epoch = epoch + 1 == count
            yield epoch, self._batches(self._is_at_end if is_last_epoch else lambda: False)
            if not is_last_epoch and self._place.passes == epoch:
                raise TrainingError(f"The loop over epoch {epoch} ended before its last batch.")

    def _is_at_end(self) -> bool:
        """Tell whether the loader gave the last batch of its pass."""
        return bool(self._accelerator.gradient_state.end_of_dataloader)

    def _batches(self, is_last: Callable[[], bool]) -> Iterator[Any]:
        """Yield the batches that are left of a pass; none after the step that `is_last`."""
        place = self._place
        used = place.batches
        for batch in self._pass():
            yield batch
            place.batches += 1
            if self._accelerator.sync_gradients and self._end(is_last=is_last()):
                return
        if place.batches in (0, used):
            raise TrainingError(f"The loader gave no batch for step {place.step + 1}.")
        place.passes += 1
        place.batches = 0

    def _pass(self) -> Iterator[Any]:
        """Begin a pass over the loader, or go on in the one that was saved."""
        place, loader = self._place, self._loader
        generator = getattr(loader, "synchronized_generator", None)
        if self._is_resumed:
            self._is_resumed = False
            self._accelerator.step = place.batches = (
                place.batches * self._accelerator.gradient_accumulation_steps // place.accumulation
            )
            loader.iteration = place.passes
            random_state.restore(place.pass_random if place.batches else place.random)
            if generator is not None:
                generator.set_state(_tensor(place.pass_generator))
        skipped = place.batches
        place.pass_random = random_state.capture()
        place.pass_generator = "" if generator is None else _text(generator.get_state())
        batches = iter(loader)
        for _ in range(skipped):
            next(batches)
        if skipped:
            first = next(batches)
            random_state.restore(place.random)
            yield first
        yield from batches

    def _listen(self, loss: torch.Tensor, **kwargs: Any) -> None:
        self._losses.append(loss.detach())
        self._backward(loss, **kwargs)

    def _end(self, *, is_last: bool) -> bool:
        """End a step; save where the attempt wants it. Returns `is_last`."""
        place = self._place
        place.step += 1
        if not self._losses:
            raise TrainingError(
                f"Step {place.step} ended without accelerator.backward(loss), which has its loss."
            )
        loss = torch.stack(self._losses).mean()
        self._losses.clear()
        # Raises for NaN: nothing is saved of it.
        self._attempt.report(place.step, loss=loss, **self._norms.take())
        if self._attempt.ends(place.step, last=is_last).save:
            self._save()
        return is_last

    def _save(self) -> None:
        place = self._place
        place.random = random_state.capture()
        place.accumulation = self._accelerator.gradient_accumulation_steps
        folder = self._attempt.work / "accelerate" / f"step-{place.step}"
        self._accelerator.save_state(str(folder))
        own = asdict(place)
        if self._accelerator.gradient_state.end_of_dataloader:
            generator = getattr(self._loader, "synchronized_generator", None)
            after = "" if generator is None else _text(generator.get_state())
            own |= {"batches": 0, "passes": place.passes + 1, "pass_generator": after}
        write_place(self._attempt, folder, own)
        self._attempt.commit_folder(place.step, folder)
        shutil.rmtree(folder, ignore_errors=True)  # the attempt has it; other ranks remove it, too


def _text(state: torch.Tensor) -> str:
    return bytes(state.numpy().tobytes()).hex()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
