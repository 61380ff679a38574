"""One rank's steps where a framework runs the loop and writes its own folders.

The counterpart of `steps`: the script says when a step has ended (`ends`), learns whether to save and
to stop, and hands over the folder that it wrote (`commit`). Nothing is restored into memory: the
script loads the folder that `folder` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from tracks_dagster.processes.process import boot_id
from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.track.errors import LossDiverged, NonFinite, TrainingError
from tracks_dagster.track.roles import STEPS, value_of
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.drills import Drills
from tracks_dagster.training.feeding import Feed
from tracks_dagster.training.joining import Farewell
from tracks_dagster.training.last_word import Drained
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.leaving import Finished, LeftEarly
from tracks_dagster.training.pulse import Pulse
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.folders import FetchedFolder, FolderStager, fetch_folder
from tracks_dagster.training.saves.restoring import find_checkpoint
from tracks_dagster.training.saves.saving import Saver
from tracks_dagster.training.starting import (
    changed_config,
    rate_factor,
    record_restored,
)
from tracks_dagster.training.step_log import StepLog
from tracks_dagster.training.triggers import StopSignal, Triggers

SIGTERM = "sigterm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What all ranks do after a step. save: write a folder and commit it; stop: SIGTERM came.

    What is committed after `stop` is the last one. The attempt ends by itself: then, or where steps
    are replayed at the end of the last of them. trigger: why to save, as in `CheckpointCommitted`;
    None: no need to.
    """

    save: bool
    stop: bool
    trigger: str | None


