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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import blake3

from tracks_dagster.stores.sources import Buffers, Source, SourceFile
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.map_in_order import map_in_order
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.files_manifest import (
    CHUNK_BYTES,
    FILES_FORMAT,
    PACK_BYTES_MAX,
    PACK_BYTES_MIN,
    PACK_BYTES_MORE,
    SMALL_BYTES,
    EncodedFiles,
    FilesManifest,
    FrozenFile,
    Part,
)

GRAIN_S = 2.0  # of the coarsest clock of a file system that people use (FAT)
THREADS_MAX = 8  # more only compete for one disk
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DIGEST_CHARS = 64
MARSHAL = 2  # a version without references: the same values are the same bytes
BATCH_FILES_MAX = 64  # small files that one thread takes at once
BATCH_BYTES_MAX = 4 * 1024 * 1024

Digests = tuple[str, ...]  # of a file's parts
Known = Digests | None  # None for what has to be read

T = TypeVar("T")


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return the blake3 of a part, 64 hex digits; twice as fast as sha256 (2026-11, one thread)."""
    return blake3.blake3(data).hexdigest()


class Kept(NamedTuple):
    """Files that were hashed, and their digests: bytes of marshal, which are compared and written as
    one, and seldom looked into."""

    first: str  # the path of the first one
    file_count: int
    listing: bytes
    digests: bytes  # of the parts of each
    pack: EncodedFiles | None  # where they lie behind one another in the source and fill a pack


class Run(NamedTuple):
    """Files behind one another in a source: a whole pack that is known, or any."""

    files: Sequence[SourceFile]
    digests: Sequence[Known]  # empty for a pack
    kept: Kept | None = None

    def each(self) -> Iterator[tuple[SourceFile, Known]]:
        """Yield every file with its digests."""
        digests = self.digests if self.kept is None else marshal.loads(self.kept.digests)
        return zip(self.files, digests, strict=True)

    def unknown(self) -> list[SourceFile]:
        """Return what has to be read."""
        return [] if self.kept else [f for f, known in self.each() if known is None]


class Hashes:
    """Digests of the parts of one source's files, kept in `folder`; None keeps none."""

    def __init__(self, folder: Path | None, place: str) -> None:
        self._path = None if folder is None else folder / sha256_hex(place.encode())[:32]
        self._place = place
        self._began_at = time.time()
        self._kept = _read(self._path, place)
        self._there: list[Kept] = []

    def runs(self, files: Sequence[SourceFile]) -> list[Run]:
        """Return `files` in runs, with what is known of them. Of a pack all files are compared at once:
        there may be a million of them."""
        packs = {kept.first: kept for kept in self._kept if kept.pack is not None}
        same: list[tuple[int, Kept]] = []
        at = 0
        while at < len(files):
            kept = packs.get(files[at].path)
            if kept is not None and _listing(files[at : at + kept.file_count]) == kept.listing:
                same.append((at, packs.pop(kept.first)))
                at += kept.file_count
            else:
                at += 1
        others = [*packs.values(), *(kept for kept in self._kept if kept.pack is None)]
        known = {file: digests for kept in others for file, digests in _unpacked(kept)}
        runs: list[Run] = []
        done = 0
        for at, kept in same:
            runs.append(_run(files[done:at], known))
            done = at + kept.file_count
            runs.append(Run(files[at:done], (), kept))
        runs.append(_run(files[done:], known))
        return [run for run in runs if run.files]

    def learn(
        self,
        digests: dict[SourceFile, Digests],
        *,
        pack: EncodedFiles | None = None,
        are_trusted: bool = False,
    ) -> None:
        """Remember files that were read whole. are_trusted: nobody else can have written to them, or
        they were known."""
        old = {f: each for f, each in digests.items() if are_trusted or self._is_old(f)}
        if self._path is not None and old:
            listing, values = _listing(old), marshal.dumps([*old.values()], MARSHAL)
            is_whole = len(old) == len(digests)
            first = next(iter(old)).path
            self._there.append(Kept(first, len(old), listing, values, pack if is_whole else None))

    def keep(self, kept: Kept) -> None:
        """Go on remembering a pack of `runs`; what is neither kept nor learned is forgotten."""
        self._there.append(kept)

    def _is_old(self, file: SourceFile) -> bool:
        before_ns = (self._began_at - GRAIN_S) * 1e9
        return all(isinstance(t, str) or t < before_ns for t in file.stamp[:2])

    def forget(self) -> None:
        """Trust nothing that was remembered."""
        self._kept, self._there = [], []

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


