"""Parquet shards, written by DuckDB: the same rows give the same bytes, and one logical hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import duckdb
import polars as pl

from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.dataset_state import Column, PreparedSnapshot, ShardFile

ROWS = "snapshot_rows"  # the table of what goes into shards; `position` counts from 0
ROW_GROUP_ROWS = 65_536


@contextmanager
def open_database(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a DuckDB database of its own below `folder`.

    One thread, so that rows keep their order; no extension is ever fetched from a network.
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "autoinstall_known_extensions": False,
    }
    with duckdb.connect(folder / "rows.duckdb", config=settings) as database:
        yield database


def write_shards(
    database: duckdb.DuckDBPyConnection,
    folder: Path,
    ends: Sequence[int],
    *,
    kind: str,
    origin: str,
    checks: tuple[str, ...],
) -> PreparedSnapshot:
    """Write the table `snapshot_rows` as one Parquet file for each of `ends`.

    ends: the position after each shard's last row, ascending.
    """
    digest = LogicalDigest()
    shards = []
    for start, end in pairwise([0, *ends]):
        path = folder / f"{end:012d}.parquet"
        rows = database.sql(
            f"select * exclude (position) from {ROWS} "
            f"where position >= {start} and position < {end} order by position"
        )
        rows.write_parquet(str(path), compression="zstd", row_group_size=ROW_GROUP_ROWS)
        digest.update(pl.DataFrame(rows.to_arrow_table()))
        data = path.read_bytes()
        shard = ShardFile(
            path=path, sha256=sha256_hex(data), size_bytes=len(data), row_count=end - start
        )
        shards.append(shard)
    return PreparedSnapshot(
        kind=kind,
        columns=_columns(database),
        shards=tuple(shards),
        logical_sha256=digest.hexdigest(),
        source=origin,
        checks=checks,
    )


class LogicalDigest:
    """The sha256 of rows' values in order; Parquet writers and shard sizes do not change it.

    Each column has two streams: its values (integers 8 bytes and floats 8 bytes, little-endian;
    text as UTF-8) and, for text, the values' lengths in bytes (8 bytes each). The digest is of every
    column's name and the digests of its two streams, in column order. No value is null: the checks
    saw to that.
    """

    def __init__(self) -> None:
        self._streams: dict[str, tuple[hashlib._Hash, hashlib._Hash]] = {}

    def update(self, frame: pl.DataFrame) -> None:
        """Take in the next rows; every frame has the same columns."""
        for column in frame.get_columns():
            values, lengths = self._streams.setdefault(
                column.name, (hashlib.sha256(), hashlib.sha256())
            )
            if column.dtype == pl.String:
                lengths.update(column.str.len_bytes().cast(pl.Int64).to_numpy().tobytes())
                for value in column:
                    values.update(value.encode())
            else:
                wide = pl.Float64 if column.dtype.is_float() else pl.Int64
                values.update(column.cast(wide).to_numpy().astype(_little(wide)).tobytes())

    def hexdigest(self) -> str:
        """Return the digest of all rows so far."""
        whole = hashlib.sha256()
        for name, (values, lengths) in self._streams.items():
            whole.update(f"{name}\n{values.hexdigest()}\n{lengths.hexdigest()}\n".encode())
        return whole.hexdigest()


def _little(wide: type[pl.DataType]) -> str:
    return "<f8" if wide is pl.Float64 else "<i8"


def _columns(database: duckdb.DuckDBPyConnection) -> tuple[Column, ...]:
    described = database.execute(f"select * exclude (position) from {ROWS} limit 0").description
    return tuple(Column(name=name, type=str(kind)) for name, kind, *_ in described or ())
