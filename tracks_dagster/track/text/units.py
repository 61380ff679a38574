"""Values that a person writes into a settings file: durations, sizes, counts, shares, words.

Each reader takes the parsed value and returns what the code works with, or raises ValueError in words
that name the value, what is valid and an example. A duration has a unit, always: 24 is nobody's guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from zoneinfo import ZoneInfo

from tracks_dagster.track.text.nearest import unknown

T = TypeVar("T")
Reader = Callable[[object], T]

NONE = "none"  # takes a limit away; an empty value could as well be one that was forgotten
COUNT_MAX = 1_000_000
SHOWN_MAX = 8  # numbers of a list, in words
COST_DIGITS_MAX = 9
NUMBER_MAX = 1_000_000.0
MONEY_MAX = 1e12  # in any currency
DURATION_S_MAX = 3650 * 86_400.0  # ten years; a time minus more than that may be none
STEPS_MAX = 10**12  # no training run has more

UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
DURATION_WORDS = f"a number and its unit ({', '.join(UNITS_S)})"  # m could be minutes or months
UNITS_BYTES = {
    **{name: 1024**power for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    **{name: 1024**power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)},
}
SIZE_BYTES_MAX = 1024**5  # a PiB; no pod has more memory

_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-zµ%]*)")


def duration_s(value: object) -> float:
    """Return seconds: "90s", "5min", "1.5 h", "7d", "2w"."""
    number, unit = _amount(value, "a duration", "24h")
    if unit not in UNITS_S:
        problem = f"has the unit {unit!r}" if unit else "has no unit"
        raise ValueError(f"{shown(value)} {problem}; {_durations('24h')}")
    seconds = number * UNITS_S[unit]
    if seconds > DURATION_S_MAX:
        raise ValueError(f"{shown(value)} is more than ten years.")
    return seconds


def window(value: object) -> tuple[float | None, int | None]:
    """Return (seconds, steps), one of them None: "24h", or "10000 steps"."""
    number, unit = _amount(value, "a window", "24h, or 10000 steps")
    if unit not in ("step", "steps"):
        return duration_s(value), None
    if number > STEPS_MAX:
        raise ValueError(
            f"{shown(value)} is more than {STEPS_MAX} steps; none takes the window away."
        )
    if number != int(number) or number < 1:
        raise ValueError(f"{shown(value)} is not a number of steps; write for example 10000 steps.")
    return None, int(number)


def size_bytes(value: object) -> int:
    """Return whole bytes, 1 or more: "1GiB", "512 MiB", or as a manifest has it, "1.5Gi"."""
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match["unit"] not in UNITS_BYTES:
        raise ValueError(
            f"{shown(value)} is not a size; write a number and its unit (KiB, MiB, GiB, TiB), for "
            "example 16GiB."
        )
    found = float(match["number"]) * UNITS_BYTES[match["unit"]]
    if not 1 <= found <= SIZE_BYTES_MAX:
        raise ValueError(f"{shown(value)} is out of range; write 1B to 1024TiB.")
    return int(found)


def whole_seconds(value: object) -> int:
    """Return a duration of whole seconds, 1 or more: "90s", "2min"."""
    seconds = duration_s(value)
    if seconds != int(seconds) or seconds < 1:
        raise ValueError(f"{shown(value)} is not a whole number of seconds; write for example 90s.")
    return int(seconds)


def count(value: object) -> int:
    """Return a whole number from 0 on."""
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise ValueError(f"{shown(value)} is not a count; write a whole number, 0 to {COUNT_MAX}.")
    return value


def number(value: object) -> float:
    """Return a number from 0 on."""
    return _number(value, most=NUMBER_MAX, example="1.5")


def amount_of_money(value: object) -> float:
    """Return an amount from 0 on; its currency is that of the price table."""
    return _number(value, most=MONEY_MAX, example="200")


def share(value: object) -> float:
    """Return 0 to 1: 0.5, or "50%"."""
    found = value if type(value) in (int, float) else None
    if isinstance(value, str):
        amount, unit = _amount(value, "a share", "0.5, or 50%")
        found = amount / 100 if unit == "%" else None
    if found is None or not 0.0 <= found <= 1.0:  # type: ignore[operator]
        raise ValueError(f"{shown(value)} is not a share; write 0 to 1, or 0% to 100%.")
    return float(found)  # type: ignore[arg-type]


def time_zone(value: object) -> ZoneInfo:
    """Return a zone of the tz database: "Europe/Berlin"."""
    try:
        return ZoneInfo(name(value))
    except (KeyError, ValueError, OSError):  # OSError: a folder of zones, such as Europe
        raise ValueError(
            f"{shown(value)} is not a time zone; write for example Europe/Berlin."
        ) from None


def flag(value: object) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false.")
    return value


def name(value: object) -> str:
    """Return a word that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(
            f"{shown(value)} is not a name; write a word, in quotes if it looks like a number."
        )
    return value


