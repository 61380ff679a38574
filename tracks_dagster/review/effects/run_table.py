"""Reads the table of all runs from the ledger, in parts, the newest runs first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.run_table import (
    CONFIG,
    EVAL,
    LAST,
    Run,
    check_names,
    parse,
    pick,
    sort,
)
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json, format_time

PART = 10_000  # runs that are read at once: each part sorts all of them
READ_MAX = 100_000  # runs that one table looks at, the newest
SQL = Path(__file__).with_name("sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """where: a filter of `run_table`. order: names, -NAME for the largest first; without any the newest
    runs come first. limit: of rows, after `skip`."""

    where: str = ""
    order: tuple[str, ...] = ()
    limit: int = 100
    skip: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows. read: how many runs were looked at; is_more: others may come after these."""

    rows: tuple[Run, ...]
    read: int
    is_more: bool


def read_table(ledger: Ledger, asked: Asked, *, now: datetime) -> Table:
    """Return the runs that are asked for. Raises InvalidInput for a filter or a name that cannot be,
    LedgerError."""
    conditions = parse(asked.where)
    names = [each.name for each in conditions if each.name]
    names += [each.removeprefix("-") for each in asked.order]
    is_all = not conditions and not asked.order  # then what comes before is not read
    begin = asked.skip if is_all else 0
    skip = asked.skip - begin
    end = skip + asked.limit
    found: list[Run] = []
    seen: list[Run] = []
    for part in _parts(ledger, now, begin, min(PART, end + 1) if is_all else PART):
        seen += part
        found += pick(part, conditions)
        if len(found) > end and not asked.order:
            break
    check_names(names, seen)
    ordered = sort(found, asked.order) if asked.order else found
    return Table(rows=tuple(ordered[skip:end]), read=len(seen), is_more=len(ordered) > end)


def _parts(ledger: Ledger, now: datetime, first: int, size: int) -> Iterator[list[Run]]:
    table = SQL.joinpath("run_table.sql").read_text(encoding="utf-8")
    measured = SQL.joinpath("run_table_evals.sql").read_text(encoding="utf-8")
    for begin in range(first, READ_MAX, size):
        bounds = {"runs_max": size, "from_run": begin}
        rows = ledger.query(table, bounds)
        evals: dict[str, dict[str, Json]] = {}
        for row in ledger.query(measured, bounds) if rows else ():
            metrics = _mapping(row["metrics_json"])
            of_run = evals.setdefault(row["run_id"], {})
            of_run.update({f"{EVAL}{row['suite']}.{key}": each for key, each in metrics.items()})
        yield [_run(row, evals.get(row["run_id"], {}), now) for row in rows]
        if len(rows) < size:
            return


def _run(row: Mapping[str, Json], evals: Mapping[str, Json], now: datetime) -> Run:
    hours = ((row["finished_at"] or now) - row["declared_at"]).total_seconds() / 3600
    values = {
        "run": row["run_id"],
        "state": row["state"],
        "project": row["model_family"],
        "owner": row["owner"],
        "team": row["team"],
        "class": row["workload_class"],
        "experiment": row["experiment"],
        "stage": row["stage"],
        "intent": row["intent"],
        "started": format_time(row["declared_at"]),
        "finished": None if row["finished_at"] is None else format_time(row["finished_at"]),
        "hours": max(0.0, hours),
        "step": row["step"],
        "steps": row["max_steps"],
        "attempts": row["attempt_count"],
        "ranks": row["ranks"],
        "reason": row["termination_reason"],
        "why": row["state_why"],
        "device_hours": None if row["device_seconds"] is None else row["device_seconds"] / 3600,
        "dataset": row["dataset"],
        "commit": row["git_commit"],
        "alias": row["alias"],
    }
    config = {f"{CONFIG}{key}": each for key, each in _mapping(row["config_json"]).items()}
    last = {f"{LAST}{key}": each for key, each in _mapping(row["metrics_json"]).items()}
    known = {**values, **config, **last, **evals}
    return Run(values={key: each for key, each in known.items() if each is not None})


def _mapping(text: str | None) -> Mapping[str, Json]:
    try:
        found = parse_json(text) if text else None
    except ValueError:
        return {}  # of that run alone
    return found if isinstance(found, dict) else {}
