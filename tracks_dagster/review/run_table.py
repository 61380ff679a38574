"""The table of all runs: a small language that picks some of them, and their order. Pure.

    lr<0.01 state=succeeded tag:paper owner:ann "wide model"

Conditions are joined by "and". A word alone is looked for in the run's id, name, intent and experiment.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from statistics import mean, stdev
from typing import NoReturn

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import IMPORTED, STAGES
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import SEED
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.text.nearest import instead
from tracks_dagster.track.text.safe_text import csv_text
from tracks_dagster.track.text.units import about, shown

CONFIG, LAST, EVAL = "config.", "last.", "eval."
AT, BEST, BEST_AT = "at.", "best.", "best_at."  # of a metric, beside its last value
SHOWN_CONFIG_MAX = 4  # keys of the config that differ, without a choice of columns
CONDITIONS_MAX = 32
NAMES_MAX = 100  # of a choice of columns, or of an order
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
COLUMNS = ("run", "name", "state", "started", "hours", "step", "owner", "experiment", "tag")
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
_OF_METRIC = {
    LAST: "last {}",
    AT: "last {} at step",
    BEST: "best {}",
    BEST_AT: "best {} at step",
}
WHOLE_MAX = 1e15  # a float below it that is a whole number is written as one

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
        left = None if self.number is None and isinstance(found, str) else _number(found)
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
        number, span = _number(value), None
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


def names_of(text: str) -> tuple[str, ...]:
    """Return names that commas separate, each once, none of an empty text.

    Raises InvalidInput for more than NAMES_MAX, and for a text without a name in it, which was meant to
    have one.
    """
    names = tuple(dict.fromkeys(name for each in text.split(",") if (name := each.strip())))
    if len(names) > NAMES_MAX:
        raise InvalidInput(
            f"{text[:PLACE_MAX]!r}… has {len(names)} names; choose at most {NAMES_MAX}."
        )
    if text and not names:
        raise InvalidInput(
            f"{text[:PLACE_MAX]!r} has no name in it; write names with commas, for example loss,hours."
        )
    return names


def check_order(keys: Sequence[str]) -> None:
    """Raise InvalidInput for a key of an order that names nothing, such as "-"."""
    for key in keys:
        if not key.removeprefix("-").strip("- "):
            raise InvalidInput(
                f"An order by {key!r} has no name; write for example -loss: the largest first."
            )


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


def sort(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """Return them by these names, the first one counting most; -NAME: the largest first. Runs that
    lack a value come last."""
    ordered = list(runs)
    for key in reversed(keys):
        name, is_down = key.removeprefix("-"), key.startswith("-")
        found = [(run.get(name), run) for run in ordered]
        known = [(_order(value), run) for value, run in found if _is_known(value)]
        known.sort(key=itemgetter(0), reverse=is_down)
        rest = [run for value, run in found if not _is_known(value)]
        ordered = [*(run for _, run in known), *rest]
    return ordered


def default_columns(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the columns of a table for which nobody chose any: COLUMNS, the loss and one that was
    validated, the best of the latter, else of the loss, evals, the first keys of their configs that
    differ; of imported runs why they ended."""
    metrics = dict.fromkeys(
        key for run in runs for key in run.values if key.startswith((LAST, EVAL))
    )
    first = [key for key in metrics if key == f"{LAST}loss"]
    validated = [key for key in metrics if key.startswith(LAST) and "val" in key.lower()][:1]
    best = [f"{BEST}{key.removeprefix(LAST)}" for key in (validated or first)]
    best = [key for key in best if any(key in run.values for run in runs)]
    evals = [key for key in metrics if key.startswith(EVAL)][:2]
    known = [n for n in COLUMNS if not runs or any(run.get(n) is not None for run in runs)]
    if any(run.get("state") == IMPORTED for run in runs):
        known.insert(known.index("state") + 1, "reason")
    return (*known, *first, *validated, *best, *evals, *differing(runs)[:SHOWN_CONFIG_MAX])


def is_seed(name: str) -> bool:
    """Whether a column is a seed by its name: a group is over seeds, and their mean says nothing."""
    key = name.removeprefix(CONFIG).rpartition(".")[2].lower()
    return key == SEED or key.endswith(f"_{SEED}")


