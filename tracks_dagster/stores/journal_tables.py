"""Lines of a journal as columns of numbers.

A torn line is left out, and one that is damaged; nothing is guessed. Lines with steps are most of a
journal and alike, so they are parsed together, and one by one only where something about them is
unusual: both ways give the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tracks_dagster.stores.journals import parse_lines
from tracks_dagster.track.journal_lines import (
    DEVICE,
    EVALUATED,
    LOSS,
    METRICS_MAX,
    OWN,
    RANKS,
    STEPS,
)
from tracks_dagster.track.records import Json

# Of lines, from where it pays to load pyarrow, 45 MB of memory: more than the one segment of a journal
# that a look at a living run parses.
BULK_BYTES_MIN = 320 * 1024
STEP_MAX = 2**53  # a float knows every step up to there
RANKS_MAX = 4096  # of one line

SPENT_S, CURSOR, SAMPLES = "spent_s", "cursor_to", "samples"
NUMBERS = ("step_s", "data_s", "own_s", "exchange_s", "lr", "grad_norm", SAMPLES, CURSOR)
_STEP_BEGINS = b'{"kind":"step",'  # as `training.journal` writes it

# A NumPy array; its module is imported where it is needed, the code location loads this one too.
Array = Any
Parts = Mapping[
    str, tuple[Array, Array]
]  # a column's name → the rows that have it, and their values


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The values of one column. rows: which lines have it, None for all of them.

    values: float64, (N,), of what is known by rank (N, ranks), nan where a rank's is unknown.
    """

    rows: Array | None
    values: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The lines of one kind, in the order of the journal. step: int64, (N,); at: seconds since 1970."""

    step: Array
    at: Array
    columns: Mapping[str, Column]

    def points(self, name: str) -> tuple[Array, Array, Array]:
        """Return step, at and value of every line that has the column; of none without it."""
        column = self.columns.get(name)
        if column is None:
            return self.step[:0], self.at[:0], self.at[:0]
        if column.rows is None:
            return self.step, self.at, column.values
        return self.step[column.rows], self.at[column.rows], column.values


class Gathered:
    """The lines of one kind, as they come."""

    def __init__(self) -> None:
        self._steps: list[Array] = []
        self._at: list[Array] = []
        self._parts: dict[str, list[tuple[Array, Array]]] = {}
        self._count = 0

    def add(self, step: Array, at: Array, columns: Parts) -> None:
        """Add lines. columns: their rows count from the first of these lines."""
        self._steps.append(step)
        self._at.append(at)
        for name, (rows, values) in columns.items():
            self._parts.setdefault(name, []).append((rows + self._count, values))
        self._count += len(step)

    def extend(self, table: Table) -> None:
        """Add the lines of a table."""
        import numpy as np

        every = np.arange(len(table.step))
        columns = {
            name: (every if column.rows is None else column.rows, column.values)
            for name, column in table.columns.items()
        }
        self.add(table.step, table.at, columns)

    def table(self) -> tuple[Table, int]:
        """Return the table, and how many of the script's names are left out of it."""
        import numpy as np

        names, left_out = self._chosen()
        columns = {}
        for name in names:
            rows = np.concatenate([rows for rows, _ in self._parts[name]])
            values = _stacked([values for _, values in self._parts[name]])
            columns[name] = Column(rows=None if len(rows) == self._count else rows, values=values)
        step, at = np.concatenate(self._steps), np.concatenate(self._at)
        return Table(step=step, at=at, columns=columns), left_out

    def _chosen(self) -> tuple[list[str], int]:
        """Return our own names, and of the script's the METRICS_MAX with the most values."""
        sizes = {
            name: sum(len(rows) for rows, _ in parts)
            for name, parts in self._parts.items()
            if name.startswith(OWN)
        }
        most = sorted(sizes, key=lambda name: (-sizes[name], name))[:METRICS_MAX]
        names = [*(name for name in self._parts if name not in sizes), *most]
        return names, len(sizes) - len(most)


def _stacked(parts: Sequence[Array]) -> Array:
    """Return the parts below each other; by rank, all as wide as the widest."""
    import numpy as np

    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    return np.concatenate(
        [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=np.nan) for p in parts]
    )


def parse(data: bytes, into: dict[str, Gathered]) -> None:
    """Add whole lines to `into`, by their kind."""
    steps: list[bytes] = []
    others: list[bytes] = []
    for line in data.split(b"\n"):
        if not line.startswith(_STEP_BEGINS):
            others.append(line)
        elif b'"loss":' in line:
            steps.append(line)
        elif b'"spent":' in line:  # of a script that reported no loss; other ranks have neither
            others.append(line)
    bulk = b"\n".join(steps)
    found = _parse_alike(bulk) if len(bulk) >= BULK_BYTES_MIN else None
    if found is not None:
        into.setdefault(STEPS, Gathered()).add(*found)
        steps = []
    _parse_each(parse_lines(b"\n".join([*steps, *others])), into)


# --- one by one -------------------------------------------------------------------------------------


class _Lines:
    """Values of lines of one kind, as lists."""

    def __init__(self) -> None:
        self.step: list[int] = []
        self.at: list[float] = []
        self.columns: dict[str, tuple[list[int], list[Any]]] = {}

    def add(self, step: int, at: float, values: Mapping[str, Any]) -> None:
        row = len(self.step)
        self.step.append(step)
        self.at.append(at)
        for name, value in values.items():
            rows, known = self.columns.setdefault(name, ([], []))
            rows.append(row)
            known.append(value)


