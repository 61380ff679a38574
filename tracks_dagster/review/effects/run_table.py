"""Reads the table of all runs from the ledger, the newest runs first.

What a filter and an order mean is decided by `run_table`, so that it is the same everywhere. SQL does
what it does in the same way; for the rest of each run only the values that are named are read, and then
the whole of the runs that are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.review.run_filter import (
    ARCHIVED,
    CONFIG,
    EVAL,
    FIELDS,
    LAST,
    TAG,
    TIMES,
    Condition,
    Run,
    parse,
    pick,
    refuse_text,
    refuse_unknown,
    texts_beside_numbers,
)
from tracks_dagster.review.run_table import AT, BEST, BEST_AT, check_order, sort
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json, format_time

GROWTH = 4  # of a page of the newest that fit: how many more are looked at with each part
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
    "money": "money()",  # in place of which `_Priced` writes what it is
    "commit": "git_commit",
    "name": "called",
    TAG: "tags_json",
    ARCHIVED: "case when archived_at is null then 'no' else 'yes' end",
}
# What SQL decides as the filter does: words of ours are equal or not, numbers are compared; and the
# order of numbers and times. Of other texts each database has its own idea.
_WORDS = ("state", "stage")
_NUMBERS = ("step", "steps", "attempts", "ranks", "device_hours", "money")
_EQUAL = ("=", "==")
_SIGNS = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "=": "=", "==": "=", "!=": "<>"}
_SORTED = (*_NUMBERS, *TIMES)
_HOURS = "hours"  # made of both
# Columns of JSON, with what is before the names of their values.
_KEYED = {"newest_config_json": CONFIG, "newest_metrics_json": LAST}
_MEASURED = {"measured_json": EVAL}  # whose keys are suites
_BESIDE = {  # the same, of which a name says the whole
    "newest_metric_steps_json": AT,
    "best_metrics_json": BEST,
    "best_metric_steps_json": BEST_AT,
}
_EMPTY = "{}"
_BEGINS_NUMBER = frozenset("-0123456789")
# That `json_at` takes, and whose name is no longer than that of a column may be.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,50}")


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

    @property
    def is_whole(self) -> bool:
        """Whether every run that is asked for is in it, or in a part before it."""
        return not (self.is_more or self.is_cut)


def read_table(
    ledger: Ledger, asked: Asked, *, now: datetime, prices: Prices | None = None
) -> Table:
    """Return the runs that are asked for; archived ones only where the filter names `archived`.

    prices: by which `money` is known. Raises InvalidInput for a filter or a name that cannot be,
    LedgerError.
    """
    priced = _priced(ledger, prices)
    check_order(asked.order)
    conditions = parse(asked.where)
    where, values, rest = _in_sql(conditions)
    keys = [each.removeprefix("-") for each in asked.order]
    if ARCHIVED not in (*keys, *(each.name for each in conditions)):
        where = f"{where} and archived_at is null"
    end = asked.skip + asked.limit
    if not rest and all(key in _SORTED for key in keys):
        which = f"where {where} {_order(asked.order)} limit :runs_max offset :skip"
        rows = _select(asked.names or None).runs(
            priced, now, which, runs_max=asked.limit + 1, skip=asked.skip, **values
        )
        shown = tuple(rows[: asked.limit])
        return Table(rows=shown, read=len(rows), is_more=len(rows) > asked.limit)
    found, read, is_cut = _found(priced, rest, asked, _Part(where=where, values=values), now)
    rows = found[asked.skip : end]
    whole = rows if asked.names else _whole(priced, [run.name for run in rows], now)
    return Table(rows=tuple(whole), read=read, is_more=len(found) > end, is_cut=is_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """Asks the ledger. money: SQL of what the ended attempts of a run cost; values: those in it."""

    ledger: Ledger
    money: str
    values: Mapping[str, Json]

    def query(self, sql: str, parameters: Mapping[str, Json]) -> list[dict[str, Json]]:
        """Return the rows of one SELECT in which `money()` is a column."""
        if _COLUMNS["money"] not in sql:
            return self.ledger.query(sql, parameters)
        asked = sql.replace(_COLUMNS["money"], self.money)
        return self.ledger.query(asked, {**parameters, **self.values})


def _priced(ledger: Ledger, prices: Prices | None) -> _Priced:
    """Return the ledger with these prices; as `Prices.of` has it, those of a pool come before those of
    anywhere, and in each the device's own before its class's."""
    cases, values = list[str](), dict[str, Json]()
    rows = [] if prices is None else list(enumerate(prices.rows()))
    for in_pool, name in ((p, n) for p in (True, False) for n in ("accelerator", "device_class")):
        for place, (pool, device, price) in rows:
            if bool(pool) is in_pool:
                where = f"pool = :pool{place} and " if pool else ""
                cases.append(f"when {where}{name} = :device{place} then :price{place}")
                values[f"device{place}"], values[f"price{place}"] = device, price
                if pool:
                    values[f"pool{place}"] = pool
    if not cases:
        return _Priced(ledger=ledger, money="null", values={})
    price_of = f"case {' '.join(cases)} end"
    cost = f"sum(gpu_seconds * {price_of}) / 3600"
    known = f"case when count(*) = count({price_of}) then {cost} end"
    which = "training_attempts.run_id = training_runs.run_id and gpu_seconds > 0"
    return _Priced(
        ledger=ledger, money=f"(select {known} from training_attempts where {which})", values=values
    )


def _in_sql(conditions: Sequence[Condition]) -> tuple[str, dict[str, Json], list[Condition]]:
    """Return what of a filter SQL decides as it does, the values in it, and what is left of it."""
    found, values, rest = ["true"], dict[str, Json](), list[Condition]()
    for place, each in enumerate(conditions):
        column, value = _COLUMNS.get(each.name, each.name), f"v{place}"
        if each.name in _WORDS and each.sign in _EQUAL:
            found.append(f"{column} = :{value}")
            values[value] = each.value.lower()
        elif each.name in _NUMBERS and each.number is not None and each.sign in _SIGNS:
            sign = _SIGNS[each.sign]
            unknown = f"{column} is null or " if sign == "<>" else ""
            found.append(f"({unknown}{column} {sign} :{value})")
            values[value] = each.number
        else:
            rest.append(each)
    return " and ".join(found), values, rest


def _order(keys: Sequence[str]) -> str:
    """Return the order by these columns as SQL, runs that lack one last, then the newest first."""
    names = [_COLUMNS.get(key.removeprefix("-"), key.removeprefix("-")) for key in keys]
    by = [
        f"case when {name} is null then 1 else 0 end, {name}{' desc' if key[0] == '-' else ''}"
        for key, name in zip(keys, names, strict=True)
    ]
    return f"order by {', '.join([*by, _NEWEST])}"


_NEWEST = "declared_at desc, run_id"
# The first comparison lets an index find the place.
_AFTER = "declared_at <= :at and (declared_at < :at or run_id > :run)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Which runs are looked at, as SQL with its values."""

    where: str
    values: Mapping[str, Json]


