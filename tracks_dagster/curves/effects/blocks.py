"""A rank's journal as blocks of columns: parsed once, read again in milliseconds.

The rank that wrote it stored most blocks beside it (`stores.journal_columns`); these are copied. The
rest is parsed: a segment that another one follows never changes, so what was parsed of such segments is
stored here as well, a file each, named by the bytes of the journal that it covers; what may still grow
is parsed at each reading. The folder may be removed at any time, keeps to CACHE_BYTES_MAX, and any
number of processes and threads may use it at once: a file appears whole, under a name that always
means the same.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tracks_dagster.stores.journal_columns import (
    BLOCK_BYTES,
    FILE_BYTES_MAX,
    FORMAT,
    BlockIndex,
    ColumnsDamaged,
    TableIndex,
    check,
    columns_prefix,
    encode,
    file_name,
    index_of,
    longest_chain,
    read_index,
    read_table,
    stretch_of,
    tables_of,
)
from tracks_dagster.stores.journal_tables import Gathered, Table, parse
from tracks_dagster.stores.journals import read_known_segment, segment_offsets
from tracks_dagster.track.map_in_order import map_in_order
from tracks_dagster.track.ports import ObjectStore

SLICE_BYTES = 1024**2  # parsed at once: a name of its own in each line then takes 50 MB, not more
LINE_BYTES_MAX = 8 * 1024**2  # what has no end by then is not a line of ours
CACHE_BYTES_MAX = 2 * 1024**3
FETCHES = 8  # requests to the store at once
FETCHED_MAX = 32  # objects in memory before they are used
INDEXES_MAX = 4096  # of blocks, in memory
WHOLE = "whole"  # the file that holds where a journal ended that nobody writes to any more


S = TypeVar("S")
T = TypeVar("T")


class CacheLost(Exception):
    """A stored block is gone or damaged: read the journal again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One stretch of a journal, from byte to byte.

    tables: by kind of line; empty where they lie in the file `path`.
    """

    begin: int
    end: int
    found: BlockIndex
    tables: Mapping[str, Table] = field(default_factory=dict)
    path: Path | None = None

    @property
    def index(self) -> Mapping[str, TableIndex]:
        """What each table holds, by kind of line."""
        return self.found.tables

    @property
    def left_out(self) -> int:
        """How many of the script's names are not in it."""
        return self.found.left_out

    def read(self, kind: str, names: Iterable[str]) -> Table | None:
        """Return lines of a kind with these columns, as far as they are there; None without any.

        Raises CacheLost.
        """
        if kind not in self.index:
            return None
        if self.path is None:
            return self.tables[kind]
        with _lost_if_damaged(self.path):
            return read_table(self.path, self.found, kind, names)


def read_blocks(
    store: ObjectStore, prefix: str, cache: Path | None, *, is_over: bool
) -> list[Block]:
    """Return the journal under `prefix` as far as it was shipped, in order.

    cache: a folder for blocks; None keeps nothing. is_over: nobody writes to the journal any more. Asks
    the store for one list, and for each segment that is new or may have grown; where that is more than
    a block, for a list of the blocks beside the journal and for those that are new, in place of their
    segments; for nothing once the end of a journal that is over was stored. Raises CacheLost.
    """
    # A launch's id is a text from outside, and no part of a path.
    digest = sha256(f"{FORMAT}\n{store.url}\n{prefix}".encode()).hexdigest()
    folder = None if cache is None else cache / digest[:32]
    kept: list[Block] = []
    if folder is not None:
        kept = list(_chain(folder))
        _use(folder)
        if _is_whole(folder, kept):
            return kept
    offsets = segment_offsets(store, prefix)
    blocks = _Blocks(folder, kept)
    if offsets and offsets[-1] - blocks.end >= BLOCK_BYTES:
        blocks.copy(store, columns_prefix(prefix))
    found = blocks.extend(_new_lines(store, prefix, offsets, blocks.end, is_over=is_over))
    if folder is not None and is_over:
        _close(folder, found)
    if cache is not None and blocks.has_stored:
        _prune(cache)
    return found


# --- from the store ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Whole lines up to byte `end` of a journal. is_final: they never change."""

    end: int
    data: bytes
    is_final: bool


def _new_lines(
    store: ObjectStore, prefix: str, offsets: Sequence[int], begin: int, *, is_over: bool
) -> Iterator[_Lines]:
    """Yield the whole lines from byte `begin` on, a segment's at a time."""
    offsets = offsets[max(0, bisect_right(offsets, begin) - 1) :]
    read = partial(read_known_segment, store, prefix)
    torn, end = b"", begin  # torn: a line that the next segment continues
    for number, (offset, found) in enumerate(zip(offsets, _each(read, offsets), strict=True), 1):
        data = found or b""  # one that is gone
        if offset > end or len(torn) > LINE_BYTES_MAX:  # a segment never came
            torn, end = b"", max(offset, end)
        data = torn + data[end - offset :]  # a segment shipped again may overlap
        end += len(data) - len(torn)
        whole, newline, torn = data.rpartition(b"\n")
        if newline:
            is_final = is_over or number < len(offsets)
            yield _Lines(end=end - len(torn), data=whole + newline, is_final=is_final)