def title(name: str) -> str:
    """Return what is over a column: `lr` of a config, `last loss`, `best loss at step`, `duration` of
    hours, `SUITE METRIC` of an eval."""
    if name.startswith(EVAL):
        return name.removeprefix(EVAL).replace(".", " ", 1)
    for prefix, words in _OF_METRIC.items():
        if name.startswith(prefix):
            return words.format(name.removeprefix(prefix))
    return TITLES.get(name) or name.removeprefix(CONFIG)


def differing(runs: Sequence[Run]) -> list[str]:
    """Return the keys of the configs that are not the same in all runs."""
    keys = dict.fromkeys(key for run in runs for key in run.values if key.startswith(CONFIG))
    return [key for key in keys if len({repr(run.values.get(key)) for run in runs}) > 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of one column over a group: how many runs have a number, their mean, the standard deviation of a
    sample (None for one), the least and the most."""

    count: int
    mean: float
    deviation: float | None
    least: float
    most: float


def group(
    runs: Sequence[Run], by: str, columns: Sequence[str]
) -> dict[str, tuple[list[Run], dict[str, Spread]]]:
    """Return the runs by their value of `by`, in the order of the runs, with the spread of each column
    of numbers but `by` itself."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(_whole_cell(run.get(by)), []).append(run)
    own = {by, f"{CONFIG}{by}", by.removeprefix(CONFIG)}
    others = [key for key in columns if key not in own]
    return {
        name: (found, {key: spread for key in others if (spread := _spread(found, key))})
        for name, found in members.items()
    }


def _spread(runs: Sequence[Run], name: str) -> Spread | None:
    numbers = [n for run in runs if (n := _number(run.get(name))) is not None and math.isfinite(n)]
    if not numbers:
        return None
    try:
        deviation = stdev(numbers) if len(numbers) > 1 else None
    except OverflowError:  # of numbers near the largest that there are
        deviation = None
    return Spread(
        count=len(numbers),
        mean=mean(numbers),  # in fractions: a sum of floats may be too large
        deviation=deviation,
        least=min(numbers),
        most=max(numbers),
    )


def shown_spread(name: str, spread: Spread | None, count: int) -> str:
    """Return "2.25 ± 0.35 (2 of 3)" of a column, in a group of so many runs; the last part where some
    lack it. Hours are in words, as in `shown_cell`."""
    if spread is None:
        return ""
    of = "" if spread.count == count else f" ({spread.count} of {count})"
    if name in TITLES:
        deviation = f" ± {about(3600 * spread.deviation)}" if spread.deviation else ""
        return f"{about(3600 * spread.mean)}{deviation}{of}"
    deviation = f" ± {spread.deviation:.2g}" if spread.deviation else ""
    return f"{spread.mean:.4g}{deviation}{of}"


def table_csv(rows: Sequence[Run], columns: Sequence[str]) -> str:
    """Return the rows as CSV, with a line of titles."""
    return csv_text([columns, *([run.get(name) for name in columns] for run in rows)])


def shown_cell(name: str, value: Json) -> str:
    """Return a value of a column as a table shows it: times by the minute, hours in words."""
    if name in TIMES and isinstance(value, str):
        return value[:16].replace("T", " ")
    if name in TITLES and isinstance(value, int | float):
        return about(3600 * value)
    return cell(value)


def cell(value: Json) -> str:
    """Return a value as text; "" where it is not known."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return value if isinstance(value, str) else shown(value)


def _whole_cell(value: Json) -> str:
    """Return a value as text that no other value has: a cell rounds, and of a list or a mapping may
    only say that it is one."""
    if isinstance(value, float):
        return f"{value:.17g}" if value.is_integer() and abs(value) < WHOLE_MAX else repr(value)
    text = cell(value)
    is_whole = isinstance(value, str) or text not in (shown([]), shown({}))
    return text if is_whole else json.dumps(value)


def _has(value: Json, part: str) -> bool:
    return value is not None and part.lower() in str(value).lower()


def _is_text(value: Json, text: str) -> bool:
    return value is not None and str(value).lower() == text.lower()


def _number(value: Json) -> float | None:
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


def _is_known(value: Json) -> bool:
    return value is not None and value == value


def _order(value: Json) -> tuple[bool, float, str]:
    number = _number(value)
    return (True, 0.0, str(value)) if number is None else (False, number, "")
