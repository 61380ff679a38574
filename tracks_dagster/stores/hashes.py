"""What files of a source were hashed to before on this machine: a hint that saves reading them again.

As git's index does, a file counts as unchanged while its size, mtime, ctime and inode are the same;
ctime cannot be set back. What was written less than two seconds before it was hashed is never
remembered: a write within the clock's grain would leave no trace. Nothing is believed after a reboot: a
power loss may have taken bytes that nobody had synced. What leaves no trace at all is a program that
goes on writing through a memory map which it opened before. A lost cache costs time only.
"""

from __future__ import annotations

import marshal
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import blake3

from tracks_dagster.stores.sources import Buffers, Source, SourceFile
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.files_manifest import (
    CHUNK_BYTES,
    FilesManifest,
    FrozenFile,
    Part,
)

GRAIN_S = 2.0  # of the coarsest clock of a file system that people use (FAT)
THREADS_MAX = 8  # more only compete for one disk
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DIGEST_CHARS = 64
BATCH_FILES_MAX = 64  # small files that one thread takes at once
BATCH_BYTES_MAX = 4 * 1024 * 1024

T = TypeVar("T")
U = TypeVar("U")


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return the blake3 of a part, 64 hex digits; twice as fast as sha256 (2026-11, one thread)."""
    return blake3.blake3(data).hexdigest()


class Hashes:
    """Digests of the parts of one source's files, kept in `folder`; None keeps none."""

    def __init__(self, folder: Path | None, place: str) -> None:
        self._path = None if folder is None else folder / sha256_hex(place.encode())[:32]
        self._place = place
        self._began_at = time.time()
        self._kept = _read(self._path, place)
        self._there: dict[SourceFile, tuple[str, ...]] = {}

    def known(self, files: Sequence[SourceFile]) -> list[tuple[str, ...] | None]:
        """Return the digests of the parts of each; None for what has to be read.

        `save` forgets the files that are neither asked for nor learned.
        """
        found = list(map(self._kept.get, files))  # there may be a million of them
        there = dict(zip(files, found, strict=True))
        new = [file for file, digests in there.items() if digests is None]
        for file in new:
            del there[file]
        self._there.update(cast(dict[SourceFile, tuple[str, ...]], there))
        return found

    def learn(self, file: SourceFile, digests: Sequence[str], *, is_ours: bool = False) -> None:
        """Remember a file that was read whole. is_ours: nobody else can have written to it."""
        self._there.pop(file, None)
        if self._path is not None and (is_ours or self._is_old(file)):
            self._there[file] = tuple(digests)

    def _is_old(self, file: SourceFile) -> bool:
        before_ns = (self._began_at - GRAIN_S) * 1e9
        return all(isinstance(t, str) or t < before_ns for t in file.stamp[:2])

    def forget(self) -> None:
        """Trust nothing that was remembered."""
        self._kept, self._there = {}, {}

    def save(self) -> None:
        """Keep what was learned; a disk that takes it not costs the next one its time only."""
        if self._path is None or self._there == self._kept:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(f".{secrets.token_hex(8)}")
            try:
                partial.write_bytes(_packed(self._place, self._there))
                # Replacing a file makes ext4 write the new one's data first, however busy the disk is.
                self._path.unlink(missing_ok=True)
                partial.rename(self._path)
            finally:
                partial.unlink(missing_ok=True)


