"""Reads the table of all runs from the ledger, the newest runs first.

A filter and an order are decided by `run_table` alone, so that they mean the same everywhere: of each
run only the values that they name are read, and then the whole of the runs that are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.run_table import (
    ARCHIVED,
    CONFIG,
    EVAL,
    FIELDS,
    LAST,
    TAG,
    Condition,
    Run,
    parse,
    pick,
    refuse_unknown,
    sort,
)
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json, format_time, parse_time

PART = 10_000  # runs that are looked at at once: a page of the newest that fit needs few parts
READ_MAX = 100_000  # runs that one table looks at, the newest
WHOLE_MAX = 500  # runs that are read whole at once
LIKE_MAX = 200  # of the newest runs, whose names are offered in place of one that no run has

_COLUMNS = {  # of training_runs, where a field has another name
    "run": "run_id",
    "project": "model_family",
    "class": "workload_class",
    "started": "declared_at",
    "finished": "finished_at",
    "steps": "max_steps",
    "attempts": "attempt_count",
    "reason": "newest_reason",
    "why": "state_why",
    "device_hours": "device_seconds / 3600",
    "commit": "git_commit",
    "name": "called",
    TAG: "tags_json",
    ARCHIVED: "case when archived_at is null then 'no' else 'yes' end",
}
_TIMES = ("started", "finished")
_HOURS = "hours"  # made of both
# Columns of JSON, with what is before the names of their values.
_KEYED = {"config_json": CONFIG, "newest_metrics_json": LAST}
_MEASURED = {"measured_json": EVAL}  # whose keys are suites
_EMPTY, _NO_TAGS = "{}", "[]"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]+")  # that `json_at` takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """where: a filter of `run_table`. order: names, -NAME for the largest first; without any the newest
    runs come first. limit: of rows, after `skip`. names: of the values that are read; without: all."""

    where: str = ""
    order: tuple[str, ...] = ()
    limit: int = 100
    skip: int = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows. read: how many runs were looked at; is_more: others may come after these; is_cut: there
    are older runs than those `READ_MAX` that were looked at."""

    rows: tuple[Run, ...]
    read: int
    is_more: bool
    is_cut: bool = False


def read_table(ledger: Ledger, asked: Asked, *, now: datetime) -> Table:
    """Return the runs that are asked for; archived ones only where the filter names `archived`. Raises
    InvalidInput for a filter or a name that cannot be, LedgerError."""
    conditions = parse(asked.where)
    end = asked.skip + asked.limit
    if not conditions and not asked.order:
        which = f"where {_IN_USE} {_NEWEST} offset :skip"
        rows = _select(asked.names or None).runs(
            ledger, now, which, runs_max=asked.limit + 1, skip=asked.skip
        )
        shown = tuple(rows[: asked.limit])
        return Table(rows=shown, read=len(rows), is_more=len(rows) > asked.limit)
    found, read, is_cut = _found(ledger, conditions, asked, now)
    rows = found[asked.skip : end]
    whole = rows if asked.names else _whole(ledger, [run.name for run in rows], now)
    return Table(rows=tuple(whole), read=read, is_more=len(found) > end, is_cut=is_cut)


_NEWEST = "order by declared_at desc, run_id limit :runs_max"
_IN_USE = "archived_at is null"
_AFTER = "(declared_at < :at or (declared_at = :at and run_id > :run))"


def _found(
    ledger: Ledger, conditions: Sequence[Condition], asked: Asked, now: datetime
) -> tuple[list[Run], int, bool]:
    """Return the runs that fit, in their order, with the values that were asked for alone; how many
    were looked at, and whether there are older ones. Without an order as many as a page needs."""
    end = asked.skip + asked.limit
    keys = [each.removeprefix("-") for each in asked.order]
    names = dict.fromkeys([*(name for each in conditions for name in each.names), *keys])
    unseen = [name for name in names if name not in FIELDS]
    found: list[Run] = []
    read, is_more = 0, False
    which = "true" if ARCHIVED in names else _IN_USE
    for part in _parts(ledger, _select([*names, *asked.names]), which, now):
        is_more = read + len(part) > READ_MAX
        part = part[: READ_MAX - read]
        read += len(part)
        unseen = [name for name in unseen if all(run.get(name) is None for run in part)]
        found += pick(part, conditions)
        if len(found) > end and not asked.order:
            is_more = False  # it was not stopped
            break
    for name in unseen if read else ():
        _check_known(ledger, name, now)
    return sort(found, asked.order), read, is_more


def _parts(ledger: Ledger, selection: _Selection, which: str, now: datetime) -> Iterator[list[Run]]:
    """Yield the runs in parts, the newest first, up to one more than READ_MAX."""
    after: dict[str, Json] = {}
    for begin in range(0, READ_MAX + 1, PART):
        size = min(PART, READ_MAX + 1 - begin)
        older = f"{which} and {_AFTER}" if after else which
        rows = selection.rows(ledger, f"where {older} {_NEWEST}", runs_max=size, **after)
        yield [selection.run(row, now) for row in rows]
        if len(rows) < size:
            return
        after = {"at": rows[-1]["declared"], "run": rows[-1]["run"]}


