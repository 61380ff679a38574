"""What a check of a run's health is given, and what it finds. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tracks_dagster.health.tail import Step, Tail
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.alerts import AlertState
from tracks_dagster.track.states.run_state import AttemptState, RunState


class Colour(StrEnum):
    """Of a light, and how grave a finding is. GREY: it cannot be said now."""

    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    GREY = "grey"


class Question(StrEnum):
    """The three questions that the lights answer."""

    HEALTHY = "healthy"
    IMPROVING = "improving"
    RESOURCES = "resources"

    @property
    def words(self) -> str:
        """The question as a person asks it."""
        return "resources well used?" if self is Question.RESOURCES else f"{self.value}?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that holds now. severity: YELLOW or RED. sentence: for people, with the numbers.

    about: what it concerns ("rank 5"), where the same rule may hold for several things.
    """

    rule: str
    severity: Colour
    light: Question
    sentence: str
    numbers: Mapping[str, Json] = field(default_factory=dict)
    about: tuple[str, ...] = ()


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