def _each(do: Callable[[S], T], things: Sequence[S]) -> Iterator[T]:
    """Yield what `do` returns for each, in order, some at once: most wait for a store."""
    if len(things) <= 2:  # a look at a living run: threads cost more than they bring
        yield from map(do, things)
        return
    with ThreadPoolExecutor(FETCHES, thread_name_prefix="journal") as threads:
        yield from map_in_order(threads, do, things, at_once=FETCHED_MAX)


# --- in blocks --------------------------------------------------------------------------------------


class _Blocks:
    """The blocks of one journal. Lines that never change are stored, a small last block with them."""

    def __init__(self, folder: Path | None, kept: Sequence[Block]) -> None:
        self._folder = folder
        self._blocks = list(kept)
        self.has_stored = False

    @property
    def end(self) -> int:
        """Up to which byte of the journal they reach."""
        return self._blocks[-1].end if self._blocks else 0

    def copy(self, store: ObjectStore, prefix: str) -> None:
        """Take in the blocks under `prefix`, which lie beside the journal, where they reach further.

        They need not begin where the kept blocks end: those past the last place where both do are
        dropped. One that is gone or damaged ends it; its lines are parsed.
        """
        names = (stretch_of(key.removeprefix(prefix)) for key in store.list(prefix))
        stored = [each for each in names if each is not None]
        begins = {begin for begin, _ in stored}
        ends = [0, *(block.end for block in self._blocks)]
        common = max((end for end in ends if end in begins), default=0)
        chain = longest_chain(stored, common)
        if not chain or chain[-1][1] <= self.end:
            return
        obsolete = [block for block in self._blocks if block.end > common]
        self._blocks = [block for block in self._blocks if block.end <= common]

        def copy(stretch: tuple[int, int]) -> Block | None:
            data = store.get(prefix + file_name(*stretch), FILE_BYTES_MAX)
            return None if data is None else _copied(data, *stretch, self._folder)

        for block in _each(copy, chain):
            if block is None:
                break
            self._blocks.append(block)
            self.has_stored = True
        paths = {block.path for block in self._blocks}
        _remove(block for block in obsolete if block.path not in paths)

    def extend(self, lines: Iterable[_Lines]) -> list[Block]:
        """Return the blocks with these lines, which follow them."""
        final: list[_Lines] = []
        for each in lines:
            if not each.is_final:
                self._flush(final)
                self._blocks.append(_parsed([each], begin=self.end))
                return self._blocks
            final.append(each)
            if each.end - self.end >= BLOCK_BYTES:
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
        new = _parsed(lines, begin=self.end, before=before)
        stored = None if self._folder is None else _store(self._folder, new)
        self._blocks.append(stored or new)
        if stored is not None:
            self.has_stored = True
            if before is not None:
                _remove([before])


def _copied(data: bytes, begin: int, end: int, folder: Path | None) -> Block | None:
    """Return a block that lay beside the journal; None where it is damaged."""
    try:
        check(data)
        found = read_index(data)
        block = Block(begin=begin, end=end, found=found)
        if folder is not None and (path := _write(folder, begin, end, data)) is not None:
            return replace(block, path=path)
        tables = {k: read_table(data, found, k, t.columns) for k, t in found.tables.items()}
        return replace(block, tables=tables)
    except ColumnsDamaged:
        return None


def _remove(blocks: Iterable[Block]) -> None:
    for block in blocks:
        if block.path is not None:
            with suppress(OSError):
                block.path.unlink()


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
    tables, more = tables_of(gathered)
    found = index_of(tables, max(left_out, more))
    return Block(begin=begin, end=lines[-1].end, found=found, tables=tables)


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
    stretches = filter(None, (stretch_of(path.name) for path in folder.glob("*.npz")))
    for begin, end in longest_chain(list(stretches)):
        path = folder / file_name(begin, end)
        try:
            found = _index(path)
        except CacheLost:
            return
        yield Block(begin=begin, end=end, found=found, path=path)


def _is_whole(folder: Path, blocks: Sequence[Block]) -> bool:
    """Whether the blocks reach the end of a journal that is over."""
    try:
        return int((folder / WHOLE).read_text()) == (blocks[-1].end if blocks else 0)
    except (OSError, ValueError):
        return False


def _store(folder: Path, block: Block) -> Block | None:
    """Store a block; return it as it is read from there, None where nothing can be written."""
    path = _write(folder, block.begin, block.end, encode(block.tables, block.found))
    return None if path is None else replace(block, tables={}, path=path)


def _write(folder: Path, begin: int, end: int, data: bytes) -> Path | None:
    """Write a block's file whole; None where nothing can be written: the next call parses again."""
    path = folder / file_name(begin, end)
    unfinished = folder / f".{uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError:  # a disk that is full, an archive's folder
        with suppress(OSError):
            unfinished.unlink()
        return None
    return path


@lru_cache(maxsize=INDEXES_MAX)
def _index(path: Path) -> BlockIndex:
    """Return what a block's file holds, which never changes; raises CacheLost."""
    with _lost_if_damaged(path):
        return read_index(path)


@contextmanager
def _lost_if_damaged(path: Path) -> Iterator[None]:
    """Remove a file that is damaged, and raise CacheLost."""
    try:
        yield
    except ColumnsDamaged as error:
        with suppress(OSError):
            path.unlink()
        raise CacheLost(str(error)) from error


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