def _found(
    ledger: _Priced, conditions: Sequence[Condition], asked: Asked, of: _Part, now: datetime
) -> tuple[list[Run], int, bool]:
    """Return the runs that fit, in their order, with the values that were asked for alone; how many
    were looked at, and whether there are older ones. Without an order as many as a page needs."""
    end = asked.skip + asked.limit
    keys = [each.removeprefix("-") for each in asked.order]
    names = dict.fromkeys([*(name for each in conditions for name in each.names), *keys])
    unseen = [name for name in names if name not in FIELDS]
    found: list[Run] = []
    read, is_more, texts = 0, False, tuple(conditions)
    first = READ_MAX + 1 if asked.order else GROWTH * (end + 1)
    for part in _parts(ledger, _select([*names, *asked.names]), of, first, now):
        is_more = read + len(part) > READ_MAX
        part = part[: READ_MAX - read]
        read += len(part)
        texts = texts_beside_numbers(texts, part)
        unseen = [name for name in unseen if all(run.get(name) is None for run in part)]
        found += pick(part, conditions)
        if len(found) > end and not asked.order:
            is_more = False  # it was not stopped
            break
    for name in unseen if read else ():
        _check_known(ledger, name, now)
    for each in texts if read and not found else ():
        if each.name and each.name not in FIELDS and each.name not in unseen:
            refuse_text(each)
    return sort(found, asked.order), read, is_more


