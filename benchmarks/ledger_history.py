"""What people wait for beside a large history, on SQLite and on Postgres: reading commands and reindex.

Two generated histories, of a tenth of the attempts and of all of them, are measured in turn, so that
growth is seen as a ratio. Everything lies in a temporary folder that is removed, unless a folder is
named to keep it in: the larger one takes most of an hour to make.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.commands import Took, time_command
from benchmarks.history_bodies import snapshot_ref
from benchmarks.history_plan import (
    ATTEMPTS_OF_BLOCK,
    ATTEMPTS_OF_RUNS,
    DATASETS,
    RUNS_OF_BLOCK,
    WIDE_SNAPSHOT,
    Fleet,
)
from benchmarks.history_sites import NewDatabase, Sites, kept_sites, make_sites, postgres
from tracks_dagster.ledger.effects.database import open_ledger_to_read
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import format_time

Measured = dict[tuple[str, str], Took]  # by the figure's name and the database

ATTEMPTS = 100_000  # what ends in minutes; --attempts 1000000 is the whole
SMALLER = 10  # the other history is that many times smaller
ROUNDS = 3  # of each command
QUERY_ROUNDS = 5
SEVEN_DAYS, SEVEN_DAYS_LONG = "seven_days", timedelta(days=7)

SEVEN_DAYS_SQL = """
select termination_reason, count(*) as attempts, sum(gpu_seconds) / 3600 as gpu_hours
from training_attempts
where model_family = 'reasoning' and started_at >= now() - interval '7 days'
group by termination_reason order by gpu_hours desc;
"""
# The same for SQLite's own SQL, which has no interval.
SEVEN_DAYS_SINCE = SEVEN_DAYS_SQL.replace("now() - interval '7 days'", ":since").rstrip(";\n")

# By the figure's name, in seconds, MB, records a second, and times as long.
AT_MOST = {
    "explain_s": 1.0,
    "blast_s": 2.0,
    "seven_days_s": 0.3,
    "seven_days_sql_s": 2.0,  # SQLite reads the named columns of all attempts
    "status_s": 2.0,
    "triage_s": 2.0,
    "peak_mb": 300.0,
    "growth_of_lookup": 2.0,  # "flat", on a machine whose noise doubles small figures
    "growth_of_scan": float(SMALLER),
}
AT_LEAST = {"reindexed_records_per_s_of_history": 1000.0}
WHY = {
    **dict.fromkeys(AT_MOST, "seconds of a whole command: a busy machine alone may miss it"),
    "peak_mb": "what the command keeps grows with what it reads",
    "growth_of_lookup": "something that looks one thing up reads more the more there is",
    "growth_of_scan": "more than linear",
    "reindexed_records_per_s_of_history": "seconds, of a busy machine or a slow disk",
}

LOOKUPS = frozenset({"explain", "status", "triage"})


def run(
    attempts: int | None = None, *, rounds: int = ROUNDS, kept: Path | None = None
) -> dict[str, float]:
    """Return the figures of a history of that many attempts, by what was measured and where.

    rounds: of each command; the median counts. kept: a folder that holds the histories, or shall.
    """
    with tempfile.TemporaryDirectory(prefix="tracks-history-") as name:
        return _run(attempts or ATTEMPTS, rounds, (kept or Path(name)).resolve())


def _run(attempts: int, rounds: int, folder: Path) -> dict[str, float]:
    count = _rounded(attempts)
    smaller_count = _rounded(count // SMALLER)
    figures: dict[str, float] = {"history_attempts": count}
    folder.mkdir(parents=True, exist_ok=True)
    with postgres(folder / "postgres") as (new_database, url_of):

        def sites_of(attempts: int) -> Sites:
            home = folder / f"attempts_{attempts}"
            kept = kept_sites(attempts, home, url_of)
            return kept or make_sites(_fleet(attempts), home, new_database)

        before = _measure(sites_of(smaller_count), rounds)
        sites = sites_of(count)
        after = _measure(sites, rounds)
        figures |= _sizes(sites) | _of_commands(after) | _reindexed(sites, new_database)
    return figures | _growth(before, after)


def _rounded(attempts: int) -> int:
    """Return the next number of attempts that a fleet can have."""
    return max(1, -(-attempts // ATTEMPTS_OF_BLOCK)) * ATTEMPTS_OF_BLOCK


def _fleet(attempts: int) -> Fleet:
    """Return a history of that many attempts that ends now."""
    return Fleet(attempts=attempts, end_at=datetime.now(UTC).replace(microsecond=0))


def _measure(sites: Sites, rounds: int) -> Measured:
    """Return what every command, and the seven-day query by itself, took on each database."""
    measured: Measured = {}
    for database, url in sites.urls.items():
        for name, arguments in reading_commands(sites.fleet).items():
            _say(f"{sites.fleet.attempts} attempts, {database}: tracks {arguments[0]}")
            measured[name, database] = time_command(
                arguments, sites.environment(database), rounds=rounds
            )
        query_s = _seven_days_s(sites.fleet, database, url)
        measured[SEVEN_DAYS, database] = Took(
            wall_s=query_s, inside_s=query_s, cpu_s=query_s, peak_mb=0.0
        )
    return measured


def reading_commands(fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """Return the commands that are timed, by their name among the figures."""
    attempt = a_long_run(fleet)
    wide = f"snapshot:{DATASETS['gpt']}@{snapshot_ref(DATASETS['gpt'], WIDE_SNAPSHOT).snapshot_id}"
    return {
        "explain": ("explain", attempt),
        "blast": ("blast", wide),
        "seven_days_sql": ("sql", SEVEN_DAYS_SQL),
        "status": ("status",),
        "triage": ("triage",),
        "goodput_of_a_week": ("goodput", "--by", "reason", "--last", "7d"),
        "goodput": ("goodput", "--by", "reason"),
    }


def a_long_run(fleet: Fleet) -> str:
    """Return an attempt in the middle of a long run, whose track lies in the store."""
    longest = max(ATTEMPTS_OF_RUNS)
    first_open = fleet.run_count - fleet.open_count
    closed = range(first_open - 1, -1, -1)
    index = next((i for i in closed if ATTEMPTS_OF_RUNS[i % RUNS_OF_BLOCK] == longest), 0)
    return attempt_key(fleet.run_id(index), ATTEMPTS_OF_RUNS[index % RUNS_OF_BLOCK] // 2 + 1)


def _seven_days_s(fleet: Fleet, database: str, url: str) -> float:
    """Return how long the query takes on an open ledger: on Postgres the view as it is."""
    ledger = open_ledger_to_read(url)
    on_sqlite = database == "sqlite"
    sql = SEVEN_DAYS_SINCE if on_sqlite else SEVEN_DAYS_SQL
    parameters = {"since": format_time(fleet.end_at - SEVEN_DAYS_LONG)} if on_sqlite else {}
    seconds = []
    for _ in range(QUERY_ROUNDS):
        started = time.perf_counter()
        ledger.query(sql, parameters)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _of_commands(measured: Measured) -> dict[str, float]:
    """Return the figures of the commands: of the whole process, inside it, and its memory."""
    figures: dict[str, float] = {}
    for (name, database), took in measured.items():
        figures[f"{name}_s @ {database}"] = took.wall_s
        if took.peak_mb:
            figures[f"inside_s @ {name}, {database}"] = took.inside_s
            figures[f"cpu_s @ {name}, {database}"] = took.cpu_s
            figures[f"peak_mb @ {name}, {database}"] = took.peak_mb
    return figures


def _sizes(sites: Sites) -> dict[str, float]:
    return {
        "filling_s": sites.filling_s,
        **{f"disk_gb @ {name}": size / 1e9 for name, size in sites.disk_bytes().items()},
    }


def _reindexed(sites: Sites, new_database: NewDatabase) -> dict[str, float]:
    """Return the records a second of `tracks reindex` into an empty ledger, from local files."""
    figures = {}
    for database in sites.urls:
        _say(f"{sites.record_count} records, {database}: tracks reindex")
        took = time_command(("reindex",), sites.empty(database, new_database), rounds=1)
        name = f"reindexed_records_per_s_of_history @ {database}"
        figures[name] = sites.record_count / took.inside_s
    return figures


def _growth(before: Measured, after: Measured) -> dict[str, float]:
    """Return how many times as long each took with ten times the attempts.

    On SQLite by the processor's seconds, with Python's start in both; Postgres works in a process of
    its own, so there by the clock, inside the command.
    """
    return {
        f"growth_of_{'lookup' if name in LOOKUPS else 'scan'} @ {name}, {database}": (
            _growing_s(took, database) / _growing_s(before[name, database], database)
        )
        for (name, database), took in after.items()
    }


def _growing_s(took: Took, database: str) -> float:
    return took.inside_s if database == "postgres" else took.cpu_s


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