def _run(files: Sequence[SourceFile], known: dict[SourceFile, Digests]) -> Run:
    return Run(files, list(map(known.get, files)))


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
    runs = hashes.runs([file for _, file in rest])
    known = dict(each for run in runs for each in run.each())
    # A hint that says otherwise proves nothing, so such a file is read.
    unknown = [each for each in rest if known[each[1]] != each[0].digests]

    buffers = Buffers()

    def check(batch: list[_Check]) -> list[tuple[_Check, bool]]:
        return [
            (each, _is_same(source, each, buffers.view(each.part.size_bytes))) for each in batch
        ]

    with ThreadPoolExecutor(thread_count()) as pool:
        batches = in_batches(_checks(unknown), lambda each: each.part.size_bytes)
        for checked in map_in_order(pool, check, batches, at_once=2 * thread_count()):
            for each, is_same in checked:
                if not is_same:
                    wrong.add(each.file.path)
                progress(each.part.size_bytes)
    right = {file: frozen.digests for frozen, file in unknown if frozen.path not in wrong}
    hints = {f: hint for f, hint in known.items() if hint is not None and f not in right}
    hashes.learn(hints, are_trusted=True)
    hashes.learn(right)
    hashes.save()
    return sorted(wrong)


def thread_count() -> int:
    """Return how many threads read and hash: two a core, since each waits for the disk as well."""
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


def _identity(place: str) -> tuple[str | int, ...]:
    """Return what must be the same for a hint to count."""
    boot_id = secrets.token_hex(8)  # unknown: as after a reboot
    with suppress(OSError):
        boot_id = BOOT_ID.read_text().strip()
    packs = PACK_BYTES_MIN, PACK_BYTES_MORE, PACK_BYTES_MAX
    rules = CHUNK_BYTES, SMALL_BYTES, *packs, FILES_FORMAT
    return place, boot_id, *rules


def _listing(files: Iterable[SourceFile]) -> bytes:
    return marshal.dumps(list(map(tuple, files)), MARSHAL)


def _unpacked(kept: Kept) -> Iterator[tuple[SourceFile, Digests]]:
    """Yield the files, as plain tuples, which are found as `SourceFile` is, with their digests."""
    return zip(marshal.loads(kept.listing), marshal.loads(kept.digests), strict=True)


def _packed(place: str, there: Sequence[Kept]) -> bytes:
    """Return what `_read` reads. marshal, which takes plain tuples, costs a fifth of JSON; it does not
    survive bytes that are not its own, so they are hashed."""
    plain: list[Any] = [(*kept[:-1], kept.pack and tuple(kept.pack)) for kept in there]
    data = marshal.dumps((_identity(place), plain))
    return digest(data).encode() + data


def _read(path: Path | None, place: str) -> list[Kept]:
    if path is None:
        return []
    try:
        data = memoryview(path.read_bytes())
        if digest(data[DIGEST_CHARS:]) != str(data[:DIGEST_CHARS], "ascii"):
            return []
        identity, there = marshal.loads(data[DIGEST_CHARS:])
        if identity != _identity(place):
            return []
        plain = [Kept(*kept) for kept in there]
        return [kept._replace(pack=kept.pack and EncodedFiles(*kept.pack)) for kept in plain]
    except (OSError, ValueError, EOFError, TypeError):  # of a Python with another marshal
        return []
