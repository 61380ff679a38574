"""Columns of a journal in files: a file each of a stretch of it, read again in milliseconds.

The rank that writes a journal stores such files beside it, so that nobody has to parse it whole; who
reads journals keeps files of his own (`curves.effects.blocks`). All of them can be made again of
the journal: they may be deleted at any time, and nothing is decided by them.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tracks_dagster.stores.journal_tables import Column, Gathered, Table, parse
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.ports import ObjectStore

FORMAT = 1  # of a file
BLOCK_BYTES = 4 * 1024**2  # of a journal, in one file: some 8 000 steps
WAITING_MAX = 16  # files, of a megabyte each, while the store takes none
FILE_BYTES_MAX = 64 * 1024**2  # of one file: thousands of metrics take room of their own
INDEX = "index"  # the part of a file that says what is in it
_SUFFIX = ".npz"
_DAMAGE = (  # what damaged archives of arrays raise
    OSError,
    EOFError,
    KeyError,
    MemoryError,  # of an array that says that it is larger than it is
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


class ColumnsDamaged(Exception):
    """A file is not a file of columns, or not whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIndex:
    """What a table holds. first, last: the smallest and the largest step; columns: name → values."""

    first: int
    last: int
    columns: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockIndex:
    """What a file holds. tables: by kind of line; left_out: how many of the script's names are."""

    tables: Mapping[str, TableIndex]
    left_out: int


def columns_prefix(journal: str) -> str:
    """Return the prefix of the files beside the journal with that prefix."""
    return journal.replace("/journal/", f"/columns-{FORMAT}/")


def file_name(begin: int, end: int) -> str:
    """Return the name of the file of a journal's lines from byte `begin` up to `end`."""
    return f"{begin:012d}-{end:012d}{_SUFFIX}"


def stretch_of(name: str) -> tuple[int, int] | None:
    """Return what `file_name` was given; None for any other name."""
    begin, _, end = name.removesuffix(_SUFFIX).partition("-")
    is_name = name.endswith(_SUFFIX) and begin.isdigit() and end.isdigit()
    return (int(begin), int(end)) if is_name else None


def longest_chain(stretches: Sequence[tuple[int, int]], begin: int = 0) -> list[tuple[int, int]]:
    """Return the stretches that follow one another from `begin` on, of several the longest."""
    ends: dict[int, int] = {}
    for first, last in stretches:
        ends[first] = max(last, ends.get(first, 0))
    found = []
    while (end := ends.pop(begin, 0)) > begin:
        found.append((begin, end))
        begin = end
    return found


def tables_of(gathered: Mapping[str, Gathered]) -> tuple[dict[str, Table], int]:
    """Return the tables of lines, and how many of the script's names are left out of one."""
    found = {kind: lines.table() for kind, lines in gathered.items()}
    left_out = max((count for _, count in found.values()), default=0)
    return {kind: table for kind, (table, _) in found.items()}, left_out


def index_of(tables: Mapping[str, Table], left_out: int) -> BlockIndex:
    """Return what a file with these tables holds."""
    return BlockIndex(
        tables={
            kind: TableIndex(
                first=int(table.step.min()),
                last=int(table.step.max()),
                columns={name: len(column.values) for name, column in table.columns.items()},
            )
            for kind, table in tables.items()
        },
        left_out=left_out,
    )


def encode(tables: Mapping[str, Table], index: BlockIndex) -> bytes:
    """Return the file of these tables."""
    import numpy as np

    stored = {
        kind: {"first": each.first, "last": each.last, "columns": dict(each.columns)}
        for kind, each in index.tables.items()
    }
    text = json.dumps({"tables": stored, "left_out": index.left_out}).encode()
    arrays: dict[str, Any] = {INDEX: np.frombuffer(text, np.uint8)}
    for kind, table in tables.items():
        arrays[f"{kind}.step"], arrays[f"{kind}.at"] = table.step, table.at
        for number, column in enumerate(table.columns.values()):
            arrays[f"{kind}.{number}"] = column.values
            if column.rows is not None:
                arrays[f"{kind}.{number}.rows"] = column.rows
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def read_index(file: Path | bytes) -> BlockIndex:
    """Return what a file holds; raises ColumnsDamaged."""
    with _opened(file) as arrays:
        stored = parse_json(arrays[INDEX].tobytes())
        tables = {kind: TableIndex(**table) for kind, table in stored["tables"].items()}
        return BlockIndex(tables=tables, left_out=stored["left_out"])


