"""A rank's journal as blocks of columns: parsed once, read again in milliseconds.

A segment that another one follows never changes. What was parsed of such segments is stored in blocks,
a file each, named by the bytes of the journal that it covers; what may still grow is parsed at each
reading. The folder may be removed at any time, keeps to CACHE_BYTES_MAX, and any number of processes
and threads may use it at once: a file appears whole, under a name that always means the same.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from tracks_dagster.stores.journal_tables import Column, Gathered, Table, parse
from tracks_dagster.track.ports import ObjectStore

FORMAT = 1  # of a block's file
BLOCK_BYTES = 16 * 1024**2  # of a journal, in one file: some 40 000 steps
SLICE_BYTES = 1024**2  # parsed at once: a name of its own in each line then takes 50 MB, not more
LINE_BYTES_MAX = 8 * 1024**2  # what has no end by then is no line of ours
CACHE_BYTES_MAX = 2 * 1024**3
FETCHES = 8  # requests to the store at once
FETCHED_MAX = 32  # segments in memory before they are parsed
INDEXES_MAX = 4096  # of blocks, in memory
INDEX = "index"  # the part of a block's file that says what is in it
WHOLE = "whole"  # the file that holds where a journal ended that nobody writes to any more


class CacheLost(Exception):
    """A stored block is gone or damaged: read the journal again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIndex:
    """What a table holds. first, last: the smallest and the largest step; columns: name → values."""

    first: int
    last: int
    columns: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One stretch of a journal, from byte to byte. left_out: how many of the script's names are.

    tables: by kind of line; empty where they lie in the file `path`.
    """

    begin: int
    end: int
    index: Mapping[str, TableIndex]
    left_out: int
    tables: Mapping[str, Table] = field(default_factory=dict)
    path: Path | None = None

    def read(self, kind: str, names: Iterable[str]) -> Table | None:
        """Return lines of a kind with these columns, as far as they are there; None without any.

        Raises CacheLost.
        """
        index = self.index.get(kind)
        if index is None:
            return None
        if self.path is None:
            return self.tables[kind]
        return _load(self.path, kind, [name for name in names if name in index.columns])


def read_blocks(
    store: ObjectStore, prefix: str, cache: Path | None, *, is_over: bool
) -> list[Block]:
    """Return the journal under `prefix` as far as it was shipped, in order.

    cache: a folder for what was parsed; None keeps nothing. is_over: nobody writes to the journal any
    more. Asks the store for one list, and for each segment that is new or may have grown; for nothing
    once the end of a journal that is over was stored. Raises CacheLost.
    """
    if cache is None:
        return _Blocks(None, []).extend(_new_lines(store, prefix, 0, is_over=is_over))
    # A launch's id is a text from outside, and no part of a path.
    digest = sha256(f"{FORMAT}\n{store.url}\n{prefix}".encode()).hexdigest()
    folder = cache / digest[:32]
    kept = list(_chain(folder))
    _use(folder)
    if _is_whole(folder, kept):
        return kept
    begin = kept[-1].end if kept else 0
    blocks = _Blocks(folder, kept)
    found = blocks.extend(_new_lines(store, prefix, begin, is_over=is_over))
    if is_over:
        _close(folder, found)
    if blocks.has_stored:
        _prune(cache)
    return found


# --- from the store ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Whole lines up to byte `end` of a journal. is_final: they never change."""

    end: int
    data: bytes
    is_final: bool


def _new_lines(store: ObjectStore, prefix: str, begin: int, *, is_over: bool) -> Iterator[_Lines]:
    """Yield the whole lines from byte `begin` on, a segment's at a time."""
    names = (key.removeprefix(prefix).removesuffix(".jsonl") for key in store.list(prefix))
    offsets = sorted(int(name) for name in names if name.isdigit())
    offsets = offsets[max(0, bisect_right(offsets, begin) - 1) :]
    torn, end = b"", begin  # torn: a line that the next segment continues
    for number, (offset, data) in enumerate(_segments(store, prefix, offsets), 1):
        if offset > end or len(torn) > LINE_BYTES_MAX:  # a segment never came
            torn, end = b"", max(offset, end)
        data = torn + data[end - offset :]  # a segment shipped again may overlap
        end += len(data) - len(torn)
        whole, newline, torn = data.rpartition(b"\n")
        if newline:
            is_final = is_over or number < len(offsets)
            yield _Lines(end=end - len(torn), data=whole + newline, is_final=is_final)