def _parts(
    ledger: _Priced, selection: _Selection, of: _Part, first: int, now: datetime
) -> Iterator[list[Run]]:
    """Yield the runs in parts, the newest first, up to one more than READ_MAX. first: size of the first
    part; each other one is `GROWTH` times as large."""
    after: dict[str, Json] = {}
    begin, size = 0, first
    while begin <= READ_MAX:
        size = min(size, READ_MAX + 1 - begin)
        where = f"{of.where} and {_AFTER}" if after else of.where
        which = f"where {where} order by {_NEWEST} limit :runs_max"
        runs = selection.runs(ledger, now, which, runs_max=size, **of.values, **after)
        yield runs
        if len(runs) < size:
            return
        begin, size = begin + size, size * GROWTH
        after = {"at": runs[-1].values["started"], "run": runs[-1].name}


def _whole(ledger: _Priced, run_ids: Sequence[str], now: datetime) -> Iterator[Run]:
    """Yield these runs with all their values, in this order; one that is gone by now is left out."""
    for begin in range(0, len(run_ids), WHOLE_MAX):
        ids = {f"r{n}": run_id for n, run_id in enumerate(run_ids[begin : begin + WHOLE_MAX])}
        which = f"where run_id in ({', '.join(f':{place}' for place in ids)})"
        found = {run.name: run for run in _select(None).runs(ledger, now, which, **ids)}
        yield from (found[run_id] for run_id in ids.values() if run_id in found)


def _check_known(ledger: _Priced, name: str, now: datetime) -> None:
    """Raise InvalidInput for a name that no run has, whatever was looked at. A name that begins as
    `best.loss` does is looked for there alone, or as a whole."""
    keys = {
        (column, each) for column, pre in _KEYED.items() for each in (name, name.removeprefix(pre))
    }
    keys |= {(column, name.removeprefix(p)) for column, p in _BESIDE.items() if name.startswith(p)}
    likes = {
        f"part{n}": (column, _like(f'"{key}":')) for n, (column, key) in enumerate(sorted(keys))
    }
    where = " or ".join(f"{column} like :{n} escape '!'" for n, (column, _) in likes.items())
    parts: dict[str, Json] = {n: part for n, (_, part) in likes.items()}
    if ledger.query(f"select run_id from training_runs where {where} limit 1", parts):
        return
    for column, prefix in _MEASURED.items():
        where = f"{column} like :part escape '!' limit :runs_max"
        part = _like(f'{name.removeprefix(prefix)}":').replace(
            ".", "%"
        )  # a suite and a metric in it
        asked: dict[str, Json] = {"part": part, "runs_max": READ_MAX}
        rows = ledger.query(f"select {column} from training_runs where {where}", asked)
        found = (Run(values=_values(column, prefix, row[column])) for row in rows)
        if any(run.get(name) is not None for run in found):
            return
    which = f"order by {_NEWEST} limit :runs_max"
    refuse_unknown(name, _select(None).runs(ledger, now, which, runs_max=LIKE_MAX))


