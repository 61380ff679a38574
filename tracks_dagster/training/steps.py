"""One rank's steps, from the first after the restore to the last, and what happens between two.

A report is where the ranks agree: on the loss, on a save, on an end. What comes before the first step
is `attempt`'s and `starting`'s work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.track.errors import (
    CheckpointWriteFailed,
    LossDiverged,
    NonFinite,
    TrainingError,
)
from tracks_dagster.training.drills import Drills
from tracks_dagster.training.feeding import NOTHING, Feed
from tracks_dagster.training.joining import Farewell
from tracks_dagster.training.last_word import Drained
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.leaving import Finished, LeftEarly, left_by_exception
from tracks_dagster.training.pulse import Pulse
from tracks_dagster.training.sampling import Batch
from tracks_dagster.training.saves.saving import Saver
from tracks_dagster.training.saves.state_watch import StateWatch
from tracks_dagster.training.starting import Begun
from tracks_dagster.training.step_log import StepLog
from tracks_dagster.training.triggers import StopSignal, Triggers


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """How the loop was left before its end. is_idle: the running step had computed nothing yet."""

    by_exception: bool
    is_idle: bool


class Steps:
    """The steps from the one after `begun` to `until`.

    begun: the step that was restored; running: the step that the script is in; drained: what ended the
    steps before the last; failed: what `run` or `report` raised last.
    """

    def __init__(
        self,
        launch: Launch,
        begun: Begun,
        *,
        until: int,
        stop: StopSignal,
        farewell: Farewell,
        drills: Drills,
        pulse: Pulse,
        log: StepLog,
        saver: Saver,
        feed: Feed,
        watch: StateWatch,
    ) -> None:
        self.saver = saver
        self.running = 0
        self.drained: Drained | None = None
        self.failed: BaseException | None = None
        self._left: Left | None = None
        self._launch = launch
        self.begun = self._done = begun.step  # the last step reported
        self._until = until
        self._stop = stop
        self._farewell = farewell
        self._drills = drills
        self._pulse = pulse
        self._log = log
        self._feed = feed
        self._watch = watch
        self._drains_after: int | None = None  # the last step to run, once SIGTERM came
        cadence = launch.opened.cadence or launch.declared.cadence
        self._triggers = Triggers(cadence, stop, launch.place, is_clock=launch.ranks.is_first)

    def run(self) -> Iterator[tuple[int, Batch]]:
        """Yield (step, this rank's share) as `Attempt.steps` does."""
        try:
            yield from self._turns()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failed = error
            raise

    def report(self, step: int, loss: float | torch.Tensor, metrics: Mapping[str, Any]) -> None:
        """End a step as `Attempt.report` does."""
        try:
            self._report(step, loss, metrics)
        except BaseException as error:
            self.failed = error
            raise
        self.failed = None

    def _turns(self) -> Iterator[tuple[int, Batch]]:
        self._triggers.saved()
        self._drills.begin(0)
        for step in range(self._done + 1, self._until + 1):
            self._drills.begin(step)
            self.running = step
            self._log.data_asked(step)
            self._drills.fetch(step)
            batch = self._feed.next(step)
            if batch is NOTHING:
                raise TrainingError(
                    f"The loader ended before step {step} of {self._until}; build it over "
                    "a.sampler(…), or give one that can be gone through again (a generator cannot)."
                )
            self._log.data_came(step)
            self._drills.compute(step)
            try:
                yield step, batch
            except GeneratorExit:
                self._left = Left(by_exception=left_by_exception(), is_idle=not self._log.computed)
                raise
            self._watch.turn(self._done)
            if self._done != step:
                raise TrainingError(
                    f"Step {step} was not reported before the next batch was asked for; call a.report "
                    "once a step. What asks one batch ahead, as Lightning does of a loader without "
                    "__len__, needs a.steps wrapped in a class with __len__."
                )
        self._log.close()
        self._pulse.beat(Phase.ENDING, self._until)

    def _report(self, step: int, loss: float | torch.Tensor, metrics: Mapping[str, Any]) -> None:
        if step == self._done and self._done > self.begun:
            raise TrainingError(
                f"Step {step} was reported twice; call a.report once in each turn of the loop."
            )
        if step != self.running:
            raise TrainingError(
                f"Step {step} was reported out of order: step {self.running} is the one that runs. "
                "Report the number that a.steps gave."
            )
        value = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
        self._pulse.beat(Phase.REPORTING, step)
        value = self._drills.loss(step, value)
        asked = [value, self.saver.must_settle, *self._triggers.asked(self.saver.slowest_s)]
        sums = self._launch.ranks.sum([*asked, *self._log.figures()])
        loss_sum, settles, *wishes = sums[: len(asked)]
        self._log.write_ranks(sums[len(asked) :])
        if settles:
            self._settle()
        self._take(step, loss_sum / self._launch.ranks.world_size, value, metrics)
        self._done = self._farewell.step = step
        trigger = self._triggers.choose(step, wishes, is_last=step == self._until)
        if self._drains_after is not None and trigger != "final":
            trigger = None  # what is replayed next must not be saved
        if trigger is not None:
            self._save(trigger)
        is_preempted = False
        if self._drills.is_due_after(step):
            self._settle()  # what a drill shows does not depend on a disk's speed
            is_preempted = self._drills.play_after(step, self._stop)
        if step == self._until:
            self._farewell.completed(self._finished())
            return
        if (is_preempted or trigger == "sigterm") and self._drains_after is None:
            self._drains_after = step + self._launch.replay_steps
            self._save_to_stop()
        if step == self._drains_after:
            self._drain()

    def save_soon(self) -> None:
        """Ask for a checkpoint at the end of the running step."""
        self._triggers.ask()

    def finish(self, *, exits: bool) -> Finished:
        """Save the last steps of a loop that the script left early, and return how far it came.

        exits: sys.exit(0) ends the script. Raises what `report` raised where the script caught it,
        LeftEarly where an exception or an exit ended the loop.
        """
        if self._done < self._until and self.failed is not None:
            raise self.failed
        if self._done < self._until and self._is_cut_off(exits):
            self._save_cut_off()
            raise LeftEarly(self._describe_cut(exits))
        self._settle()
        if self.saver.saved_step < self._done:
            self._save("final")
        self._log.write_spent()
        self._pulse.beat(Phase.ENDING, self._done)
        self._pulse.close()
        self._launch.ranks.close()
        return self._finished()

    def _finished(self) -> Finished:
        if self._done >= self._until:
            words = f"Step {self._done}, the last one that was asked for, was reached and is saved."
            return Finished(is_complete=True, words=words)
        words = (
            f"The script left its loop after step {self._done} of {self._until}"
            f"{self._farewell.why_stopped}; "
            f"step {self.saver.saved_step} is saved."
        )
        if self._left is not None and not self._left.is_idle and self.running != self._done:
            words += (
                f" Step {self.running} was begun and not reported: what it changed is in there."
            )
        return Finished(is_complete=False, words=words)

    def _is_cut_off(self, exits: bool) -> bool:
        """Whether the script never meant to leave its loop."""
        return exits if self._left is None else self._left.by_exception

    def _save_cut_off(self) -> None:
        """Save the last step where that is still what is in memory. One rank alone knows that: of
        several, the others may be in the middle of a step."""
        is_whole = self.running == self._done or (self._left is not None and self._left.is_idle)
        if self._launch.ranks.world_size > 1 or not is_whole:
            return
        self._settle()
        if self.saver.saved_step < self._done:
            self._save("final")

    def _describe_cut(self, exits: bool) -> str:
        where = "after" if self.running == self._done else "in"
        at = f"{where} step {self.running} of {self._until}"
        how = (
            f"The script ended itself with exit code 0 {at}."
            if exits
            else f"The loop was left {at} by an exception that the script caught, or by an exit."
        )
        saved = self.saver.saved_step
        kept = f"step {saved} is saved" if saved else "no step is saved"
        return f"{how} It has not completed; {kept}. To stop early, leave the loop by break."

    def _take(self, step: int, loss: float, own_loss: float, metrics: Mapping[str, Any]) -> None:
        try:
            self._log.take(step, loss, own_loss, metrics, self._feed)
        except (NonFinite, LossDiverged) as error:
            try:
                self._settle()  # NaN weights found by the save explain more than a NaN loss
            except CheckpointWriteFailed as late:  # explains less; the journal has it
                raise error from late
            error.args = (f"{error} The last checkpoint is of step {self.saver.saved_step}.",)
            raise

    def _save(self, trigger: str) -> None:
        self._pulse.beat(Phase.SAVING, self._done)
        spent = self._log.time.spent
        with self._log.time.saving():
            self.saver.save(
                self._done,
                trigger,
                data=self._feed.position(self._done),
                progress=self._log.progress(self._done),
                metrics=self._log.metrics,
                non_finite=self._log.non_finite,
                spent=spent,
            )
        self._triggers.saved()

    def _settle(self) -> None:
        self._pulse.beat(Phase.SAVING, self._done)
        with self._log.time.saving():
            self.saver.settle()

    def _save_to_stop(self) -> None:
        """Save this step as SIGTERM asks; before any is replayed, for the grace may end in that."""
        self._settle()
        if self.saver.saved_step != self._done:
            self._save("sigterm")
        if self._drains_after != self._done:
            self._settle()

    def _drain(self) -> None:
        self._log.write_spent()
        self._launch.ranks.close()
        self.drained = Drained()
        raise self.drained
