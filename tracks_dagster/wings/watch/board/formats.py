"""Numbers and lights as the board's pages show them. Pure; what is not known is a dash."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.attempts.pace import Span, format_span
from tracks_dagster.retry.caps import Cost
from tracks_dagster.review.lights import Light, Lights, Question
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.units import about, cost_text

UNKNOWN = "–"
THIN = "\u202f"  # between thousands; a line never breaks there
DIGITS = 4  # of a measured number
PLAIN_MIN, PLAIN_MAX = 1e-3, 1e6  # a smaller or larger real is written with its power of ten
SLOW_STEP_S = 1.0  # from here on seconds a step say more than steps a second


def number(value: float | None) -> str:
    """Return a measured number: 1240 → "1 240", 2.58468 → "2.585", 0.00003 → "3e-05"."""
    if value is None:
        return UNKNOWN
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == int(value) and abs(value) < 1e15:
        return grouped(int(value))
    if PLAIN_MIN <= abs(value) < PLAIN_MAX:
        digits = max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))
        return f"{value:,.{digits}f}".replace(",", THIN)
    return f"{value:.{DIGITS}g}"


def grouped(value: int | None) -> str:
    """Return a whole number with its thousands apart."""
    return UNKNOWN if value is None else f"{value:,}".replace(",", THIN)


def of_steps(step: int | None, steps: int | None) -> str:
    """Return "1 240 / 5 000", or what of it is known."""
    return grouped(step) if steps is None else f"{grouped(step or 0)} / {grouped(steps)}"


def at_step(value: str, step: int | None) -> str:
    """Return "1.249 at 300": what was measured, and after which step."""
    return f"{value} at {grouped(step)}"


def pace(step_s: float | None) -> str:
    """Return "12.4 steps/s", or of slow steps "3.2 s/step"."""
    if step_s is None or step_s <= 0:
        return UNKNOWN
    if step_s >= SLOW_STEP_S:
        return f"{number(step_s)} s/step"
    return f"{number(1.0 / step_s)} steps/s"


def left(span: Span | None) -> str:
    """Return the time that is left, with its interval."""
    return UNKNOWN if span is None else format_span(span)


def money(cost: Cost | None) -> str:
    """Return what it cost so far."""
    if cost is None or (cost.amount == 0 and cost.unpriced_s > 0):
        return UNKNOWN
    return f"{cost_text(cost.amount)} {cost.currency}"


def ago(at: datetime | None, now: datetime) -> str:
    """Return how long ago that was: "40 s ago"."""
    return UNKNOWN if at is None else f"{about((now - at).total_seconds())} ago"


def size(value: int) -> str:
    """Return a size in bytes: 1000 → "1 000 B", 3000000 → "2.86 MiB"."""
    if value < 10_000:
        return f"{grouped(value)} B"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(len(units), int(math.log(value, 1024)))
    return f"{number(value / 1024**power)} {units[power - 1]}"


def clock(at: datetime) -> str:
    """Return a moment: "2026-11-23 02:14:05 UTC"."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def share(value: float | None) -> str:
    """Return 0.125 as "12.5 %"."""
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


# --- lights ---------------------------------------------------------------------------------------


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
        numbers=_numbers(light.numbers),
    )


def _numbers(numbers: Mapping[str, Json]) -> str:
    """Return "step s 0.41, data share 3.1": plain numbers only."""
    plain = {
        name: value
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    shown = list(plain.items())[:NUMBERS_MAX]
    return ", ".join(f"{name.replace('_', ' ')} {number(value)}" for name, value in shown)