def one_of(what: str, valid: dict[str, T]) -> Reader[T]:
    """Return a reader of the words of `valid`."""

    def read(value: object) -> T:
        if not isinstance(value, str) or value not in valid:
            raise ValueError(unknown(what, str(value), list(valid)))
        return valid[value]

    return read


def or_none(read: Reader[T]) -> Reader[T | None]:
    """Return a reader that takes the word "none" as well."""
    return lambda value: None if value == NONE else read(value)


def shown(value: object) -> str:
    """Return a value as its file had it, or what kind of thing it is; of lists those of few numbers."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        is_short = 0 < len(value) <= SHOWN_MAX
        are_numbers = is_short and all(isinstance(each, int | float) for each in value)
        return f"[{', '.join(map(shown, value))}]" if are_numbers else "a list"
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def in_quotes(value: object) -> str:
    """Say that a text belongs here, where YAML found a number or a truth."""
    return f"{shown(value)} is not text; write it in quotes."


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 run", "2 runs"; plural: where it is not the noun and an s."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def money(amount: float) -> str:
    """Return an amount without noughts after the point: "200", "0.5", "2500000"."""
    return f"{amount:.12g}"


def cost_text(amount: float) -> str:
    """Return what was spent: "12.50", and of a small amount two digits that count: "0.0042"."""
    return f"{amount:.{cost_digits(amount)}f}"


def cost_digits(amount: float) -> int:
    """Return how many digits after the point show an amount of money: two, more of a small one."""
    if amount == 0 or abs(amount) >= 0.1 or not math.isfinite(amount):
        return 2
    return min(COST_DIGITS_MAX, 1 - math.floor(math.log10(abs(amount))))


def about(seconds: float) -> str:
    """Return about how long that is: "0.4 s", "40 s", "40 min", "2.5 h", "3.1 d"."""
    for size, unit in ((86_400.0, "d"), (3600.0, "h")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    if seconds >= 120.0:
        return f"{seconds / 60.0:.0f} min"
    seconds = max(0.0, seconds)  # by a clock that is ahead of this one
    return f"{seconds:.0f} s" if seconds >= 10.0 or seconds == 0.0 else f"{seconds:.1f} s"


def duration(seconds: float) -> str:
    """Return a duration with the largest unit that leaves it whole: 90 s, 5 min, 24 h, 7 d."""
    units = ((name, size) for name, size in reversed(UNITS_S.items()) if name != "w")
    whole = (f"{seconds / size:g} {name}" for name, size in units if seconds % size == 0)
    # 24 h says more than 1 d, as people count a day's budget
    if seconds == UNITS_S["d"]:
        return "24 h"
    return next(whole, f"{seconds:g} s")


def byte_size(value: int) -> str:
    """Return a size as `size_bytes` reads it, with the largest unit that leaves it whole: 3 MiB."""
    whole = (
        f"{value // unit} {name}"
        for name, unit in reversed(UNITS_BYTES.items())
        if len(name) != 2 and value >= unit and value % unit == 0
    )
    return next(whole, f"{value} B")


def _number(value: object, *, most: float, example: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]
        raise ValueError(
            f"{shown(value)} is not a number from 0 to {most:g}; write for example {example}."
        )
    return float(value)  # type: ignore[arg-type]


def _amount(value: object, what: str, example: str) -> tuple[float, str]:
    """Return (number, unit); the unit is empty where there is none."""
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if isinstance(value, int | float) and type(value) is not bool and value >= 0:
        return float(min(value, DURATION_S_MAX)), ""
    if match is None:
        raise ValueError(f"{shown(value)} is not {what}; {_durations(example)}")
    return float(match["number"]), match["unit"]


def _durations(example: str) -> str:
    return f"write {DURATION_WORDS}, for example {example}."
