"""One rank's log of its steps: how long each took, what its loss was, how training has gone so far.

Every rank keeps the time and judges the loss. Rank 0 alone keeps the script's metrics, and with them
what a checkpoint says of the training so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tracks_dagster.reasons.beats import Phase
from tracks_dagster.track.records import Json
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.pulse import Pulse
from tracks_dagster.training.stepping.loss_guard import LossGuard
from tracks_dagster.training.stepping.progress import Best, Progress
from tracks_dagster.training.stepping.sampling import BatchSampler
from tracks_dagster.training.stepping.time_book import TimeBook

NAMES_MAX = 1000  # of metrics, remembered as cleaned: no step pays for it again


class StepLog:
    """Takes in every step of one rank. metrics: of the newest, with its loss; empty but on rank 0.

    time: where its seconds went. The journal's line of a step tells `step_s`, from its data to its
    report, `data_s`, the wait before, and `spent`, what the launch spent so far on all of its steps.
    """

    def __init__(self, launch: Launch, pulse: Pulse) -> None:
        self._launch = launch
        self._pulse = pulse
        self._guard = LossGuard(launch)
        self._clean_name = lru_cache(NAMES_MAX)(launch.clean)
        retention = launch.declared.retention
        self._progress = Progress(retention.metric, retention.direction)
        self.metrics: dict[str, float] = {}
        self.time = TimeBook()
        self._steps_timed = 0  # the first may compile: it tells nothing of the others
        self._data_s = 0.0  # of the running step

    @property
    def best(self) -> Best | None:
        """The best value so far of the metric that the run's retention names; rank 0's counts."""
        return self._progress.best

    @property
    def progress(self) -> dict[str, Json]:
        """How training has gone so far, for a checkpoint."""
        return self._progress.to_json()

    def restore(self, progress: Mapping[str, Json]) -> None:
        """Take up where `progress` was asked."""
        self._progress.restore(progress)
        self._guard.restore(self._progress.recent)

    def data_asked(self, step: int) -> None:
        """Say that `step` waits for its data."""
        self.time.data_asked()
        self._pulse.beat(Phase.WAITING_FOR_DATA, step)

    def data_came(self, step: int) -> None:
        """Say that `step` computes from now on."""
        self._data_s = self.time.data_came()
        self._pulse.beat(Phase.COMPUTING, step)

    def take(
        self,
        step: int,
        loss: float,
        own_loss: float,
        metrics: Mapping[str, Any],
        sampler: BatchSampler,
    ) -> None:
        """Judge the step and write it down. loss: the mean over all ranks; own_loss: this rank's.

        Raises NonFinite or LossDiverged, on every rank alike.
        """
        fields: dict[str, Json] = {
            "step_s": self.time.stepped(),
            "data_s": self._data_s,
        }
        self._guard.check(step, loss, own_loss, fields)
        if self._steps_timed:
            self._pulse.finished(fields["step_s"] + self._data_s)
        self._steps_timed += 1
        if self._launch.ranks.rank == 0:
            numbers = ((self._clean_name(name), float(each)) for name, each in metrics.items())
            finite = {name: number for name, number in numbers if math.isfinite(number)}
            self.metrics = {**finite, "loss": loss}
            fields["loss"] = loss
            fields["metrics"] = finite
            fields["cursor_to"] = sampler.cursor(step)
            fields["indices_sha256"] = sampler.indices_sha256(step)
            fields["spent"] = self.time.seconds
            self._progress.take(step, self.metrics)
        self._launch.journal.write_step(step, fields)

    def tell_spent(self) -> None:
        """Write down what was spent after the line of the last step: its save, an evaluation."""
        if self._launch.ranks.rank == 0:
            self._launch.journal.write("spent", spent=self.time.seconds)

    def settle(self) -> None:
        """Wait for the newest alert of a loss to land, for a few seconds at most."""
        self._guard.settle()
