"""An unfinished run as it is now, and the numbers that every page shows of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.attempts.pace import Pace, Span, measure, time_for
from tracks_dagster.retry.caps import Cost, max_cost_of
from tracks_dagster.review.lights import Colour, Light, Lights
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import GLOBAL_BATCH, value_of
from tracks_dagster.track.states.accounting import newest_step
from tracks_dagster.track.states.lifecycle import RunLifecycle, RunStatus, run_status
from tracks_dagster.track.states.run_state import RunState, steps_of
from tracks_dagster.wings.watch.health.tail import Tail

QUEUED, STARTING = "queued", "starting"  # beside the states of a run
NEWEST_STEPS = 20  # that shares of a step are the mean of


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReading:
    """A run's fold, the end of its journal and its lights, as of `now`.

    cost: None without a price table. waits_for: what is late or will not come by itself. queue: what
    it waits for among this machine's devices.
    """

    state: RunState
    tail: Tail
    lights: Lights
    now: datetime
    cost: Cost | None = None
    waits_for: str | None = None
    queue: str | None = None

    @property
    def status(self) -> RunStatus:
        """Its state in one word and a sentence."""
        return run_status(self.state)

    @property
    def pill(self) -> str:
        """Its state in one word, as a person sees it and `tracks status` says it: a run that waits for
        devices, a daemon or a person does not run."""
        if self.queue is not None:
            return QUEUED
        if self.waits_for is not None:
            return RunLifecycle.WAITING.value
        return STARTING if self.is_starting else self.status.state

    @property
    def is_starting(self) -> bool:
        """Whether its open attempt has no ranks together yet."""
        attempt = self.state.open_attempt
        return attempt is not None and attempt.placed is None

    @property
    def config(self) -> Mapping[str, Json]:
        """The config of its newest attempt, as remedied."""
        attempt = self.state.last_attempt
        return self.state.declared.config if attempt is None else attempt.opened.config

    @property
    def step(self) -> int | None:
        """The step it is at."""
        attempt_id, steps = self.tail.attempt_id, self.tail.steps
        known = {} if attempt_id is None or not steps else {attempt_id: steps[-1].step}
        return newest_step(self.state, known)

    @property
    def steps(self) -> int | None:
        """How many it is to run."""
        return steps_of(self.state)

    @property
    def share(self) -> float | None:
        """How far it is, 0 to 1; None where its config names no number of steps."""
        if not self.steps:
            return None
        return min(1.0, max(0.0, (self.step or 0) / self.steps))

    @property
    def loss(self) -> float | None:
        """The newest loss."""
        return self.tail.steps[-1].loss if self.tail.steps else None

    @property
    def pace(self) -> Pace | None:
        """How long a step of the open attempt takes; None before two were run."""
        attempt = self.state.open_attempt
        if attempt is None or self.tail.attempt_id != attempt.attempt_id:
            return None
        return measure(attempt.attempt_id, [each.at.timestamp() for each in self.tail.steps])

    @property
    def left(self) -> Span | None:
        """The time until its last step, with an interval; None where that is not known."""
        pace, step, steps = self.pace, self.step, self.steps
        if pace is None or step is None or steps is None:
            return None
        return time_for(pace, max(0, steps - step))

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of the whole gang; None where its config names no global batch."""
        pace = self.pace
        batch = value_of(self.config, self.state.declared.roles, GLOBAL_BATCH)
        if pace is None or pace.step_s <= 0 or type(batch) is not int:
            return None
        return batch / pace.step_s

    @property
    def data_share(self) -> float | None:
        """How much of the newest steps was a wait for data, 0 to 1."""
        newest = self.tail.steps[-NEWEST_STEPS:]
        whole = sum(each.step_s + each.data_s for each in newest)
        return sum(each.data_s for each in newest) / whole if whole > 0 else None

    @property
    def devices(self) -> int:
        """How many devices its open attempt has; 0 before its ranks came together."""
        attempt = self.state.open_attempt
        return attempt.placed.world_size if attempt is not None and attempt.placed else 0

    @property
    def committed_at(self) -> datetime | None:
        """When its newest checkpoint was committed."""
        return max((each.at for each in self.state.checkpoints), default=None)

    @property
    def max_cost(self) -> float | None:
        """What it may cost, in the price table's currency; None without a cap."""
        return max_cost_of(self.state)

    @property
    def worst(self) -> Light | None:
        """The light that asks most for a look: red before yellow; None where none does."""
        for colour in (Colour.RED, Colour.YELLOW):
            found = next((each for each in self.lights.all if each.colour == colour), None)
            if found is not None:
                return found
        return None

    @property
    def losses(self) -> list[tuple[int, float]]:
        """The thinned losses that are finite, oldest first."""
        return [(step, loss) for step, loss in self.tail.losses if math.isfinite(loss)]
