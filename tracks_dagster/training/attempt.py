"""A training script's way into an attempt: `with tracks.join() as a`.

    from tracks_dagster.training import attempt as tracks

    with tracks.join() as a:
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

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import cast

import pyarrow as pa
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.stores import open_store
from tracks_dagster.stores.local_files import local_files
from tracks_dagster.track.artifacts import ARTIFACTS_MAX, note_of
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import Fenced, InvalidInput, StoreError, TrainingError
from tracks_dagster.track.media import index_key
from tracks_dagster.track.names import ENV_OBSERVE, ENV_SIZE, EXIT_FENCED, AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.track.roles import (
    GLOBAL_BATCH,
    MICRO_BATCH,
    WEIGHT_DECAY,
    key_of,
    value_of,
)
from tracks_dagster.track.samples import SKIP_WINDOWS
from tracks_dagster.training.alone import resumed_alone, say_resumed
from tracks_dagster.training.data import load_snapshot
from tracks_dagster.training.drills import Drills
from tracks_dagster.training.evaluating import (
    Evaluations,
    evaluated_before,
    leaving_no_trace,
)
from tracks_dagster.training.feeding import Feed, quiet_iterators, state_of
from tracks_dagster.training.folder_steps import Ends, FolderSteps
from tracks_dagster.training.joining import ALONE_FOLDER, Farewell, join_launch
from tracks_dagster.training.journal import complain
from tracks_dagster.training.last_word import is_exit_0, is_of_lost_rank
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.leaving import Finished, LeftEarly
from tracks_dagster.training.media import Audio as Audio
from tracks_dagster.training.media import ConfusionMatrix as ConfusionMatrix
from tracks_dagster.training.media import Histogram as Histogram
from tracks_dagster.training.media import Image as Image
from tracks_dagster.training.media import Media, MediaLog
from tracks_dagster.training.media import Table as Table
from tracks_dagster.training.media import Text as Text
from tracks_dagster.training.pulse import Pulse
from tracks_dagster.training.sampling import Batch, BatchSampler, split
from tracks_dagster.training.saves.artifacts import find_files, store_files
from tracks_dagster.training.saves.saving import Saver
from tracks_dagster.training.saves.staging import Arena
from tracks_dagster.training.saves.state_dict import check_state
from tracks_dagster.training.saves.state_watch import StateWatch
from tracks_dagster.training.saves.tensors import TensorStager
from tracks_dagster.training.saves.trained import LOADER, Stateful, Trained
from tracks_dagster.training.signals.own_time import OwnTime
from tracks_dagster.training.starting import begin, rescale
from tracks_dagster.training.step_log import Best, StepLog
from tracks_dagster.training.steps import Steps
from tracks_dagster.training.triggers import StopSignal, time_left_s

SLOWEST_BYTES_S = 1e6  # of an artifact: before that it is not a hang


@contextmanager
def join(
    *,
    config: Mapping[str, Json] | None = None,
    folder: Path = ALONE_FOLDER,
    is_parent: bool = False,
) -> Iterator[Attempt]:
    """Join the attempt that the environment names, for as long as the `with` lasts.

    config, folder: used outside an attempt only; there the script's own config is trained in
    `folder`, and resumed from it the next time. What `config` leaves open is read from the tracks.yaml
    beside the script, and so is the dataset's newest snapshot. is_parent: this process only watches a
    command that trains (`command`).

    Ends the process with EXIT_DRAINED after SIGTERM, with EXIT_FENCED when another launch took over;
    every other exception is raised on, after a last word. sys.exit(0) before the last step ends it
    with LeftEarly, unless the script had left its loop before.
    """
    if (asked := os.environ.get(ENV_SIZE)) is not None:
        from tracks_dagster.training.sizing.sized_attempt import (
            sized,
        )  # it needs what torch keeps for itself

        with sized(Path(asked)) as in_its_place:
            yield in_its_place
        return
    farewell = Farewell()
    left: SystemExit | None = None  # what ended the script, where that was not a failure
    with StopSignal() as stop:  # to the last word: SIGTERM must not cut it off
        try:
            launch = join_launch(
                os.environ, farewell, config=config or {}, folder=folder, is_parent=is_parent
            )
            attempt = Attempt(launch, stop, farewell, is_parent=is_parent)
            with attempt.saves_settled(), attempt.observed():
                try:
                    yield attempt
                except SystemExit as error:
                    if not is_exit_0(error):
                        raise
                    left = error
            finished = attempt.finish() if left is None else attempt.finish(exits=True)
            farewell.completed(finished)
            farewell.close(ship=True)
        except Fenced as error:
            farewell.failed(error)
            print(error, file=sys.stderr, flush=True)
            raise SystemExit(EXIT_FENCED) from error
        except BaseException as error:
            farewell.failed(error)
            raise
        if left is not None:
            raise left


def joined(*, config: Mapping[str, Json] | None = None, folder: Path = ALONE_FOLDER) -> Attempt:
    """Join as `join` does, until the process ends: for a script without functions, whose loop then
    needs no indenting. In a notebook, whose process goes on, use `join`.

    An exception that ends the script ends the attempt with a last word; so does its last line. An
    exit is not seen as one: what left the loop then, and an exit keeps its code.
    """
    session = join(config=config, folder=folder)
    attempt = session.__enter__()
    print_error = sys.excepthook
    is_over, joined_by = False, os.getpid()

    def end(error: BaseException | None) -> None:
        nonlocal is_over
        # A loader's worker is forked with these hooks: its end is not that of the attempt.
        if is_over or os.getpid() != joined_by:
            return
        is_over = True
        code = None
        try:
            session.__exit__(type(error) if error else None, error, None)
        except SystemExit as left:
            code = left.code
        except LeftEarly as early:
            print(early, file=sys.stderr, flush=True)
        except BaseException as late:  # noqa: BLE001 - the process's edge
            print_error(type(late), late, late.__traceback__)
            code = 1
        if isinstance(code, int):  # too late to raise it: an exit under way keeps its own code
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def on_error(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        print_error(kind, error, trace)
        end(error)

    sys.excepthook = on_error
    # Not `atexit`: by then no thread may start, and a save of the last steps needs some.
    threading._register_atexit(lambda: end(attempt.drained))  # type: ignore[attr-defined]
    return attempt


class Attempt:
    """One rank's hold on the attempt it trains. All ranks call the same methods in the same order."""

    def __init__(
        self, launch: Launch, stop: StopSignal, farewell: Farewell, *, is_parent: bool = False
    ) -> None:
        self._is_parent = is_parent
        own = OwnTime(launch.ranks.device)
        self._drills = Drills(launch, own)
        self._launch = replace(launch, store=self._drills.store)
        self._stop = stop
        self._farewell = farewell
        self._pulse = Pulse(launch.place.work, launch.ranks.rank)
        self._log = StepLog(launch, self._pulse, own)
        self._trained: Trained | None = None
        self._rehearse: Callable[[], object] | None = None
        self._samplers: list[BatchSampler] = []
        self._steps: Steps | None = None
        self._folders: FolderSteps | None = None
        self._evaluations: Evaluations | None = None
        self._watch: StateWatch | None = None
        self._artifacts = 0
        place = self._launch.place
        self._media = MediaLog(
            self._launch.store,
            run_id=place.run_id,
            index=index_key(AttemptRef(place.run_id, place.attempt_id), self._launch.launch_id),
            items_max=self._launch.declared.media_items,
            bytes_max=self._launch.declared.media_size_bytes,
            clean=self._launch.clean,
        )

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
    def drained(self) -> BaseException | None:
        """What a.report raised after SIGTERM, or None."""
        return None if self._running is None else self._running.drained

    @property
    def time_left_s(self) -> float | None:
        """Seconds until the cluster's time limit ends this gang; None where no limit is known.

        Each rank reads its own clock, so what they do by it has to be decided on one of them. SIGTERM
        comes before the limit, and `report` saves then: no script needs this for its checkpoints.
        """
        return time_left_s(self._launch.place)

    @property
    def best(self) -> Best | None:
        """The best value so far of the metric that the run's retention names; rank 0's counts."""
        return self._log.best

    def snapshot(self) -> pa.Table:
        """Return the rows that this attempt trains on.

        Raises InvalidInput where no snapshot was named, DataRejected when they were changed.
        """
        return load_snapshot(self._snapshot_store, self._snapshot())

    def data(self) -> Path:
        """Return the folder with the files of the run's snapshot, verified; not to be written to.

        Fetched once a machine; files in place are verified where they lie. Every rank may call it.
        Raises DataRejected naming files that were changed, InvalidInput without such a snapshot.
        """
        return local_files(
            self._snapshot_store,
            self._snapshot(),
            self._launch.place.cache,
            waits=lambda: self._pulse.beat(Phase.STARTING, self._running_step),
        )

    @property
    def _snapshot_store(self) -> ObjectStore:
        url = self._launch.place.data_url
        return self._drills.snapshot_store if url is None else open_store(url, probe=False)

    def _snapshot(self) -> SnapshotRef:
        snapshot = self._launch.opened.snapshot
        if snapshot is None:
            raise InvalidInput(
                "No snapshot was named for this run, and the script asks for one. Freeze files with "
                "`tracks snapshots add NAME PATH` and name the dataset in tracks.yaml (dataset: NAME), "
                "or read the data by yourself: the receipt then says that no snapshot was named."
            )
        return snapshot

    def register(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None = None,
        scaler: GradScaler | None = None,
        rehearse: Callable[[], object] | None = None,
        per_rank: Mapping[str, Stateful] | None = None,
        **named: Stateful,
    ) -> None:
        """Name what checkpoints hold. `model` may be wrapped in DDP, or sharded by FSDP2.

        rehearse: one forward and backward on any data; needed for an exact resume with DDP on three
        or more ranks. It is called once, and what it did is undone. named: further modules,
        optimizers, and whatever has state_dict and load_state_dict, each the same on all ranks;
        per_rank: states of which every rank has its own. Raises TrainingError for an optimizer that
        trains what is in no registered module, for what cannot be saved and restored, by its name, and
        for lists and other types.
        """
        if self._folders is not None:
            raise TrainingError("a.register(…) came after a.folder(); a script uses one of them.")
        self._trained = Trained(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            scaler=scaler,
            named=named,
            per_rank=per_rank or {},
        )
        check_state(self._trained, has_trained=False)
        self._rehearse = rehearse
        self._drills.arm(model)
        for part in (model, *named.values()):
            if isinstance(part, nn.Module):
                self._log.own.arm(part)
        self._log.optimizer.follow(optimizer)

    def sampler(
        self, dataset_length: int, *, seed: int, global_batch: int | None = None
    ) -> BatchSampler:
        """Return the `batch_sampler` for the loader: this rank's share of every step, in order.

        global_batch: samples of a step over all ranks; without it the config's. What a rollback
        put into the config's skip_windows is left out. Called again, it gives an order for a loader
        beside that of `steps`, of which each step takes one batch. Raises TrainingError once the
        steps began.
        """
        if self._steps is not None:
            raise TrainingError(
                "Call a.sampler(…) before a.steps(…): its position is restored there."
            )
        sampler = BatchSampler(
            dataset_length,
            seed=seed,
            global_batch=global_batch or self._size(GLOBAL_BATCH),
            rank=self.rank,
            world_size=self.world_size,
            skip_windows=self.config.get(SKIP_WINDOWS),
            order=self._launch.declared.sample_order,
        )
        self._samplers.append(sampler)
        return sampler

    def split(self, batch: Batch) -> Iterator[Batch]:
        """Yield this rank's share in micro-batches of the config's size, on this rank's device."""
        return split(batch, micro_batch=self._size(MICRO_BATCH), device=self.device)

    def steps(
        self, loader: Iterable[Batch] | None = None, *, until: int
    ) -> Iterator[tuple[int, Batch]]:
        """Restore, then yield (step, this rank's share) from the next step to `until`.

        loader: over `a.sampler`, or any iterable, which is gone through again when it ends; None
        where the script fetches its batches itself. Without `a.sampler` the order is the script's: a
        loader that has state_dict and load_state_dict is registered, per rank.
        Every step must be reported before the next one is asked for.
        """
        self._steps = self._begin(loader, until)
        self._evaluate_skipped(self._steps.begun)
        yield from self._steps.run()

    def report(self, step: int, *, loss: float | torch.Tensor, **metrics: float) -> None:
        """End a step: journal it, and save or stop where it is time to.

        loss: this rank's mean over its share; what is kept is the mean over all ranks. metrics: rank
        0's are kept. A save runs in the background; how the one before ended shows here. Raises
        NonFinite, LossDiverged, Drained after SIGTERM, CheckpointWriteFailed when the last save
        failed, Fenced.
        """
        if self._running is None:
            raise TrainingError(
                f"Step {step} was reported before a.folder(), or the loop over a.steps(…), began."
            )
        if self._watch is not None:
            self._watch.check(step)
        self._running.report(step, loss, metrics)
        if self._evaluations is not None and self._evaluations.is_due(step):
            self._evaluate(step)

    def evaluate_every(self, steps: int, evaluate: Callable[[], Mapping[str, float]]) -> None:
        """Evaluate after the report of each `steps`-th step, as in `evaluating`; take in what is found.

        Every rank calls `evaluate`; what it returns goes to `evaluated`. One that the end of an attempt
        cut off, or that SIGTERM left no time for, is made when the run resumes from that step. Call
        it before `steps`. Raises InvalidInput for what is not a number of steps.
        """
        if self._running is not None:
            raise TrainingError("Call a.evaluate_every(…) before a.steps(…) or a.folder().")
        self._evaluations = Evaluations(steps, evaluate)

    def _evaluate(self, step: int) -> None:
        assert self._evaluations is not None
        with self.evaluating():
            found = self._evaluations.evaluate()
        self.evaluated(step, **found)

    def _evaluate_skipped(self, step: int) -> None:
        """Make the evaluation of the restored step where its attempt had not come to it."""
        if self._evaluations is None or not self._evaluations.is_due(step):
            return
        found = evaluated_before(self._launch, step)
        if found is None:
            self._evaluate(step)
        else:
            self._log.judge(step, found)

    def evaluated(self, step: int, **metrics: float) -> None:
        """Take in what an evaluation after `step` found: for the journal, `best`, and the record of a
        folder that is committed of that step.

        Rank 0's are kept, and only it needs to call this. What is not finite is written down so, and
        is never the best.
        """
        self._log.evaluated(step, self._drills.evaluated(metrics))

    def folder(self, *, inexact: tuple[str, ...] = ()) -> Path | None:
        """Return the verified folder to resume from, or None to start afresh.

        For what writes its own files; in place of `register` and `steps`, once, before the first
        step. It has the name that it was committed with, and lies where all ranks of this machine
        find it. inexact: what the framework cannot restore exactly, and why, a sentence each, for the
        receipt. Raises CheckpointCorrupt, CheckpointMismatch, Fenced.
        """
        if self._steps is not None or self._trained is not None:
            raise TrainingError(
                "a.folder() is for a script that writes its own files; this one called a.register(…)."
            )
        if self._folders is None:
            self._check_windows()
            self._pulse.beat(Phase.RESTORING, 0)
            with resumed_alone(self._launch):
                self._folders = FolderSteps(
                    self._launch,
                    stop=self._stop,
                    farewell=self._farewell,
                    drills=self._drills,
                    pulse=self._pulse,
                    log=self._log,
                    is_parent=self._is_parent,
                    inexact=inexact,
                )
            say_resumed(self._launch, self._folders.saver.saved_step, None)
            self._pulse.beat(Phase.STARTING, 0)  # the framework loads it now
        return self._folders.path

    def check_roles(self, **used: int) -> None:
        """Check that the script trains with what this attempt's config says, by `track.roles`.

        `a.check_roles(micro_batch=4)`. Raises InvalidInput where it does not: a retry that changed the
        config would change nothing.
        """
        for role, value in used.items():
            wanted = value_of(self.config, self._launch.declared.roles, role)
            if wanted is not None and wanted != value:
                raise InvalidInput(
                    f"The script trains with {role} {value} and the attempt's config has "
                    f"{key_of(self.config, self._launch.declared.roles, role)} = {wanted!r}: read it "
                    "from a.config, so that a retry can change it."
                )

    def follow_rate(
        self, optimizers: Iterable[Optimizer], schedulers: Iterable[LRScheduler]
    ) -> None:
        """Bring what a framework loaded from the folder to the config, where that changed since.

        Learning rates are multiplied by what the config's was multiplied by; another number of the
        optimizers that the config names as they do is set. Of what else changed stderr says that
        nobody knows whether it is used. The first optimizer's rate is written down from now on.
        """
        optimizers, folders = list(optimizers), self._of_folders(0)
        for first in optimizers[:1]:
            self._log.optimizer.follow(first)
        if folders.rate_factor != 1.0:
            rescale(optimizers, schedulers, folders.rate_factor)
        unknown = []
        for key, (then, now) in folders.changed_config.items():
            name = WEIGHT_DECAY if key == self._key(WEIGHT_DECAY) else key
            groups = [group for each in optimizers for group in each.param_groups]
            holding = [group for group in groups if name in group and group[name] == then]
            for group in holding:
                group[name] = now
            if not holding:
                unknown.append(f"{key} {then!r} → {now!r}")
        if unknown:
            self._log.warn(
                f"Changed in the config since that folder: {', '.join(unknown)}. The folder was loaded "
                "over what the script built, so whether training uses the new values is not known."
            )

    def _key(self, role: str) -> str | None:
        return key_of(self.config, self._launch.declared.roles, role)

    def arm(self, model: nn.Module) -> None:
        """Let the run's drills reach a model that `register` does not know, and time its passes."""
        self._drills.arm(model)
        self._log.own.arm(model)

    def ends(self, step: int, *, last: bool | None = None) -> Ends:
        """End a step of a loop that is not ours; return what all ranks do next.

        Once a step, in order; steps in between may be left out. last: no step follows, so a folder is
        due; None where the script does not know. Report the loss before or after it, and write and
        commit a folder where it says `save`.
        """
        return self._of_folders(step).ends(step, last=last)

    def loops(self, still: bool) -> None:
        """Say that a framework's loop runs, or has come to its end, which no exception left."""
        self._of_folders(0).is_looping = still

    def commit_folder(self, step: int, folder: Path | str) -> bool:
        """Commit the files of `folder`, of every rank, as the checkpoint of `step`; return whether.

        Training waits until it is durable: a framework may write to the folder again, or remove it,
        as soon as this returns. A step that is committed already is left as it is. A store that is
        down costs this checkpoint, an alert says so, and training goes on.

        Raises InvalidInput for a folder that cannot be restored elsewhere, and where ranks have
        different files of one name; Drained once it was committed after SIGTERM;
        CheckpointWriteFailed when that failed; Fenced.
        """
        return self._of_folders(step).commit(step, Path(folder))

    def artifact(self, path: Path | str, *, name: str | None = None) -> bool:
        """Let the run have a file, or a folder of files, beside its checkpoints; return whether it has.

        name: the path's own without it; left again under the same name, the newer one counts. Stored
        before this returns, once for equal bytes; rank 0's counts, and only it needs to call this. A
        store that is down costs the artifact, stderr says so, and training goes on. Raises InvalidInput
        for what is not there, and beyond the limits of `track.artifacts`.
        """
        if not self._launch.ranks.is_first:
            return True
        path, self._artifacts = Path(path), self._artifacts + 1
        if self._artifacts > ARTIFACTS_MAX:
            raise InvalidInput(f"{path} is one artifact too many: a launch leaves {ARTIFACTS_MAX}.")
        step, where = self._farewell.step or 0, self._launch.place
        size_bytes = sum(each.stat().st_size for each in find_files(path))
        self._pulse.beat(Phase.SAVING, step, may_take_s=size_bytes / SLOWEST_BYTES_S)
        called = self._launch.clean(name or path.name)
        try:
            files = store_files(self.store, where.run_id, path)
            note = note_of(called, files, step=step, by=f"attempt {where.attempt_id}")
            self._launch.whole_track().note(self._launch.draft(Kind.NOTE, note))
        except StoreError as error:
            complain(f"Artifact {called} was not stored: {error}")
            return False
        finally:
            self._pulse.beat(Phase.REPORTING, step)
        return True

    def log(self, step: int, shown: Mapping[str, Media] | None = None, **named: Media) -> bool:
        """Log what is more than a number: `a.log(step, sample=Text("…"), digits=Image(pixels))`.

        shown: by names that are not Python names, as "val/digits". Text, Table, Image, Histogram,
        ConfusionMatrix and Audio are of this module. Copied at once and stored in a thread; training
        never waits. Returns whether all was taken: what is too large, more than the policy allows
        (`tracking.media_items`, `media_size`), or cannot be read, is left out; stderr and the run's
        page say so, nothing is raised. Rank 0's counts, and only it needs to call this.
        """
        if not self._launch.ranks.is_first:
            return True
        every = {**(shown or {}), **named}
        is_taken = [self._media.take(step, name, each) for name, each in every.items()]
        return all(is_taken)

    @property
    def work(self) -> Path:
        """The gang's folder on this machine, which all of its ranks here share."""
        return self._launch.place.work

    @property
    def folder_steps(self) -> FolderSteps:
        """What `folder` began, for the parent of a command."""
        return self._of_folders(0)

    def gather(self, value: Json) -> list[Json]:
        """Return every rank's value, by rank."""
        return self._launch.ranks.gather(value)

    def agree(self, choose: Callable[[], Json]) -> Json:
        """Return what rank 0 chooses, on every rank."""
        return self._launch.ranks.from_first(choose)

    def _of_folders(self, step: int) -> FolderSteps:
        if self._folders is None:
            raise TrainingError(
                f"Step {step} came before a.folder(): call it first, and load what it gives."
            )
        return self._folders

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluate inside the loop, after a report: an hour is not a hang, and none of the step's time.

        Random numbers that are drawn inside, and `model.eval()`, are undone at the end: what follows
        does not depend on how often a run evaluates.
        """
        step = self._running_step
        self._pulse.beat(Phase.EVALUATING, step)
        modules = self._trained.modules.values() if self._trained else ()
        try:
            with (
                self._watch.away() if self._watch else nullcontext(),
                self._log.time.evaluating(),
                self._log.own.paused(),
                leaving_no_trace(modules),
            ):
                yield
        finally:
            self._pulse.beat(Phase.REPORTING, step)

    def save_soon(self) -> None:
        """Ask for a checkpoint at the end of the running step. One rank's wish is enough."""
        if self._running is not None:  # before the first step there is nothing to save
            self._running.save_soon()

    def converged(self) -> None:
        """Say that training has converged, before leaving the loop: it is the run's stop cause."""
        self._farewell.has_converged = True

    @contextmanager
    def saves_settled(self) -> Iterator[None]:
        """Let a save under way end before a script that failed does: it is of an earlier step."""
        rank_is_lost = False
        try:
            with quiet_iterators():
                yield
        except Exception as error:
            rank_is_lost = is_of_lost_rank(error)
            raise
        finally:
            # Else the step that failed would seem to hang while the save and the last word take time.
            self._pulse.beat(Phase.ENDING, self._running_step)
            if self._running is not None:
                self._running.saver.close(rank_is_lost=rank_is_lost)
            self._log.settle()
            self._log.close()
            self._media.close()
            if self._watch is not None:
                self._watch.close()

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Write down what each step depends on, where `tracks conform` started this rank."""
        if ENV_OBSERVE not in os.environ or self._is_parent:
            yield
            return
        from tracks_dagster.training.observing import observed

        with observed(lambda: self._running_step):
            yield

    def finish(self, *, exits: bool = False) -> Finished:
        """Save what a loop left early did not; return how far it came.

        exits: sys.exit(0) ends the script. Raises TrainingError when no step was ever asked for:
        nothing was trained; LeftEarly where the loop was not left by the script's will.
        """
        if self._running is None:
            raise TrainingError("The script ended without training; loop over a.steps(…).")
        return self._running.finish(exits=exits)

    def _begin(self, loader: Iterable[Batch] | None, until: int) -> Steps:
        if self._trained is None:
            raise TrainingError("Call a.register(…) before a.steps(…).")
        if self._steps is not None:
            raise TrainingError("a.steps(…) begins an attempt, once; continue in the same loop.")
        if not self._samplers:
            self._check_windows()
        self._pulse.beat(Phase.RESTORING, 0)
        arena = Arena(self.device)
        trained, feed = self._fed(self._trained, loader)
        with resumed_alone(self._launch):
            begun = begin(
                self._launch,
                trained,
                feed,
                arena=arena,
                until=until,
                one_backward=self._rehearse,
            )
        say_resumed(self._launch, begun.step, until)
        if begun.progress is not None:
            self._log.restore(begun.progress)
        self._watch = StateWatch(trained, step=begun.step + 1, warn=self._log.warn)
        return Steps(
            self._launch,
            begun,
            until=until,
            stop=self._stop,
            farewell=self._farewell,
            drills=self._drills,
            pulse=self._pulse,
            log=self._log,
            saver=Saver(
                self._launch,
                TensorStager(
                    self._launch,
                    trained,
                    begun.known,
                    arena,
                    built=begun.built,
                    saving=self._watch.saving,
                ),
                begun.known,
                step=begun.step,
                waits=lambda s: self._pulse.beat(Phase.SAVING, self._running_step, may_take_s=s),
            ),
            feed=feed,
            watch=self._watch,
        )

    def _check_windows(self) -> None:
        """Raise InvalidInput for windows in the config: without `a.sampler` none would be left out."""
        if self.config.get(SKIP_WINDOWS):
            raise InvalidInput(
                f"{SKIP_WINDOWS} = {self.config[SKIP_WINDOWS]!r} leaves samples out of the order of "
                "a.sampler, and this script has an order of its own: take it out, --set "
                f"{SKIP_WINDOWS}=[]."
            )

    def _fed(self, trained: Trained, loader: Iterable[Batch] | None) -> tuple[Trained, Feed]:
        """Return where the batches come from, and what is trained with the state of that."""
        registered = state_of(trained, loader)
        state = None if self._samplers else registered
        if state == LOADER and LOADER not in {*trained.named, *trained.per_rank}:
            own = {**trained.per_rank, LOADER: cast(Stateful, loader)}
            trained = replace(trained, per_rank=own)
        return trained, Feed(loader, self._samplers, state=state)

    @property
    def _running(self) -> Steps | FolderSteps | None:
        return self._folders or self._steps

    @property
    def _running_step(self) -> int:
        return 0 if self._running is None else self._running.running

    def _size(self, role: str) -> int:
        """Return a batch size from the config, by the key that has that role."""
        size = value_of(self.config, self._launch.declared.roles, role)
        if type(size) is not int:
            raise InvalidInput(
                f"The config has no {role!r} and this trainer needs it; it has: "
                f"{', '.join(sorted(self.config)) or 'nothing'}. Name the key in tracks.yaml, keys: "
                f"{{{role}: KEY}}."
            )
        return size
