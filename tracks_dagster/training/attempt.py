"""A training script's way into an attempt: `with attempt.join() as a`.

    from tracks_dagster.training import attempt

    with attempt.join() as a:
        model, optimizer, scheduler = build(a.config)
        a.register(model=model, optimizer=optimizer, scheduler=scheduler, rehearse=one_backward)
        sampler = a.sampler(dataset_length, seed=7)
        for step, batch in a.steps(loader_over(sampler), until=max_steps):
            for micro in a.split(batch):
                loss = backward(micro)
            optimizer.step()
            a.report(step, loss=loss)

`join` restores, saves, obeys SIGTERM and leaves a last word; a script only trains. Under torchrun or
a launcher every rank runs the same script. Outside an attempt it works alone, on a folder of its own.
A step is one optimizer step, counted from 1; "step 20" of a checkpoint means 20 steps are done.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tracks_dagster.core.errors import Fenced, InvalidInput, NonFinite, TrainingError
from tracks_dagster.core.names import EXIT_FENCED
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.records import Json
from tracks_dagster.training.arena import Arena
from tracks_dagster.training.data import load_snapshot
from tracks_dagster.training.drills import Drills
from tracks_dagster.training.joining import ALONE_FOLDER, Farewell, join_launch
from tracks_dagster.training.last_word import Drained
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.micro_batches import Batch, split
from tracks_dagster.training.optimizer_state import parameter_names
from tracks_dagster.training.progress import Best, Progress
from tracks_dagster.training.sampling import BatchSampler
from tracks_dagster.training.saving import Saver
from tracks_dagster.training.starting import begin
from tracks_dagster.training.state_dict import Trained, unwrapped
from tracks_dagster.training.stop_signal import StopSignal
from tracks_dagster.training.triggers import Triggers


@contextmanager
def join(
    *, config: Mapping[str, Json] | None = None, folder: Path = ALONE_FOLDER
) -> Iterator[Attempt]:
    """Join the attempt that the environment names, for as long as the `with` lasts.

    config, folder: used outside an attempt only; there the script's own config is trained in
    `folder`, and resumed from it the next time.

    Ends the process with EXIT_DRAINED after SIGTERM, with EXIT_FENCED when another launch took over;
    every other exception goes on, after a last word.
    """
    farewell = Farewell()
    with StopSignal() as stop:  # to the last word: SIGTERM must not cut it off
        try:
            launch = join_launch(os.environ, farewell, config=config or {}, folder=folder)
            attempt = Attempt(launch, stop, farewell)
            with attempt.saves_settled():
                yield attempt
            farewell.completed(attempt.finish())
        except Fenced as error:
            farewell.failed(error)
            print(error, file=sys.stderr, flush=True)
            raise SystemExit(EXIT_FENCED) from error
        except BaseException as error:
            farewell.failed(error)
            raise


class Attempt:
    """One rank's hold on the attempt it trains. All ranks call the same methods in the same order."""

    def __init__(self, launch: Launch, stop: StopSignal, farewell: Farewell) -> None:
        self._launch = launch
        self._stop = stop
        self._farewell = farewell
        self._drills = Drills(launch)
        self._trained: Trained | None = None
        self._rehearse: Callable[[], object] | None = None
        self._sampler: BatchSampler | None = None
        self._saver: Saver | None = None
        retention = launch.declared.retention
        self._progress = Progress(retention.metric, retention.direction)
        self._triggers = Triggers(launch.declared.cadence, stop, is_clock=launch.ranks.is_first)
        self._until = 0
        self._running = 0  # the step that the script is in
        self._done = 0  # the last step reported
        self._metrics: dict[str, float] = {}
        self._began_at = 0.0  # monotonic: of the running step, once its data had come
        self._data_s = 0.0

    @property
    def config(self) -> Mapping[str, Json]:
        """The run's config, as remedied for this attempt."""
        return self._launch.opened.config

    @property
    def rank(self) -> int:
        """This process's number in the gang, from 0."""
        return self._launch.ranks.rank

    @property
    def world_size(self) -> int:
        """How many ranks the gang has."""
        return self._launch.ranks.world_size

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self._launch.ranks.device

    @property
    def model_family(self) -> str:
        """The family that the run was declared with."""
        return self._launch.declared.model_family

    @property
    def store(self) -> ObjectStore:
        """The object store of the run."""
        return self._launch.store

    @property
    def best(self) -> Best | None:
        """The best value so far of the metric that the run's retention names; rank 0's counts."""
        return self._progress.best

    def snapshot(self) -> pa.Table:
        """Return the rows that this attempt trains on; raises DataRejected when they were changed."""
        return load_snapshot(self._launch.store, self._launch.opened.snapshot)

    def register(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None = None,
        scaler: GradScaler | None = None,
        rehearse: Callable[[], object] | None = None,
    ) -> None:
        """Name what checkpoints hold. `model` may be wrapped in DDP, or sharded by FSDP2.

        rehearse: one forward and backward on any data; needed for an exact resume with DDP on three
        or more ranks. It is called once, and what it did is undone. Raises TrainingError for an
        optimizer that trains what is not the model's.
        """
        parameter_names(optimizer, unwrapped(model))
        self._trained = Trained(
            model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler
        )
        self._rehearse = rehearse
        self._drills.arm(model)

    def sampler(
        self, dataset_length: int, *, seed: int, global_batch: int | None = None
    ) -> BatchSampler:
        """Return the `batch_sampler` for the loader: this rank's share of every step, in order.

        global_batch: samples of a step over all ranks; without it the config says.
        """
        self._sampler = BatchSampler(
            dataset_length,
            seed=seed,
            global_batch=global_batch or self._size("global_batch"),
            rank=self.rank,
            world_size=self.world_size,
        )
        return self._sampler

    def split(self, batch: Batch) -> Iterator[Batch]:
        """Yield this rank's share in micro-batches of the config's size, on this rank's device."""
        return split(batch, micro_batch=self._size("micro_batch"), device=self.device)

    def steps(self, loader: Iterable[Batch], *, until: int) -> Iterator[tuple[int, Batch]]:
        """Restore, then yield (step, this rank's share) from the next step to `until`.

        Every step must be reported before the next one is asked for.
        """
        batches = self._begin(loader, until)
        for step in range(self._done + 1, until + 1):
            self._drills.begin(step)
            self._running = step
            asked_at = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                raise TrainingError(
                    f"The loader ended before step {step} of {until}; build it over a.sampler(…)."
                )
            self._began_at = time.monotonic()
            self._data_s = self._began_at - asked_at
            yield step, batch
            if self._done != step:
                raise TrainingError(f"Step {step} was not reported; call a.report once a step.")

    def report(self, step: int, *, loss: float | torch.Tensor, **metrics: float) -> None:
        """End a step: journal it, and save or stop where it is time to.

        loss: this rank's mean over its share; what is kept is the mean over all ranks. metrics: rank
        0's are kept. A save goes on in the background; how the one before ended shows here. Raises
        NonFinite, Drained after SIGTERM, CheckpointWriteFailed when the last save failed, Fenced.
        """
        if step != self._running or step == self._done:
            raise TrainingError(
                f"Step {step} was reported while step {self._running} is the one to report, once."
            )
        value = loss.item() if isinstance(loss, torch.Tensor) else loss
        must_settle = self._saver is not None and self._saver.must_settle
        asked = [value, must_settle, *self._triggers.asked()]
        loss_sum, settles, *wishes = self._launch.ranks.sum([float(each) for each in asked])
        if settles and self._saver is not None:
            self._saver.settle()
        self._journal_step(step, loss_sum / self.world_size, metrics)
        self._done = self._farewell.step = step
        trigger = self._triggers.choose(step, wishes, is_last=step == self._until)
        if trigger is not None:
            self._save(trigger)
        if self._saver is not None and self._drills.preempt_at(step):
            self._saver.settle()  # what a drill shows does not depend on a disk's speed
        is_preempted = self._drills.play_preemptions(step, self._stop)
        if (is_preempted or trigger == "sigterm") and step < self._until:
            self._drain()

    def save_soon(self) -> None:
        """Ask for a checkpoint at the end of the running step. One rank's wish is enough."""
        self._triggers.ask()

    @contextmanager
    def saves_settled(self) -> Iterator[None]:
        """Let a save under way end before a script that failed does: it is of an earlier step."""
        try:
            yield
        finally:
            if self._saver is not None:
                self._saver.close()

    def finish(self) -> bool:
        """Save what a loop left early did not; return whether the last step was reached.

        Raises TrainingError when no step was ever asked for: nothing was trained.
        """
        if self._saver is None:
            raise TrainingError("The script ended without training; loop over a.steps(…).")
        self._saver.settle()
        if self._saver.saved_step < self._done:
            self._save("final")
        self._launch.ranks.close()
        return self._done >= self._until

    def _begin(self, loader: Iterable[Batch], until: int) -> Iterator[Batch]:
        trained, sampler = self._parts()
        if self._saver is not None:
            raise TrainingError("a.steps(…) begins an attempt, once; go on in the same loop.")
        arena = Arena(self.device)
        begun = begin(
            self._launch,
            trained,
            sampler,
            loader,
            arena=arena,
            until=until,
            one_backward=self._rehearse,
        )
        self._until = until
        self._done = begun.step
        if begun.progress is not None:
            self._progress.restore(begun.progress)
        self._saver = Saver(self._launch, trained, begun.known, arena, step=begun.step)
        self._triggers.saved()
        self._drills.begin(0)
        return begun.batches

    def _size(self, key: str) -> int:
        """Return a batch size from the config."""
        if key not in self.config:
            raise InvalidInput(
                f"The config has no {key!r} and this trainer needs it; it has: "
                f"{', '.join(sorted(self.config)) or 'nothing'}."
            )
        size: int = self.config[key]
        return size

    def _parts(self) -> tuple[Trained, BatchSampler]:
        if self._trained is None or self._sampler is None:
            raise TrainingError("Call a.register(…) and a.sampler(…) before a.steps(…).")
        return self._trained, self._sampler

    def _journal_step(self, step: int, loss: float, metrics: Mapping[str, Any]) -> None:
        """Write the step down; raises NonFinite on every rank when the loss is not finite."""
        _, sampler = self._parts()
        fields: dict[str, Json] = {
            "step_s": round(time.monotonic() - self._began_at, 6),
            "data_s": round(self._data_s, 6),
        }
        if not math.isfinite(loss):
            self._launch.journal.write("non_finite_loss", step=step, loss=str(loss), **fields)
            if self._saver is not None:
                self._saver.settle()  # weights that were not finite before are the better answer
            raise NonFinite(
                f"The loss of step {step} is {loss}; nothing of this step is saved, the last "
                f"checkpoint is of step {self._saver.saved_step if self._saver else 0}."
            )
        if self.rank == 0:
            numbers = {name: float(value) for name, value in metrics.items()}
            self._metrics = {n: v for n, v in numbers.items() if math.isfinite(v)} | {"loss": loss}
            fields["loss"] = loss
            fields["metrics"] = {n: v for n, v in self._metrics.items() if n != "loss"}
            fields["cursor_to"] = sampler.cursor(step)
            fields["indices_sha256"] = sampler.indices_sha256(step)
            self._progress.take(step, self._metrics)
        self._launch.journal.write_step(step, fields)

    def _save(self, trigger: str) -> None:
        _, sampler = self._parts()
        if self._saver is not None:
            self._saver.save(
                self._done,
                trigger,
                data=sampler.position(self._done),
                progress=self._progress.to_json(),
                metrics=self._metrics,
            )
        self._triggers.saved()

    def _drain(self) -> None:
        if self._saver is not None:
            self._saver.settle()
            if self._saver.saved_step != self._done:
                self._save("sigterm")
        self._launch.ranks.close()
        raise Drained
