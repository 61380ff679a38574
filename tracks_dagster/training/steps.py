"""One rank's steps, from the first after the restore to the last, and what happens between two.

A report is where the ranks agree: on the loss, on a save, on an end. What comes before the first step
is `attempt`'s and `starting`'s work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from tracks_dagster.training.pulse import Pulse
from tracks_dagster.training.sampling import Batch
from tracks_dagster.training.saves import random_state
from tracks_dagster.training.saves.saving import Saver
from tracks_dagster.training.starting import Begun
from tracks_dagster.training.step_log import StepLog
from tracks_dagster.training.triggers import StopSignal, Triggers


class Steps:
    """The steps from the one after `begun` to `until`.

    begun: the step that was restored; running: the step that the script is in.
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
    ) -> None:
        self.saver = saver
        self.running = 0
        self.drained: Drained | None = None  # what ended the steps before the last
        self._launch = launch
        self.begun = self._done = begun.step  # the last step reported
        self._until = until
        self._stop = stop
        self._farewell = farewell
        self._drills = drills
        self._pulse = pulse
        self._log = log
        self._feed = feed
        self._drawn: object = None  # the generators as the newest save has them
        self._has_warned = False  # that they were drawn from behind it
        self._drains_after: int | None = None  # the last step to run, once SIGTERM came
        cadence = launch.opened.cadence or launch.declared.cadence
        self._triggers = Triggers(cadence, stop, is_clock=launch.ranks.is_first)

    def run(self) -> Iterator[tuple[int, Batch]]:
        """Yield (step, this rank's share) as `Attempt.steps` does."""
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
            yield step, batch
            self._check_drawn()
            if self._done != step:
                raise TrainingError(
                    f"Step {step} was not reported before the next batch was asked for; call a.report "
                    "once a step. What asks one batch ahead, as Lightning does of a loader without "
                    "__len__, needs a.steps wrapped in a class with __len__."
                )
        self._log.close()
        self._pulse.beat(Phase.ENDING, self._until)

    def report(self, step: int, loss: float | torch.Tensor, metrics: Mapping[str, Any]) -> None:
        """End a step as `Attempt.report` does."""
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
        asked = [value, self.saver.must_settle, *self._triggers.asked()]
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
            return
        if (is_preempted or trigger == "sigterm") and self._drains_after is None:
            self._drains_after = step + self._launch.replay_steps
            self._save_to_stop()
        if step == self._drains_after:
            self._drain()

    def _check_drawn(self) -> None:
        """Say it, once, where the script draws between a saved step and the next one."""
        saved, self._drawn = self._drawn, None
        if saved is not None and saved != random_state.fingerprint() and not self._has_warned:
            self._has_warned = True
            self._log.warn(
                f"Random numbers were drawn after the report of step {self._done}, whose checkpoint "
                "has those of before: a resume from there draws others. Draw before a.report, or "
                "inside a.evaluating(), which puts them back."
            )

    def save_soon(self) -> None:
        """Ask for a checkpoint at the end of the running step."""
        self._triggers.ask()

    def finish(self) -> bool:
        """Save the last steps of a loop that was left before its end; return whether it reached it."""
        self._settle()
        if self.saver.saved_step < self._done:
            self._save("final")
        self._log.write_spent()
        self._pulse.beat(Phase.ENDING, self._done)
        self._pulse.close()
        self._launch.ranks.close()
        return self._done >= self._until

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
                spent=spent,
            )
        self._triggers.saved()
        if not self._has_warned:
            self._drawn = random_state.fingerprint()

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
