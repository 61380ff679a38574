"""Runs by their values, and a small language that picks some of them. Pure.

    lr<0.01 state=succeeded tag:paper owner:ann "wide model"

Conditions are joined by "and". A word alone is looked for in the run's id, name, intent and experiment.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import STAGES
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.text.nearest import instead

CONFIG, LAST, EVAL = "config.", "last.", "eval."
CONDITIONS_MAX = 32
PLACE_MAX = 40  # signs of a filter that an error shows
FIELDS: Mapping[str, str] = {
    "run": "its id",
    "name": "what people call it",
    "tag": "one that it has",
    "state": "running, waiting, succeeded, refused, cancelled or imported: a filter takes the recorded "
    "one, and what is late to start is shown as waiting",
    "project": "whose code it trains",
    "owner": "whose run it is",
    "team": "of the owner",
    "class": "its place in the queue",
    "experiment": "the question that it belongs to",
    "stage": "kitchen_sink, smoke, canary or full",
    "intent": "what it is for",
    "started": "when it was declared; a filter takes 2026-01, 2026-01-31, 2026-01-31T10:05",
    "finished": "when it was over",
    "hours": "from its declaration to its end, or until now",
    "step": "the newest: a filter takes the one on record, and what trains is shown with that of now",
    "steps": "how many it is to have",
    "attempts": "how many were opened",
    "ranks": "processes of its gang",
    "reason": "why its newest attempt ended",
    "why": "its state in a sentence",
    "device_hours": "of the attempts that have ended",
    "money": "what the attempts that have ended cost; not known where one has no price",
    "dataset": "what it trains on",
    "commit": "of its code",
    "alias": "what it was promoted to last",
    "archived": "yes or no; without a word of it archived runs are left out",
}
TEXTS = ("run", "name", "intent", "experiment")
TAG, ARCHIVED = "tag", "archived"
NUMBERS = ("step", "steps", "attempts", "ranks", "hours", "device_hours", "money")
WORDS: Mapping[str, tuple[str, ...]] = {  # of fields that have no other
    "state": tuple(each.value for each in RunLifecycle),
    "stage": STAGES,
    ARCHIVED: ("yes", "no"),
}
TIMES = ("started", "finished")
# Of those whose cells are in words: 40 s, 2.5 h.
TITLES = {"hours": "duration", "device_hours": "device time"}
_JOINS = ("and", "or", "not")
_TOKEN = re.compile(r'\s*(?:([\w./@-]+)\s*(<=|>=|!=|==|=|<|>|~|:)\s*)?("[^"]*"|[^\s"]+)')
_NUMBER_BEGINS = re.compile(r"\s*[-+.\d]|\s*inf", re.IGNORECASE)
_TIME = re.compile(
    r"(\d{4}(?:-\d\d(?:-\d\d)?)?)"
    r"|(\d{4}-\d\d-\d\dT\d\d(?::\d\d(?::\d\d(?:\.\d{1,6})?)?)?)(Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_TIME_REST = "0000-01-01T00:00:00.000000"  # of a time that was not written to its end
_LENGTHS = {  # by how many signs of a time were written; a month and a year are cut to their ends
    4: timedelta(days=366),
    7: timedelta(days=31),
    10: timedelta(days=1),
    13: timedelta(hours=1),
    16: timedelta(minutes=1),
    19: timedelta(seconds=1),
    **{20 + n: timedelta(microseconds=10 ** (6 - n)) for n in range(1, 7)},
}
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
VALID = (
    'write conditions such as lr<0.01, state=succeeded, owner:ann, intent~wide or "a word", with '
    "< <= > >= = != for values and : or ~ for a part of a text; a value with such a sign in quotes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. values: by the names of FIELDS, and config.KEY; of a metric last.METRIC with its step
    at.METRIC, best.METRIC of a checkpoint with best_at.METRIC; eval.SUITE.METRIC of the newest
    checkpoint that the suite measured; of nothing in quarantine."""

    values: Mapping[str, Json] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The run's id."""
        return str(self.values["run"])

    def get(self, name: str) -> Json:
        """Return a value by its whole name, or by its last part: of the config, of training, of an
        eval, in this order. None where it has none; a name of FIELDS is nothing else."""
        if name in FIELDS:
            return self.values.get(name)
        for prefix in ("", CONFIG, LAST):
            if (value := self.values.get(prefix + name)) is not None:
                return value
        ending = f".{name}"
        found = (
            value
            for key, value in self.values.items()
            if key.startswith(EVAL) and key.endswith(ending)
        )
        return next(found, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition. name: empty for a word that is looked for in TEXTS. number: the value as one.
    span: of a time, its begin and its end, which is not in it: a day is as long as one."""

    name: str
    sign: str
    value: str
    number: float | None = None
    span: tuple[datetime, datetime] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values that it asks for."""
        return (self.name,) if self.name else TEXTS

    def holds(self, run: Run) -> bool:
        """Whether it is so of a run: of one of several values, for != of none. Of a value that is not
        known nothing but != is so."""
        if not self.name:
            return any(_has(run.values.get(each), self.value) for each in TEXTS)
        found = run.get(self.name)
        if isinstance(found, list):
            is_all = self.sign == "!="
            return (all if is_all else any)(map(self._is_so, found))
        return self._is_so(found)

    def _is_so(self, found: Json) -> bool:
        if self.sign in (":", "~"):
            return _has(found, self.value)
        if self.span is not None:
            return self._is_then(found, *self.span)
        left = None if self.number is None and isinstance(found, str) else number_of(found)
        if self.sign in ("=", "==", "!="):
            is_number = not isinstance(found, str)  # an id 1.50 is another one than 1.5
            are_numbers = is_number and left is not None and self.number is not None
            is_equal = left == self.number if are_numbers else _is_text(found, self.value)
            return is_equal is (self.sign != "!=")
        if left is not None and self.number is not None:
            return _COMPARE[self.sign](left, self.number)
        if found is None or left is not None or self.number is not None:
            return False
        low, high = str(found), self.value  # texts, by their signs
        return _COMPARE[self.sign]((low > high) - (low < high), 0)

    def _is_then(self, found: Json, begin: datetime, end: datetime) -> bool:
        if found is None:
            return self.sign == "!="
        at = datetime.fromisoformat(str(found))
        if self.sign in _COMPARE:
            return _COMPARE[self.sign]((at >= end) - (at < begin), 0)
        return (begin <= at < end) is (self.sign != "!=")


def parse(text: str) -> tuple[Condition, ...]:
    """Return the conditions of a filter; raises InvalidInput, with the place, for one that is not."""
    found: list[Condition] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match, rest = _TOKEN.match(text, at), text[at:].strip()[:PLACE_MAX]
        if match is None or len(found) == CONDITIONS_MAX:
            why = (
                "cannot be read" if match is None else f"has more than {CONDITIONS_MAX} conditions"
            )
            raise InvalidInput(f"The filter {why} at {rest!r}; {VALID}.")
        name, sign, value = match.groups()
        is_quoted = value.startswith('"')
        if any(each in value for each in "<>=~") and not is_quoted:
            raise InvalidInput(f"The filter cannot be read at {rest!r}; {VALID}.")
        if sign is None and not is_quoted and value.lower() in _JOINS:
            if value.lower() != "and":
                raise InvalidInput(
                    f"{value!r} joins no conditions: all of them have to be so; {VALID}. To look for "
                    "the word, write it in quotes."
                )
            at = match.end()
            continue
        value = value.strip('"')
        number, span = number_of(value), None
        _check_value(name, sign, value, number)
        if name in TIMES:
            value, number = value.replace(" ", "T"), None  # as tables show them
            span = None if sign in (":", "~") else _span(name, value)
        sign = "=" if name == TAG and sign in (":", "~") else sign or ""  # a tag is meant, no part
        found.append(Condition(name=name or "", sign=sign, value=value, number=number, span=span))
        at = match.end()
    return tuple(found)


def _check_value(name: str | None, sign: str | None, value: str, number: float | None) -> None:
    """Raise InvalidInput for a value that a field has in no run."""
    if name is None or sign in (None, ":", "~"):
        return
    words = WORDS.get(name)
    if words is not None and value.lower() not in words:
        nearest = instead(value.lower(), words, f"there are {', '.join(words)}.")
        raise InvalidInput(f"{name} is never {value[:PLACE_MAX]!r}; {nearest}")
    if name in NUMBERS and number is None:
        raise InvalidInput(f"{name} is a number, and {value[:PLACE_MAX]!r} is not one.")


def texts_beside_numbers(
    conditions: Iterable[Condition], runs: Sequence[Run]
) -> tuple[Condition, ...]:
    """Return the conditions that compare a text with what is a number in each of these runs that has
    it: no run is so."""
    return tuple(
        each
        for each in conditions
        if each.sign in _COMPARE and each.number is None and each.span is None
        if all(_is_a_number(value) for run in runs if (value := run.get(each.name)) is not None)
    )


def refuse_text(condition: Condition) -> NoReturn:
    """Raise InvalidInput for a text that is compared with numbers alone."""
    raise InvalidInput(
        f"Of these runs {condition.name} is a number, and {condition.value[:PLACE_MAX]!r} is not one."
    )


def _is_a_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _span(name: str, text: str) -> tuple[datetime, datetime]:
    """Return when a time begins and ends that is written to its year, month, day or further, of UTC
    where it has no offset; raises InvalidInput."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        day, time, offset = match.groups()
        written = day or time
        whole = f"{written}{_TIME_REST[len(written) :]}"
        begin = datetime.fromisoformat(whole + (offset or "Z"))
    except ValueError:
        raise InvalidInput(
            f"{name}: {text[:PLACE_MAX]!r} is not a time; write 2026, 2026-01, 2026-01-31, "
            "2026-01-31T10:05 or 2026-01-31T10:05+02:00, of UTC without an offset."
        ) from None
    try:
        end = begin + _LENGTHS[len(written)]
    except OverflowError:
        return begin, datetime.max.replace(tzinfo=UTC)
    return begin, end.replace(day=1) if len(written) < len("2026-01-31") else end


def pick(runs: Iterable[Run], conditions: Sequence[Condition]) -> list[Run]:
    """Return the runs of which all conditions hold, in their order."""
    return [run for run in runs if all(each.holds(run) for each in conditions)]


def refuse_unknown(name: str, runs: Sequence[Run]) -> NoReturn:
    """Raise InvalidInput for a name that no run has, with the nearest that these have, or the one whose
    title it is."""
    if (meant := next((key for key, words in TITLES.items() if words == name), None)) is not None:
        raise InvalidInput(f"No run has a {name!r}; write {meant}, a number.")
    known = {*FIELDS, *(key for run in runs for key in run.values)}
    short = {
        key.rpartition(".")[2] if key.startswith(EVAL) else key.partition(".")[2] for key in known
    }
    listed = f"there are {', '.join(FIELDS)}, and the keys of configs, metrics and evals."
    raise InvalidInput(
        f"No run has a {name!r}; {instead(name, sorted(known | short - {''}), listed)}"
    )


def _has(value: Json, part: str) -> bool:
    return value is not None and part.lower() in str(value).lower()


def _is_text(value: Json, text: str) -> bool:
    return value is not None and str(value).lower() == text.lower()


def number_of(value: Json) -> float | None:
    """Return a number, or a text that is one, as a float; None for what is not one, such as NaN."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if not isinstance(value, int | str) or isinstance(value, bool):
        return None
    if isinstance(value, str) and not _NUMBER_BEGINS.match(value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number
