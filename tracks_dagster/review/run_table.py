"""The table of all runs: its columns, their order, and groups with the spread of each number. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import mean, stdev

from tracks_dagster.review.run_filter import (
    CONFIG,
    EVAL,
    LAST,
    PLACE_MAX,
    TIMES,
    TITLES,
    Run,
    number_of,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import IMPORTED
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import SEED
from tracks_dagster.track.text.safe_text import csv_text
from tracks_dagster.track.text.units import about, shown

AT, BEST, BEST_AT = "at.", "best.", "best_at."  # of a metric, beside its last value
SHOWN_CONFIG_MAX = 4  # keys of the config that differ, without a choice of columns
NAMES_MAX = 100  # of a choice of columns, or of an order
COLUMNS = ("run", "name", "state", "started", "hours", "step", "owner", "experiment", "tag")
_OF_METRIC = {
    LAST: "last {}",
    AT: "last {} at step",
    BEST: "best {}",
    BEST_AT: "best {} at step",
}
WHOLE_MAX = 1e15  # a float below it that is a whole number is written as one


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
    numbers = [
        n for run in runs if (n := number_of(run.get(name))) is not None and math.isfinite(n)
    ]
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


def _is_known(value: Json) -> bool:
    return value is not None and value == value


def _order(value: Json) -> tuple[bool, float, str]:
    number = number_of(value)
    return (True, 0.0, str(value)) if number is None else (False, number, "")
