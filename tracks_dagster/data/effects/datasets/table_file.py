"""Reads a CSV or Parquet file into DuckDB with every value as text, exactly as it is spelled.

Nothing is guessed: a CSV has its headings in the first line, commas and double quotes. What the values
mean is checked afterwards, so that a bad one can be named.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import duckdb

from tracks_dagster.track.errors import InvalidInput

SUFFIXES = (".csv", ".parquet")
MISSING = ("", "NA", "NaN", "nan")  # how tables spell that there is no value
HEADINGS_BYTES_MAX = 64 * 1024
REASON_CHARACTERS_MAX = 300


def load_as_text(
    database: duckdb.DuckDBPyConnection, folder: Path, path: Path, wanted: Sequence[str]
) -> None:
    """Create the table `source`: the columns `wanted` as text, and `row` from 1 on.

    Raises InvalidInput for a file that is no such table, lacks a column or has no row.
    """
    if not os.access(path, os.F_OK) or not path.is_file():
        raise InvalidInput(f"There is no file {path}; name a CSV or Parquet file.")
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"{path} is no table; name a file that ends with .csv or .parquet.")
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
        raise InvalidInput(f"The first line of {path} is no UTF-8 text of headings.") from error
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