def find_changed(
    source: Source,
    manifest: FilesManifest,
    hashes: Hashes,
    *,
    progress: Callable[[int], object] = lambda done: None,
) -> list[str]:
    """Return the paths that `source` lacks, has more than `manifest`, or has with other bytes.

    A file that was added counts: a script that takes all files there would read it. Reads what
    `hashes` does not know.
    """
    there = {file.path: file for file in source.files()}
    wrong = {f.path for f in manifest.files if _differs_at_sight(f, there.get(f.path))}
    wrong |= there.keys() - {f.path for f in manifest.files}
    rest = [(f, there[f.path]) for f in manifest.files if f.path not in wrong]
    known = hashes.known([file for _, file in rest])
    # A hint that says otherwise proves nothing, so such a file is read.
    unknown = [each for each, hint in zip(rest, known, strict=True) if hint != _digests(each[0])]

    buffers = Buffers()

    def check(batch: list[_Check]) -> list[tuple[_Check, bool]]:
        return [
            (each, _is_same(source, each, buffers.view(each.part.size_bytes))) for each in batch
        ]

    with ThreadPoolExecutor(thread_count()) as pool:
        batches = in_batches(_checks(unknown), lambda each: each.part.size_bytes)
        for checked in in_order(pool, check, batches):
            for each, is_same in checked:
                if not is_same:
                    wrong.add(each.file.path)
                progress(each.part.size_bytes)
    for frozen, file in unknown:
        if frozen.path not in wrong:
            hashes.learn(file, _digests(frozen))
    hashes.save()
    return sorted(wrong)


def in_order(pool: ThreadPoolExecutor, call: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Yield `call` of every item in their order; only so many are under way as threads can use.

    After an error the items not begun yet are dropped.
    """
    waiting: list[Future[U]] = []
    try:
        for item in items:
            waiting.append(pool.submit(call, item))
            if len(waiting) > 2 * thread_count():
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()
    finally:
        for future in waiting:
            future.cancel()


def thread_count() -> int:
    """Return how many threads hash and write: two a core, since each waits for the disk as well."""
    return min(THREADS_MAX, 2 * len(os.sched_getaffinity(0)))


def in_batches(items: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield what one thread takes at once, in the given order: a large part, or some small ones."""
    batch: list[T] = []
    batch_bytes = 0
    for item in items:
        batch.append(item)
        batch_bytes += size_bytes(item)
        if len(batch) >= BATCH_FILES_MAX or batch_bytes >= BATCH_BYTES_MAX:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class _Check:
    """A part to be compared with the bytes of a file from `offset` on."""

    file: SourceFile
    offset: int
    part: Part


def _checks(files: Iterable[tuple[FrozenFile, SourceFile]]) -> Iterator[_Check]:
    for frozen, file in files:
        offset = 0
        for part in frozen.parts:
            yield _Check(file, offset, part)
            offset += part.size_bytes


def _differs_at_sight(frozen: FrozenFile, file: SourceFile | None) -> bool:
    return file is None or file.size_bytes != frozen.size_bytes


def _is_same(source: Source, each: _Check, buffer: memoryview) -> bool:
    try:
        source.read(each.file, each.offset, buffer)
    except InvalidInput:  # written while it was read
        return False
    return digest(buffer) == each.part.blake3


def _digests(frozen: FrozenFile) -> tuple[str, ...]:
    return tuple(part.blake3 for part in frozen.parts)


def _identity(place: str) -> tuple[str, str, int]:
    """Return what must be the same for a hint to count."""
    boot_id = secrets.token_hex(8)  # unknown: as after a reboot
    with suppress(OSError):
        boot_id = BOOT_ID.read_text().strip()
    return place, boot_id, CHUNK_BYTES


def _packed(place: str, files: dict[SourceFile, tuple[str, ...]]) -> bytes:
    """Return what `_read` reads. marshal, which takes plain tuples, costs a fifth of JSON; it does not
    survive bytes that are not its own, so they are hashed."""
    plain = {tuple(file): digests for file, digests in files.items()}
    data = marshal.dumps((_identity(place), plain))
    return digest(data).encode() + data


def _read(path: Path | None, place: str) -> dict[SourceFile, tuple[str, ...]]:
    """Return the digests by file; a tuple of a file's values finds it as well."""
    if path is None:
        return {}
    try:
        data = path.read_bytes()
        if digest(data[DIGEST_CHARS:]) != data[:DIGEST_CHARS].decode():
            return {}
        identity, files = marshal.loads(data[DIGEST_CHARS:])
    except (OSError, ValueError, EOFError, TypeError):  # of a Python with another marshal
        return {}
    return files if identity == _identity(place) else {}