def _like(part: str) -> str:
    escaped = re.sub(r"([!%_])", r"!\1", part)
    return f"%{escaped}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """What is read of each run. is_whole: all values; has_hours, has_tags: whether these are made of
    it; keys: names of values that are read one by one; columns: of JSON that are read whole."""

    is_whole: bool
    has_hours: bool
    has_tags: bool
    keys: Sequence[str]
    columns: Mapping[str, str]
    sql: str
    parameters: Mapping[str, str]

    def runs(self, ledger: _Priced, now: datetime, which: str, **values: Json) -> list[Run]:
        """Return these runs."""
        rows = ledger.query(f"{self.sql} {which}", {**self.parameters, **values})
        return [self._run(row, now) for row in rows]

    def _run(self, row: dict[str, Json], now: datetime) -> Run:
        """Return the run of a row, which becomes its values."""
        if isinstance(row["started"], datetime):  # as one of the databases has it
            row |= {name: format_time(at) for name in TIMES if (at := row.get(name)) is not None}
        if self.has_hours:
            row[_HOURS] = _hours(row, now)
        if self.has_tags:
            row[TAG] = parse_json(row[TAG]) or None
        for name in self.keys:
            if (text := row[name]) is not None:
                row[name] = _first(text)
        for column, prefix in self.columns.items():
            if (text := row.pop(column)) != _EMPTY:
                row |= _values(column, prefix, text)
        if self.is_whole:
            row = {name: each for name, each in row.items() if each is not None}
        return Run(values=row)


def _select(names: Iterable[str] | None) -> _Selection:
    """Return what has to be read for the values of these names; None: all values."""
    fields = dict.fromkeys(("run", "started", *(FIELDS if names is None else ())))
    keys: dict[str, tuple[str, str]] = {}  # column and key of a value, by its whole name
    columns = {**_KEYED, **_MEASURED, **_BESIDE} if names is None else {}
    for name in names or ():
        if name in FIELDS:
            fields[name] = None
            continue
        columns |= _MEASURED
        beside = {column: each for column, each in _BESIDE.items() if name.startswith(each)}
        for column, prefix in {**_KEYED, **beside}.items():
            asked = {name, name.removeprefix(prefix)}
            if all(map(_PLAIN_KEY.fullmatch, asked)):
                keys |= {f"{prefix}{key}": (column, key) for key in sorted(asked)}
            else:
                columns[column] = prefix
    has_hours = _HOURS in fields
    if has_hours:
        del fields[_HOURS]
        fields |= dict.fromkeys(TIMES)
    parameters = {f"k{place}": key for place, (_, key) in enumerate(keys.values())}
    selected = [
        *(f'{_COLUMNS.get(name, name)} as "{name}"' for name in fields),
        *(
            f'json_at({column}, :{parameter}) as "{name}"'
            for parameter, (name, (column, _)) in zip(parameters, keys.items(), strict=True)
        ),
        *columns,
    ]
    return _Selection(
        is_whole=names is None,
        has_hours=has_hours,
        has_tags=TAG in fields,
        keys=tuple(keys),
        columns=columns,
        sql=f"select {', '.join(selected)} from training_runs",
        parameters=parameters,
    )


def _hours(values: Mapping[str, Json], now: datetime) -> float:
    """Return from its declaration to its end, or until now."""
    begin, end = values["started"], values["finished"]  # of our own: read in a fifth of the time
    until = now if end is None else datetime.fromisoformat(end)
    return max(0.0, (until - datetime.fromisoformat(begin)).total_seconds() / 3600)


def _first(text: str) -> Json:
    """Return the first value of a list as JSON; of a number in a fifth of the time."""
    if text[1] not in _BEGINS_NUMBER:
        (first, *_) = parse_json(text, foreign=True)
        return first
    number = text[1 : text.find(",")]  # of a list of one up to its end
    return int(number) if number.lstrip("-").isdigit() else float(number)


def _values(column: str, prefix: str, text: str) -> dict[str, Json]:
    """Return the values of a column of JSON by their whole names."""
    found = parse_json(text, foreign=True)
    if column in _MEASURED:
        found = {f"{suite}.{key}": each for suite, of in found.items() for key, each in of.items()}
    return {f"{prefix}{key}": each for key, each in found.items()}
