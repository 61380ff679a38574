"""Text snapshots: one row a document, in the order of their source; own text from .txt files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandera.polars as pa
import polars as pl
from duckdb import DuckDBPyConnection

from tracks_dagster.data.effects.datasets.row_checks import RowChecks, matches
from tracks_dagster.data.effects.datasets.shards import ROWS, open_database, write_shards
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.dataset_state import PreparedSnapshot

SHARD_BYTES_MIN = 2 * 1024 * 1024  # a shard is full with the document that reaches this

DOCUMENT_BYTES_MAX = 256 * 1024 * 1024  # one document is one row, and read whole
ORIGIN_OWN = "own text"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text; `name` is the same on every machine."""

    name: str
    text: str


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


def read_documents(source: Path) -> Iterator[Document]:
    """Yield one document a file, folders in the order of the files' names.

    Raises InvalidInput for what is missing, empty, too large or no UTF-8; the file is named.
    """
    is_there = os.access(source, os.F_OK)
    if is_there and source.is_dir():
        files = sorted(path for path in source.rglob("*.txt") if path.is_file())
        if not files:
            raise InvalidInput(f"{source} holds no .txt file; name a folder that does.")
        return (_document(path, path.relative_to(source).as_posix()) for path in files)
    if not is_there or not source.is_file():
        raise InvalidInput(f"There is no file or folder {source}; name one that holds text.")
    return iter([_document(source, source.name)])


def _document(path: Path, name: str) -> Document:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > DOCUMENT_BYTES_MAX:
            raise InvalidInput(
                f"{path} has {size_bytes} bytes, and a document at most {DOCUMENT_BYTES_MAX}; "
                "split it into several files of one folder."
            )
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error.strerror}.") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}. Convert the "
            "file to UTF-8, for example with iconv, and try again."
        ) from error
    if not text.strip():
        raise InvalidInput(f"{path} holds no text; remove it or name another file.")
    return Document(name=name, text=text)
