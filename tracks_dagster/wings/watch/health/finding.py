"""What a check of a run's health is given, and what it finds. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.ledger.prices import Prices
from tracks_dagster.review.lights import Colour, Finding, Question
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.alerts import AlertState
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.wings.watch.health.tail import Step, Tail


def found(
    rule: str,
    light: Question,
    severity: Colour,
    sentence: str,
    numbers: Mapping[str, Json],
    *,
    about: tuple[str, ...] = (),
) -> Verdicts:
    """Return the verdict that a rule holds."""
    finding = Finding(
        rule=rule, severity=severity, light=light, sentence=sentence, numbers=numbers, about=about
    )
    return {rule: finding}


# By rule what a check found: a finding, or None where the rule does not hold. A rule that is not in
# it cannot be judged now: an alert of it stays as it is.
Verdicts = dict[str, Finding | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a run is held against, beside its own record and journal.

    queue_s: how long its class may wait for devices, None without an objective. usual_step_s: what a
    step of the same config on as many devices of the same kind took before, None where none did.
    """

    queue_s: float | None = None
    prices: Prices | None = None
    usual_step_s: float | None = None


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run as it is judged at one moment. attempt: its open one; tail: of that one's journal."""

    state: RunState
    attempt: AttemptState
    tail: Tail
    as_of: datetime
    bounds: Bounds = NO_BOUNDS

    def open_alerts(self, rule: str) -> tuple[AlertState, ...]:
        """Return the open alerts of a rule, oldest first."""
        return tuple(each for each in self.state.open_alerts if each.body.rule == rule)

    def is_open(self, rule: str) -> bool:
        """Whether an alert of the rule is open: it ends only when the rule is clearly over."""
        return bool(self.open_alerts(rule))

    def newest(self, count: int) -> tuple[Step, ...]:
        """Return the newest `count` steps; none where there are fewer."""
        return self.tail.steps[-count:] if len(self.tail.steps) >= count else ()

    def age_s(self, at: datetime) -> float:
        """Return the seconds since `at`, never less than 0: clocks of machines differ."""
        return max(0.0, (self.as_of - at).total_seconds())