def _segments(
    store: ObjectStore, prefix: str, offsets: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of the segments, in order; of one that is gone none."""

    def fetch(offset: int) -> bytes:
        return store.get(f"{prefix}{offset:012d}.jsonl") or b""

    if len(offsets) <= 2:  # a look at a living run: threads cost more than they bring
        yield from ((offset, fetch(offset)) for offset in offsets)
        return
    left = iter(offsets)
    with ThreadPoolExecutor(FETCHES, thread_name_prefix="journal") as threads:
        while some := list(islice(left, FETCHED_MAX)):
            yield from zip(some, threads.map(fetch, some), strict=True)


# --- in blocks --------------------------------------------------------------------------------------


class _Blocks:
    """The blocks of one journal. Lines that never change are stored, a small last block with them."""

    def __init__(self, folder: Path | None, kept: Sequence[Block]) -> None:
        self._folder = folder
        self._blocks = list(kept)
        self.has_stored = False

    @property
    def _end(self) -> int:
        return self._blocks[-1].end if self._blocks else 0

    def extend(self, lines: Iterable[_Lines]) -> list[Block]:
        """Return the blocks with these lines, which follow them."""
        final: list[_Lines] = []
        for each in lines:
            if not each.is_final:
                self._flush(final)
                self._blocks.append(_parsed([each], begin=self._end))
                return self._blocks
            final.append(each)
            if each.end - self._end >= BLOCK_BYTES:
                self._flush(final)
                final = []
        self._flush(final)
        return self._blocks

    def _flush(self, lines: Sequence[_Lines]) -> None:
        if not lines:
            return
        before = self._blocks[-1] if self._blocks else None
        if before is not None and before.end - before.begin < BLOCK_BYTES:
            self._blocks.pop()
        else:
            before = None
        new = _parsed(lines, begin=self._end, before=before)
        stored = None if self._folder is None else _store(self._folder, new)
        self._blocks.append(stored or new)
        if stored is not None:
            self.has_stored = True
            if before is not None and before.path is not None:
                with suppress(OSError):
                    before.path.unlink()


def _parsed(lines: Sequence[_Lines], *, begin: int, before: Block | None = None) -> Block:
    """Return the block of these lines, behind those of the block before; raises CacheLost."""
    gathered: dict[str, Gathered] = {}
    left_out = 0
    if before is not None:
        left_out = before.left_out
        for kind, known in before.index.items():
            if (table := before.read(kind, known.columns)) is not None:
                gathered.setdefault(kind, Gathered()).extend(table)
    for data in _slices(lines):
        parse(data, gathered)
    tables = {}
    for kind, columns in gathered.items():
        tables[kind], more = columns.table()
        left_out = max(left_out, more)
    index = {kind: _index_of(table) for kind, table in tables.items()}
    end = lines[-1].end
    return Block(begin=begin, end=end, index=index, left_out=left_out, tables=tables)


def _index_of(table: Table) -> TableIndex:
    return TableIndex(
        first=int(table.step.min()),
        last=int(table.step.max()),
        columns={name: len(column.values) for name, column in table.columns.items()},
    )


def _slices(lines: Sequence[_Lines]) -> Iterator[bytes]:
    """Yield the lines in slices of about SLICE_BYTES."""
    some: list[bytes] = []
    size = 0
    for each in lines:
        some.append(each.data)
        size += len(each.data)
        if size >= SLICE_BYTES:
            yield b"".join(some)
            some, size = [], 0
    yield b"".join(some)


def _chain(folder: Path) -> Iterator[Block]:
    """Yield the stored blocks that follow one another from the journal's first byte on."""
    ends: dict[int, list[int]] = {}
    for path in folder.glob("*.npz"):
        begins, _, stops = path.stem.partition("-")
        if begins.isdigit() and stops.isdigit():
            ends.setdefault(int(begins), []).append(int(stops))
    at = 0
    while at in ends:
        end = max(ends.pop(at))
        path = folder / _name(at, end)
        try:
            index, left_out = _index(path)
        except CacheLost:
            return
        yield Block(begin=at, end=end, index=index, left_out=left_out, path=path)
        at = end


def _name(begin: int, end: int) -> str:
    return f"{begin:012d}-{end:012d}.npz"


def _is_whole(folder: Path, blocks: Sequence[Block]) -> bool:
    """Whether the blocks reach the end of a journal that is over."""
    try:
        return int((folder / WHOLE).read_text()) == (blocks[-1].end if blocks else 0)
    except (OSError, ValueError):
        return False


def _store(folder: Path, block: Block) -> Block | None:
    """Store a block; return it as it is read from there, None where nothing can be written."""
    import numpy as np

    tables = {
        kind: {"first": index.first, "last": index.last, "columns": dict(index.columns)}
        for kind, index in block.index.items()
    }
    text = json.dumps({"tables": tables, "left_out": block.left_out}).encode()
    arrays: dict[str, Any] = {INDEX: np.frombuffer(text, np.uint8)}
    for kind, table in block.tables.items():
        arrays[f"{kind}.step"], arrays[f"{kind}.at"] = table.step, table.at
        for number, column in enumerate(table.columns.values()):
            arrays[f"{kind}.{number}"] = column.values
            if column.rows is not None:
                arrays[f"{kind}.{number}.rows"] = column.rows
    path = folder / _name(block.begin, block.end)
    unfinished = folder / f".{uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            np.savez(file, **arrays)
        unfinished.replace(path)
    except OSError:  # a disk that is full, an archive's folder: the next call parses it again
        with suppress(OSError):
            unfinished.unlink()
        return None
    return replace(block, tables={}, path=path)


@lru_cache(maxsize=INDEXES_MAX)
def _index(path: Path) -> tuple[Mapping[str, TableIndex], int]:
    """Return what a block's file holds, which never changes; raises CacheLost."""
    with _opened(path) as arrays:
        stored = json.loads(arrays[INDEX].tobytes())
        index = {kind: TableIndex(**table) for kind, table in stored["tables"].items()}
        return index, stored["left_out"]


def _load(path: Path, kind: str, names: Sequence[str]) -> Table:
    """Return a table with these columns, of a block's file; raises CacheLost."""
    index, _ = _index(path)
    numbers = {name: number for number, name in enumerate(index[kind].columns)}
    with _opened(path) as arrays:
        columns = {}
        for name in names:
            key = f"{kind}.{numbers[name]}"
            rows = arrays.get(f"{key}.rows")
            columns[name] = Column(rows=rows, values=arrays[key])
        return Table(step=arrays[f"{kind}.step"], at=arrays[f"{kind}.at"], columns=columns)


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, Any]]:
    """Open a block's file; one that is gone or damaged is removed. Raises CacheLost."""
    import numpy as np

    try:
        # Opened here: numpy leaves a file open that is no archive.
        with path.open("rb") as file, np.load(file) as arrays:
            yield arrays
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        with suppress(OSError):
            path.unlink()
        raise CacheLost(f"{path}: {error}") from error


def _close(folder: Path, blocks: Sequence[Block]) -> None:
    """Say that a journal that is over ends where its stored blocks end."""
    if any(block.path is None for block in blocks):
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / WHOLE).write_text(str(blocks[-1].end if blocks else 0))


def _use(folder: Path) -> None:
    """Say that the folder was used now, for `_prune`."""
    with suppress(OSError):
        os.utime(folder)


def _prune(cache: Path) -> None:
    """Remove the folders that were not used for longest, until the others keep to CACHE_BYTES_MAX."""
    folders = []
    with suppress(OSError):
        for folder in cache.iterdir():
            size = sum(path.stat().st_size for path in folder.iterdir())
            folders.append((folder.stat().st_mtime, size, folder))
    total = sum(size for _, size, _ in folders)
    for _, size, folder in sorted(folders)[:-1]:  # never the newest: it was written just now
        if total <= CACHE_BYTES_MAX:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size