def read_table(file: Path | bytes, index: BlockIndex, kind: str, names: Iterable[str]) -> Table:
    """Return a table of a file, with those of the columns that it has; raises ColumnsDamaged."""
    numbers = {name: number for number, name in enumerate(index.tables[kind].columns)}
    with _opened(file) as arrays:
        columns = {}
        for name in names:
            if (number := numbers.get(name)) is not None:
                rows = arrays.get(f"{kind}.{number}.rows")
                columns[name] = Column(rows=rows, values=arrays[f"{kind}.{number}"])
        return Table(step=arrays[f"{kind}.step"], at=arrays[f"{kind}.at"], columns=columns)


def check(data: bytes) -> None:
    """Raise ColumnsDamaged where a byte of a file is not as it was written."""
    with _damage_named("columns"):
        _check_stored(io.BytesIO(data))
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            if (name := file.testzip()) is not None:
                raise ColumnsDamaged(f"the part {name} of columns is damaged")


@contextmanager
def _opened(file: Path | bytes) -> Iterator[Mapping[str, Any]]:
    import numpy as np

    with _damage_named("columns" if isinstance(file, bytes) else str(file)):
        # Opened here: numpy leaves a file open that is not an archive.
        opened = io.BytesIO(file) if isinstance(file, bytes) else file.open("rb")
        with opened:
            _check_stored(opened)
            with np.load(opened) as arrays:
                yield arrays


def _check_stored(file: IO[bytes]) -> None:
    """Raise ColumnsDamaged for a file whose arrays may be larger than it: ours are not compressed."""
    if (size_bytes := file.seek(0, io.SEEK_END)) > FILE_BYTES_MAX:
        raise ColumnsDamaged(f"columns have {size_bytes} bytes, at most {FILE_BYTES_MAX} are read")
    with zipfile.ZipFile(file) as parts:
        infos = parts.infolist()
    if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
        raise ColumnsDamaged("columns are compressed, which no file of ours is")
    file.seek(0)


@contextmanager
def _damage_named(where: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise ColumnsDamaged(f"{where}: {error}") from error


class ColumnsWriter:
    """Stores the columns of a journal as it grows, a file each BLOCK_BYTES of it."""

    def __init__(self, store: ObjectStore, *, journal: str) -> None:
        """Store beside the journal with that prefix."""
        self._store = store
        self._prefix = columns_prefix(journal)
        self._lines: dict[str, Gathered] = {}
        self._begin: int | None = None  # of these lines, in the journal
        self._waiting: dict[str, bytes] = {}  # files by key, oldest first

    def add(self, offset: int, segment: bytes) -> None:
        """Take in a full segment of the journal, which begins at byte `offset`."""
        if len(self._waiting) >= WAITING_MAX:
            self._lines, self._begin = {}, None  # a gap: anyone who reads on from there parses
            return
        begin = offset if self._begin is None else self._begin
        end = offset + len(segment)
        self._begin = begin
        parse(segment, self._lines)
        if self._lines and end - begin >= BLOCK_BYTES:
            tables, left_out = tables_of(self._lines)
            data = encode(tables, index_of(tables, left_out))
            self._waiting[self._prefix + file_name(begin, end)] = data
            self._lines, self._begin = {}, None

    def store(self) -> None:
        """Store the files that wait for it; raises StoreError and keeps the others."""
        for key in list(self._waiting):
            self._store.put(key, self._waiting[key])
            del self._waiting[key]
