"""Three lights over a run, as they were judged: healthy, improving, resources well used. Plain values.

The wing that watches judges (`watching.py` beside it asks for that); the core shows what it found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tracks_dagster.track.records import Json
from tracks_dagster.track.text.units import counted

PER_STEPS = 100  # of an advice's slope


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


# From the gravest on
GRAVITY = (Colour.RED, Colour.YELLOW, Colour.GREEN, Colour.GREY)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """word: CONTINUE, RETUNE or STOP. why: the rule that says so, in its words; empty where none does.

    slope_percent: how the loss changes in PER_STEPS steps, of its level. evaluations: since the best.
    left_device_hours: to the last step, at this pace. None: not known.
    """

    word: str
    why: str
    slope_percent: float | None
    evaluations: int | None
    left_device_hours: float | None

    @property
    def numbers(self) -> Mapping[str, float | None]:
        """The three numbers, by name."""
        return {
            "slope_percent": self.slope_percent,
            "evaluations": self.evaluations,
            "left_device_hours": self.left_device_hours,
        }

    @property
    def sentence(self) -> str:
        """The word with its three numbers, for people."""
        slope = "the slope of the loss is not known yet"
        if self.slope_percent is not None:
            slope = f"the loss changes by {self.slope_percent:+g} % in {PER_STEPS} steps"
        since = "nothing is evaluated"
        if self.evaluations is not None:
            since = f"{counted(self.evaluations, 'evaluation')} since the best"
        left = "how long is left is not known"
        if self.left_device_hours is not None:
            left = f"{self.left_device_hours:g} device hours are left"
        return f"{self.word}; {slope}, {since}, {left}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Light:
    """The answer to one question. rules: those that colour it, the gravest first."""

    question: Question
    colour: Colour
    sentence: str
    numbers: Mapping[str, Json] = field(default_factory=dict)
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lights:
    """What is known of a run's health at `as_of`.

    step: the newest; None where none is known. findings: the rules that hold, the gravest first;
    clear: the names of those that certainly do not. advice: None while nothing is known to rest it on.
    """

    run_id: str
    attempt_id: int | None
    as_of: datetime
    step: int | None
    healthy: Light
    improving: Light
    resources: Light
    findings: tuple[Finding, ...]
    clear: tuple[str, ...] = ()
    advice: Advice | None = None

    @property
    def all(self) -> tuple[Light, Light, Light]:
        """The three, in their order."""
        return self.healthy, self.improving, self.resources

    @property
    def worst(self) -> Colour:
        """The gravest colour of the three; grey is not worse than green."""
        return worst_of(light.colour for light in self.all)


def worst_of(colours: Iterable[Colour]) -> Colour:
    """Return the gravest colour; GREY only where there is no other."""
    return min(colours, key=GRAVITY.index, default=Colour.GREY)