def _parse_each(lines: Iterable[Mapping[str, Json]], into: dict[str, Gathered]) -> None:
    import numpy as np

    found: dict[str, _Lines] = {}
    for line in lines:
        kind, values = _values(line)
        step, at = line.get("step"), _seconds(line.get("t"))
        if values and at is not None and type(step) is int and 0 <= step <= STEP_MAX:
            found.setdefault(kind, _Lines()).add(step, at, values)
    for kind, each in found.items():
        shaped = _by_rank if kind == RANKS else np.array
        columns = {
            name: (np.array(rows), shaped(values)) for name, (rows, values) in each.columns.items()
        }
        into.setdefault(kind, Gathered()).add(np.array(each.step), np.array(each.at), columns)


def _by_rank(lines: Sequence[Sequence[float]]) -> Array:
    import numpy as np

    width = max(map(len, lines))
    return np.array([[*line, *[math.nan] * (width - len(line))] for line in lines])


def _values(line: Mapping[str, Json]) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of a line and its values by column; none of a line that is damaged."""
    kind = line.get("kind")
    try:
        if kind == STEPS:
            return STEPS, _of_step(line)
        if kind == "non_finite_loss":  # such a step has no other line
            return STEPS, {LOSS: float(line["loss"])}
        if kind == EVALUATED:
            return EVALUATED, _of_script(line)
        if kind == RANKS:
            lists = {name: each for name, each in line.items() if isinstance(each, list) and each}
            return RANKS, {name: _of_ranks(each) for name, each in lists.items()}
        if kind == DEVICE:
            numbers = {name: each for name, each in line.items() if type(each) in (int, float)}
            return DEVICE, {name: float(n) for name, n in numbers.items() if name != "step"}
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        pass
    return "", {}


def _of_step(line: Mapping[str, Json]) -> dict[str, float]:
    """Return the columns of a finished step of rank 0; it may have no loss. None of other ranks."""
    known = {name: _number(line[name]) for name in NUMBERS if line.get(name) is not None}
    spent = line.get("spent")
    if isinstance(spent, dict):
        known[SPENT_S] = float(sum(_number(s) for s in spent.values() if s is not None))
    elif "loss" not in line:
        return {}
    if "loss" in line:
        known[LOSS] = _number(line["loss"])
    return {**known, **_of_script(line)}


def _of_script(line: Mapping[str, Json]) -> dict[str, float]:
    """Return the script's metrics of a line, also those that are not finite."""
    metrics, odd = line.get("metrics") or {}, line.get("non_finite") or {}
    finite = {OWN + name: _number(value) for name, value in metrics.items() if value is not None}
    return {**finite, **{OWN + name: float(text) for name, text in odd.items()}}


def _of_ranks(values: Sequence[Json]) -> list[float]:
    return [math.nan if value is None else _number(value) for value in values[:RANKS_MAX]]


def _number(value: Json) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _seconds(text: Json) -> float | None:
    try:
        at = datetime.fromisoformat(text)
        return None if at.tzinfo is None else at.timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


# --- all together -----------------------------------------------------------------------------------


def _parse_alike(data: bytes) -> tuple[Array, Array, Parts] | None:
    """Return step, at and columns of lines with steps; None where anything about them is unusual."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import json as arrow_json

    plain = [(name, pa.float64()) for name in (LOSS, *NUMBERS)]
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("step", pa.int64()), *plain])
    options = arrow_json.ParseOptions(explicit_schema=schema)
    try:
        found = arrow_json.read_json(pa.BufferReader(data), parse_options=options).combine_chunks()
        own = _numbers_in(found, "metrics")
        spent = _numbers_in(found, "spent")
    except (pa.ArrowException, TypeError):
        return None
    step = found["step"].to_numpy()
    is_whole = not any(found[name].null_count for name in ("t", "step", LOSS))
    if not is_whole or "non_finite" in found.column_names or not _are_steps(step):
        return None
    columns = {name: found[name] for name, _ in plain}
    columns |= {OWN + name: value for name, value in own.items()}
    parts = {}
    for name, column in columns.items():
        if column.null_count < len(column):
            rows = np.flatnonzero(column.is_valid().to_numpy())
            parts[name] = (rows, column.drop_null().to_numpy())
    if spent:
        seconds = sum(each.fill_null(0.0).to_numpy() for each in spent.values())
        rows = np.flatnonzero(found["spent"].is_valid().to_numpy())
        parts[SPENT_S] = (rows, seconds[rows])
    at = found["t"].cast(pa.int64()).to_numpy() / 1e6
    return step, at, parts


def _are_steps(step: Array) -> bool:
    return len(step) > 0 and bool(step.min() >= 0) and bool(step.max() <= STEP_MAX)


def _numbers_in(found: Any, name: str) -> dict[str, Any]:
    """Return the columns of an object in each line; TypeError where it is none or holds no numbers."""
    import pyarrow as pa

    if name not in found.column_names:
        return {}
    kind = found[name].type
    if pa.types.is_null(kind):
        return {}
    if not pa.types.is_struct(kind):
        raise TypeError(f"{name} is {kind}")
    types = pa.types
    for part in kind:
        known = types.is_integer(part.type) or types.is_floating(part.type)
        if not known and not types.is_null(part.type):
            raise TypeError(f"{name}.{part.name} is {part.type}")
    values = (each.cast(pa.float64()) for each in found[name].flatten())
    return dict(zip([part.name for part in kind], values, strict=True))
