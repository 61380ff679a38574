"""Text snapshots: one row a document, in the order in which the source yields them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pandera.polars as pa
import polars as pl
from duckdb import DuckDBPyConnection

from tracks_dagster.data.effects.datasets.documents import Document
from tracks_dagster.data.effects.datasets.row_checks import RowChecks, matches
from tracks_dagster.data.effects.datasets.shards import ROWS, open_database, write_shards
from tracks_dagster.track.states.dataset_state import PreparedSnapshot

SHARD_BYTES_MIN = 2 * 1024 * 1024  # a shard is full with the document that reaches this

# What a decoder leaves of a binary file: characters that no text has.
CONTROL_CHARACTERS = r"[\x00-\x08\x0e-\x1f\x7f]"

SCHEMA = pa.DataFrameSchema(
    {
        "document": pa.Column(pl.String, matches(r"\S", "a name")),
        "text": pa.Column(
            pl.String,
            [
                matches(r"\S", "text"),
                matches(CONTROL_CHARACTERS, "free of control characters", wanted=False),
            ],
        ),
    }
)


def prepare_text(
    folder: Path, dataset: str, documents: Iterable[Document], origin: str
) -> PreparedSnapshot:
    """Check `documents` and write them as shards below `folder`; raises DataRejected."""
    checks = RowChecks(dataset, SCHEMA)
    ends = []
    row_count = 0
    with open_database(folder) as database:
        database.execute(f"create table {ROWS} (position bigint, document text, text text)")
        for batch in _batches(documents):
            frame = _frame(batch, first=row_count)
            checks.check(frame)
            _insert(database, frame)
            row_count += len(batch)
            ends.append(row_count)
        checks.finish()
        return write_shards(database, folder, ends, kind="text", origin=origin, checks=checks.names)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield lists of documents, each of 2 MB of text or more, the last one of what is left."""
    batch: list[Document] = []
    size_bytes = 0
    for document in documents:
        batch.append(document)
        size_bytes += len(document.text.encode())
        if size_bytes >= SHARD_BYTES_MIN:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _frame(batch: list[Document], *, first: int) -> pl.DataFrame:
    """Return columns row (1-based), document, text."""
    return pl.DataFrame(
        {
            "row": pl.Series(range(first + 1, first + 1 + len(batch)), dtype=pl.Int64),
            "document": [document.name for document in batch],
            "text": [document.text for document in batch],
        }
    )


def _insert(database: DuckDBPyConnection, frame: pl.DataFrame) -> None:
    database.register("batch", frame.to_arrow())
    database.execute(f"insert into {ROWS} select row - 1, document, text from batch")
    database.unregister("batch")
