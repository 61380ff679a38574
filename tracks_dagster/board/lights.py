"""The three lights as the pages draw them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracks_dagster.board import formats
from tracks_dagster.health.finding import Question
from tracks_dagster.health.lights import Light, Lights
from tracks_dagster.track.records import Json

NUMBERS_MAX = 6  # of one light


@dataclass(frozen=True, slots=True, kw_only=True)
class LightMark:
    """One light. colour: green, yellow, red or grey; numbers: what it rests on, in words."""

    question: str
    colour: str
    sentence: str
    numbers: str = ""


def marks(lights: Lights) -> tuple[LightMark, ...]:
    """Return the lights in their order."""
    return tuple(map(_mark, lights.all))


def unread() -> tuple[LightMark, ...]:
    """Return three grey lights: of a run whose journal is being read."""
    return tuple(
        LightMark(question=each.words.capitalize(), colour="grey", sentence="It is being read.")
        for each in Question
    )


def _mark(light: Light) -> LightMark:
    return LightMark(
        question=light.question.words.capitalize(),
        colour=light.colour.value,
        sentence=light.sentence,
        numbers=format_numbers(light.numbers),
    )


def format_numbers(numbers: Mapping[str, Json]) -> str:
    """Return "step s 0.41, data share 3.1": plain numbers only."""
    plain = {
        name: value
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    shown = list(plain.items())[:NUMBERS_MAX]
    return ", ".join(f"{name.replace('_', ' ')} {formats.number(value)}" for name, value in shown)