class FolderSteps:
    """The steps of one launch, from the checkpoint that `path` holds. running: the step underway.

    path: the verified folder to resume from, None for a fresh start. is_parent: what trains is a
    command that saves and stops by itself; its parent says what to commit and when it has ended.
    inexact: as in `AttemptRestored`. rate_factor: of the config's learning rate since the folder;
    changed_config: its other keys that an optimizer may have, with both values.
    is_looping: a framework's loop began and has not ended; drained: what ended the steps before the
    last; failed: what a report raised last.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        stop: StopSignal,
        farewell: Farewell,
        drills: Drills,
        pulse: Pulse,
        log: StepLog,
        is_parent: bool = False,
        inexact: tuple[str, ...] = (),
    ) -> None:
        """Restore what the attempt resumes from. Collective; raises as `find_checkpoint` does."""
        self._launch = launch
        self._stop = stop
        self._farewell = farewell
        self._drills = drills
        self._pulse = pulse
        self._log = log
        self._is_parent = is_parent
        self._feed = Feed(None, (), state=None)  # the script fetches its batches itself
        self.drained: Drained | None = None
        self.failed: BaseException | None = None
        self.is_looping = False
        self._is_last: bool | None = None  # whether no step follows, where the script says so
        steps = value_of(launch.opened.config, launch.declared.roles, STEPS)
        self._until = steps if type(steps) is int else None
        found = find_checkpoint(launch, _Fetching(launch).fetch)
        known = KnownChunks()
        fetched = found.fetched
        if fetched is not None:
            if fetched.ref.run_id == launch.place.run_id:  # a branch writes every chunk of its own
                known.learn_restored(fetched.ref.manifest_sha256, fetched.manifest.chunks)
            log.restore(fetched.manifest.members["progress"].values)
        record_restored(
            launch,
            fetched.ref if fetched else None,
            cursor=None,  # the order of samples is the script's
            fallback_why=found.fallback_why,
            inexact=inexact,
        )
        self.path = fetched.path if fetched else None
        self.rate_factor = (
            rate_factor(launch, fetched.ref, config_sha256=fetched.manifest.config_sha256)
            if fetched
            else 1.0
        )
        self.changed_config = (
            changed_config(launch, fetched.ref, config_sha256=fetched.manifest.config_sha256)
            if fetched
            else {}
        )
        self._begun = self._ended = fetched.ref.step if fetched else 0
        self._reported = self._written = 0  # newest steps with a loss, and without
        self._wish: str | None = None  # why a folder is due that was not committed yet
        self._is_stopping = False
        self._drains_after: int | None = None  # the last step to run, once its folder is committed
        self._saving = ExitStack()  # open from a wish to its commit: what the framework writes, too
        self._stager = FolderStager(launch, known)
        self.saver = Saver(
            launch,
            self._stager,
            known,
            step=self._begun,
            waits=lambda s: pulse.beat(Phase.SAVING, self._ended, may_take_s=s),
        )
        cadence = launch.opened.cadence or launch.declared.cadence
        self._triggers = Triggers(cadence, stop, launch.place, is_clock=launch.ranks.is_first)
        self._triggers.saved()
        drills.begin(0)
        self._begin_next()

    @property
    def running(self) -> int:
        """The step that the script is in."""
        return self._ended + 1

    def ends(self, step: int, *, last: bool | None) -> Ends:
        """End a step as `Attempt.ends` does."""
        self._check_order(step)
        if not self._is_last:  # said once, it holds
            self._is_last = last
        self._write_unreported()
        self._pulse.beat(Phase.REPORTING, step)
        if self._drills.is_due_after(step):
            self._drills.play_after(step, self._stop)
        wishes = self._summed([float(each) for each in self._triggers.asked(self.saver.slowest_s)])
        if step > self._reported:
            self._log.ended(step)
        trigger = None
        if not self._is_parent:
            trigger = self._triggers.choose(step, wishes, is_last=bool(last), since=self._ended)
            self._is_stopping = bool(wishes[0]) and not last
        if self._drains_after is not None and not last:
            trigger = None  # what is replayed must not be saved
        self._ended = self._farewell.step = step
        self._wish = trigger or self._wish
        if self._is_stopping and self._drains_after is not None and step >= self._drains_after:
            self.drain()
        if self._wish is None:
            self._begin_next()
        else:
            self._pulse.beat(Phase.SAVING, step)
            self._saving.close()
            self._saving.enter_context(self._log.time.saving())
        return Ends(save=self._wish is not None, stop=self._is_stopping, trigger=self._wish)

    def report(self, step: int, loss: float | torch.Tensor, metrics: Mapping[str, Any]) -> None:
        """Take in a step's loss as `Attempt.report` does."""
        if not self.may_report(step):
            raise TrainingError(
                f"Step {step} was reported after step {max(self._reported, self._ended)}; report each "
                "step once, in order."
            )
        if step > self._ended:
            self._write_unreported()
        value = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
        value = self._drills.loss(step, value)
        (total,) = self._summed([value])
        self._reported = step
        try:
            self._log.take(step, total / self._launch.ranks.world_size, value, metrics, self._feed)
        except (NonFinite, LossDiverged) as error:
            error.args = (f"{error} The last checkpoint is of step {self.saver.saved_step}.",)
            self.failed = error
            raise
        self.failed = None

    def commit(self, step: int, folder: Path, *, trigger: str | None = None) -> bool:
        """Commit a folder as `Attempt.commit_folder` does. trigger: a parent's; else the wish's."""
        if step > self._ended:
            raise TrainingError(
                f"Step {step} is to be committed and the last one that ended is {self._ended}; call "
                f"a.ends({step}) first."
            )
        if step < self.saver.saved_step:
            raise TrainingError(
                f"Step {step} is to be committed after step {self.saver.saved_step}; commit in order."
            )
        if step > self.saver.saved_step:
            self._save(step, trigger or self._wish or "demand", folder)
        is_committed = self.saver.saved_step == step
        says_so = self._until is not None or self._is_last
        if is_committed and self._is_complete and says_so and not self._is_parent:
            self._farewell.completed(self._finished())
        if self._is_stopping:
            self._drains_after = self._drains_after or step + self._launch.replay_steps
            if self._ended >= self._drains_after:
                self.drain()
        if self._wish is not None:
            self._wish = None
            self._saving.close()
            self._begin_next()
        return is_committed

    @property
    def last_ended(self) -> int:
        """The last step that ended."""
        return self._ended

    @property
    def watch(self) -> tuple[str, ...]:
        """Which files of the trainer are its checkpoints: as of `Program`."""
        return self._launch.watch

    @property
    def begun(self) -> int:
        """The step that it resumed from, 0 of a fresh start."""
        return self._begun

    def may_report(self, step: int) -> bool:
        """Whether a loss of that step can still be taken in."""
        return step > max(self._reported, self._begun) and step >= self._ended

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether SIGTERM came to this rank."""
        return self._stop.received

    def expect(self, may_take_s: float) -> None:
        """Give the running step so long before it counts as a hang."""
        self._pulse.beat(Phase.COMPUTING, self.running, may_take_s=may_take_s)

    def say_last(self) -> None:
        """Say that no step follows, of a command that ends before the config's last step."""
        self._is_last = True

    def save_soon(self) -> None:
        """Ask for a checkpoint at the next `ends`."""
        self._triggers.ask()

    def finish(self, *, exits: bool) -> Finished:
        """End an attempt whose script came to its end, and return how far it came.

        exits: sys.exit(0) ends the script. Raises TrainingError for one that trained nothing, and for
        one whose last steps are in no checkpoint; LeftEarly where it was cut off; Drained where it
        obeyed SIGTERM; what a report raised, where the script caught it.
        """
        self._saving.close()
        if self._is_stopping:
            self.drain()
        self._write_unreported()
        if self.failed is not None:
            raise self.failed
        if self._is_cut_off(exits):
            raise LeftEarly(self._describe_cut(exits))
        if self.path is None and self._ended == 0:
            raise TrainingError(
                "The script ended without training: no step was ended with a.ends(step)."
            )
        if self._ended > self.saver.saved_step:
            raise TrainingError(
                f"The script ended after step {self._ended} and its last committed folder is of step "
                f"{self.saver.saved_step}: what it trained since is lost. Commit a folder after the "
                "last step; a.ends(step, last=True) asks for one."
            )
        self._log.write_spent()
        self._pulse.beat(Phase.ENDING, self._ended)
        self._pulse.close()
        self._launch.ranks.close()
        return self._finished()

    @property
    def _is_complete(self) -> bool:
        """Whether the last step has ended: the config's, else what the script says."""
        if self._until is not None:
            return self._ended >= self._until
        return self._is_last is not False

    def _is_cut_off(self, exits: bool) -> bool:
        """Whether nobody meant to end before the last step. A command ends early where it says so."""
        if self._ended == 0 or self._is_last or (self._is_complete and self._until is not None):
            return False
        is_silent = self._is_parent and not self._is_complete
        return exits or self.is_looping or is_silent

    def _finished(self) -> Finished:
        saved, until = self.saver.saved_step, self._until
        if until is None and self._is_last is None:
            words = (
                f"Step {saved} is the last one, and is saved; how many were asked for is not known."
            )
        elif self._is_complete:
            words = f"Step {saved}, the last one that was asked for, was reached and is saved."
        else:
            why = self._farewell.why_stopped
            words = (
                f"Training was stopped after step {saved}{self._of_until()}{why}, which is saved."
            )
        return Finished(is_complete=self._is_complete, words=words)

    def _describe_cut(self, exits: bool) -> str:
        at = f"after step {self._ended}{self._of_until()}"
        if exits:
            how = f"The script ended itself with exit code 0 {at}."
        elif self._is_parent:
            how = f"The command ended with exit code 0 {at}."
        else:
            how = f"The loop was left {at} by an exception that the script caught, or by an exit."
        saved = self.saver.saved_step
        kept = f"step {saved} is saved" if saved else "no step is saved"
        cure = (
            f'a line {{"step": {self._ended}, "last": true}} in TRACKS_METRICS'
            if self._is_parent
            else f"a.ends({self._ended}, last=True)"
        )
        return f"{how} It has not completed; {kept}. {cure} says that no step follows."

    def _of_until(self) -> str:
        return "" if self._until is None else f" of {self._until}"

    def _summed(self, values: list[float]) -> list[float]:
        """Return the sums over all ranks, and write down what they tell of themselves with it."""
        sums = self._launch.ranks.sum([*values, *self._log.figures()])
        self._log.write_ranks(sums[len(values) :])
        return sums[: len(values)]

    def _check_order(self, step: int) -> None:
        if step <= self._begun:
            raise TrainingError(
                f"Step {step} ended in an attempt that resumed from step {self._begun}: load the "
                f"folder that a.folder() gave ({self.path}) before training."
            )
        if step <= self._ended:
            raise TrainingError(
                f"Step {step} ended after step {self._ended}; end each step once, in order."
            )

    def _write_unreported(self) -> None:
        """Write down the last step where the script reported no loss of it."""
        if self._ended > max(self._reported, self._begun, self._written):
            self._log.passed(self._ended)
            self._written = self._ended

    def _begin_next(self) -> None:
        """Begin the step after the last; where its data is waited for, nobody tells."""
        step = self._ended + 1
        self._drills.begin(step)
        self._log.data_asked(step)
        self._drills.fetch(step)
        self._log.data_came(step)
        self._drills.compute(step)

    def _save(self, step: int, trigger: str, folder: Path) -> None:
        self._pulse.beat(Phase.SAVING, step)
        self._stager.take(folder)
        spent = self._log.time.spent
        with self._log.time.saving():
            self.saver.save(
                step,
                trigger,
                data=self._feed.position(step),
                progress=self._log.progress(step),
                metrics=self._log.metrics if step >= self._reported else {},
                non_finite=self._log.non_finite if step >= self._reported else (),
                spent=spent,
            )
            self.saver.settle()
        self._triggers.saved()

    def drain(self) -> NoReturn:
        """End as SIGTERM asked; raises Drained. Collective."""
        self._saving.close()
        self._write_unreported()
        self._log.write_spent()
        self._launch.ranks.close()
        saved = self.saver.saved_step
        # A command may end without a folder of its last step, or the ranks' commands with other ones.
        lost = f"no folder of step {self._ended} was committed, the newest one is of step {saved}"
        self.drained = Drained(lost) if self._ended > saved else Drained()
        raise self.drained


class _Fetching:
    """Fetches folders into the gang's, the ranks of one machine together."""

    def __init__(self, launch: Launch) -> None:
        self._store = launch.store
        self._root = launch.place.work / "resume"
        self._root.mkdir(parents=True, exist_ok=True)
        status = self._root.stat()
        here = [boot_id(), status.st_dev, status.st_ino]
        beside = [rank for rank, each in enumerate(launch.ranks.gather(here)) if each == here]
        self._share, self._share_count = beside.index(launch.ranks.rank), len(beside)

    def fetch(self, ref: CheckpointRef) -> FetchedFolder:
        """Fetch this rank's share."""
        return fetch_folder(
            self._store, ref, self._root, share=self._share, share_count=self._share_count
        )