def _whole(ledger: Ledger, run_ids: Sequence[str], now: datetime) -> Iterator[Run]:
    """Yield these runs with all their values, in this order; one that is gone by now is left out."""
    for begin in range(0, len(run_ids), WHOLE_MAX):
        ids = {f"r{n}": run_id for n, run_id in enumerate(run_ids[begin : begin + WHOLE_MAX])}
        which = f"where run_id in ({', '.join(f':{place}' for place in ids)})"
        found = {run.name: run for run in _select(None).runs(ledger, now, which, **ids)}
        yield from (found[run_id] for run_id in ids.values() if run_id in found)


def _check_known(ledger: Ledger, name: str, now: datetime) -> None:
    """Raise InvalidInput for a name that no run has, whatever was looked at."""
    columns = (*_KEYED, *_MEASURED)
    like = " or ".join(f"{column} like :part escape '!'" for column in columns)
    last = re.sub(r"([!%_])", r"!\1", name.rpartition(".")[2])
    asked = {"part": f'%{last}":%'}
    if not ledger.query(f"select run_id from training_runs where {like} limit 1", asked):
        refuse_unknown(name, _select(None).runs(ledger, now, _NEWEST, runs_max=LIKE_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """What is read of each run. fields: names of FIELDS that columns have; keys: whole names of values
    that are read one by one, by their aliases; columns: of JSON that are read whole."""

    fields: tuple[str, ...]
    has_hours: bool
    keys: Mapping[str, str]
    columns: Mapping[str, str]
    sql: str
    parameters: Mapping[str, str]

    def rows(self, ledger: Ledger, which: str, **values: Json) -> list[dict[str, Json]]:
        """Return the rows of these runs."""
        return ledger.query(f"{self.sql} {which}", {**self.parameters, **values})

    def runs(self, ledger: Ledger, now: datetime, which: str, **values: Json) -> list[Run]:
        """Return these runs."""
        return [self.run(row, now) for row in self.rows(ledger, which, **values)]

    def run(self, row: Mapping[str, Json], now: datetime) -> Run:
        """Return the run of a row, with the values that it has."""
        values = {name: each for name in self.fields if (each := row[name]) is not None}
        if (text := values.pop(TAG, _NO_TAGS)) != _NO_TAGS:
            values[TAG] = parse_json(text)
        for name in _TIMES:
            if isinstance(at := values.get(name), datetime):  # as one of the databases has it
                values[name] = format_time(at)
        if self.has_hours:
            values[_HOURS] = _hours(values, now)
        for alias, name in self.keys.items():
            if (text := row[alias]) is not None:
                (values[name], *_) = parse_json(text, foreign=True)
        for column, prefix in self.columns.items():
            if (text := row[column]) != _EMPTY:
                values.update(_values(column, prefix, text))
        return Run(values=values)


def _select(names: Iterable[str] | None) -> _Selection:
    """Return what has to be read for the values of these names; None: all values."""
    fields = dict.fromkeys(("run", *(FIELDS if names is None else ())))
    keys: dict[str, tuple[str, str]] = {}  # column and key of a value, by its whole name
    columns = {**_KEYED, **_MEASURED} if names is None else {}
    for name in names or ():
        if name in FIELDS:
            fields[name] = None
            continue
        columns |= _MEASURED
        for column, prefix in _KEYED.items():
            asked = {name, name.removeprefix(prefix)}
            if all(map(_PLAIN_KEY.fullmatch, asked)):
                keys |= {f"{prefix}{key}": (column, key) for key in sorted(asked)}
            else:
                columns[column] = prefix
    has_hours = _HOURS in fields
    if has_hours:
        del fields[_HOURS]
        fields |= dict.fromkeys(_TIMES)
    aliases = {f"k{place}": name for place, name in enumerate(keys)}
    selected = [
        *(f'{_COLUMNS.get(name, name)} as "{name}"' for name in fields),
        *(f"json_at({keys[name][0]}, :{alias}) as {alias}" for alias, name in aliases.items()),
        *columns,
        "declared_at as declared",  # also where "started" is not asked for: the next part's begin
    ]
    return _Selection(
        fields=tuple(fields),
        has_hours=has_hours,
        keys=aliases,
        columns=columns,
        sql=f"select {', '.join(selected)} from training_runs",
        parameters={alias: keys[name][1] for alias, name in aliases.items()},
    )


def _hours(values: Mapping[str, Json], now: datetime) -> float:
    """Return from its declaration to its end, or until now."""
    end = parse_time(values["finished"]) if "finished" in values else now
    return max(0.0, (end - parse_time(values["started"])).total_seconds() / 3600)


def _values(column: str, prefix: str, text: str) -> dict[str, Json]:
    """Return the values of a column of JSON by their whole names."""
    found = parse_json(text, foreign=True)
    if column in _MEASURED:
        found = {f"{suite}.{key}": each for suite, of in found.items() for key, each in of.items()}
    return {f"{prefix}{key}": each for key, each in found.items() if each is not None}
