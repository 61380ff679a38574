"""Freeze files of any format: read, hash and store them in one pass, in parallel.

Nothing here records anything: shards without a record are objects that nobody names. A shard that the
store holds already is not written again, so an unchanged file costs no bytes, and a freezing that was
killed goes on where it was. A pack whose files are all as they were is taken as a whole: its part of
the manifest is kept beside its hashes. What a manifest of files is: `track.states.files_manifest`.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tracks_dagster.stores.hashes import (
    BATCH_BYTES_MAX,
    Hashes,
    Known,
    Run,
    digest,
    in_batches,
    thread_count,
)
from tracks_dagster.stores.sources import Buffers, Source, SourceFile, changed
from tracks_dagster.track.errors import InvalidInput, TracksError
from tracks_dagster.track.map_in_order import map_in_order
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.files_manifest import (
    SMALL_BYTES,
    EncodedFiles,
    EncodedManifest,
    FrozenFile,
    Part,
    cut,
    encode_files,
    ends_pack,
    files_shard_key,
    join_files,
    part_count,
    shard_name,
)

Progress = Callable[[int], object]  # bytes that were dealt with since the last call

GB = 1e9
# Packs on their way to the disk at once, each 16 MB twice. They have threads of their own: they wait
# for fsync, and in the same ones nothing would be hashed meanwhile.
WRITERS = 8


class _WrongHint(TracksError):
    """A file that was taken for unchanged has other bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Files that are in the store, or known by their hashes in place. written_bytes: what was new."""

    manifest: EncodedManifest
    written_bytes: int


class _Piece(NamedTuple):
    """A part of a file. digest: "" until it is hashed; data: None where it was not read, or is not
    needed again."""

    file: SourceFile
    offset: int
    size_bytes: int
    digest: str
    data: memoryview | None = None


def list_files(source: Source) -> list[SourceFile]:
    """Return what would be frozen; raises InvalidInput for what cannot be, and for nothing at all."""
    files = source.files()
    if not any(file.size_bytes for file in files):
        raise InvalidInput(
            f"{source.url} holds {len(files)} files and not one byte, so there is nothing to freeze; "
            "name the folder that holds the data."
        )
    return files


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep Python from looking for garbage: of a million tuples that all stay it finds none, and the
    search is a quarter of what a known file costs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_no_collections()
def freeze(
    source: Source,
    files: list[SourceFile],
    store: ObjectStore,
    dataset: str,
    *,
    in_place: bool,
    hashes: Hashes,
    progress: Progress = lambda done: None,
) -> Frozen:
    """Hash `files`, store what the store lacks unless they stay in place, and return the manifest.

    Raises InvalidInput when there is no room, or where a file came, went, or changed after it was read.
    """
    runs = hashes.runs(files)
    if not in_place:
        _check_room(store, runs)
    try:
        frozen = _freeze(source, runs, None if in_place else store, dataset, hashes, progress)
    except _WrongHint:
        hashes.forget()
        runs = hashes.runs(files)
        frozen = _freeze(source, runs, None if in_place else store, dataset, hashes, progress)
    # What was not read is in the store as it was listed, whatever became of it since; not so in place.
    taken = files if in_place else [file for run in runs for file in run.unknown()]
    if paths := source.changes(files, taken):
        raise changed(source.url, paths)
    hashes.save()
    return frozen


def _check_room(store: ObjectStore, runs: Sequence[Run]) -> None:
    """Raise InvalidInput when the files that are new here cannot fit on the store's disk."""
    folder = Path(store.url)
    if not folder.is_dir():
        return  # a bucket has no end
    need = sum(file.size_bytes for run in runs for file in run.unknown())
    free = shutil.disk_usage(folder).free
    if need > free:
        raise InvalidInput(
            f"The files have {need / GB:.1f} GB that may be new, and the disk of {store.url} has "
            f"{free / GB:.1f} GB free, so nothing was copied. Use --in-place to record their hashes "
            "and leave them where they are, free some space, or keep the store elsewhere "
            "(TRACKS_STORE)."
        )


def _freeze(
    source: Source,
    runs: Sequence[Run],
    store: ObjectStore | None,
    dataset: str,
    hashes: Hashes,
    progress: Progress,
) -> Frozen:
    with ThreadPoolExecutor(thread_count()) as pool, ThreadPoolExecutor(WRITERS) as writers:
        work = _Freezing(source, store, dataset, hashes, writers)
        for_threads = (
            piece
            for run in runs
            if run.kept is None
            for file, digests in run.each()
            if work.is_for_thread(file, digests)
            for piece in _pieces(file, digests)
        )
        batches = in_batches(for_threads, lambda piece: piece.size_bytes)
        read = chain.from_iterable(
            map_in_order(pool, work.read, batches, at_once=2 * thread_count())
        )
        done = 0
        try:
            for run in runs:
                if work.take_pack(run):
                    progress(sum(file.size_bytes for file in run.files))
                    continue
                for file, digests in run.each():
                    work.begin(file)
                    if digests is None or work.is_for_thread(file, digests):
                        for _ in range(part_count(file.size_bytes)):
                            work.take(next(read))
                    else:
                        work.take_known(file, digests)
                    done += file.size_bytes
                    if done >= BATCH_BYTES_MAX:
                        progress(done)
                        done = 0
            progress(done)
            return work.finish()
        finally:
            pool.shutdown(cancel_futures=True)
            writers.shutdown(cancel_futures=True)


def _pieces(file: SourceFile, digests: Known) -> Iterator[_Piece]:
    for number, (offset, size_bytes) in enumerate(cut(file.size_bytes)):
        yield _Piece(file, offset, size_bytes, digests[number] if digests else "")


class _Freezing:
    """One freezing. `read` is called by threads; everything else by the one that began it.

    store: None in place.
    """

    def __init__(
        self,
        source: Source,
        store: ObjectStore | None,
        dataset: str,
        hashes: Hashes,
        writers: ThreadPoolExecutor,
    ) -> None:
        self._source = source
        self._store = store
        self._dataset = dataset
        self._hashes = hashes
        self._writers = writers
        self._buffers = Buffers()
        self._files: dict[SourceFile, list[Part]] = {}  # since the last pack
        self._pack: list[_Piece] = []
        self._pack_bytes = 0
        self._writes: list[Future[None]] = []
        self._known_packs: list[list[_Piece]] = []  # of which nothing waits in memory
        self._kept_packs: list[tuple[Run, EncodedFiles]] = []
        self._written: list[int] = []  # appended to by threads, which a list allows
        self._encoded: list[EncodedFiles] = []  # all files that were taken, in their order

    def is_for_thread(self, file: SourceFile, digests: Known) -> bool:
        """Whether its parts go through `read`: they are not known, or the store may lack their shards.

        A pack is looked up by its name, once all of its files are taken.
        """
        return digests is None or (self._store is not None and file.size_bytes >= SMALL_BYTES)

    def read(self, batch: list[_Piece]) -> list[_Piece]:
        """Hash parts; a large file's is stored at once, so that its bytes are held no longer."""
        return [self._read(piece) for piece in batch]

    def take_pack(self, run: Run) -> bool:
        """Take in a pack that is known as a whole; False where its files have to be taken in by
        themselves, since a changed file before them is in one pack with them."""
        if run.kept is None or run.kept.pack is None or self._store is None or self._pack:
            return False
        self._end_files()
        self._kept_packs.append((run, run.kept.pack))
        self._hashes.keep(run.kept)
        self._encoded.append(run.kept.pack)
        return True

    def begin(self, file: SourceFile) -> None:
        """Begin with the next file, whose parts are taken in next."""
        self._files[file] = []

    def take(self, piece: _Piece) -> None:
        """Take in the next part, in the order of the files."""
        if self._store is None or piece.file.size_bytes >= SMALL_BYTES:
            shard = "" if self._store is None else shard_name([piece.digest])
            offset = piece.offset if self._store is None else 0
            part = Part(shard, offset, piece.size_bytes, piece.digest)
            self._files[piece.file].append(part)
            return
        self._take_packed(piece)

    def take_known(self, file: SourceFile, digests: tuple[str, ...]) -> None:
        """Take in a file that no thread has to look at, of which there may be a million."""
        if self._store is not None:  # then it is small, and has one part or is empty
            for each in digests:
                self._take_packed(_Piece(file, 0, file.size_bytes, each))
            return
        parts = zip(cut(file.size_bytes), digests, strict=True)
        self._files[file] = [Part("", at, size, each) for (at, size), each in parts]

    def _take_packed(self, piece: _Piece) -> None:
        self._pack.append(piece)
        self._pack_bytes += piece.size_bytes
        if ends_pack(piece.digest, piece.size_bytes, self._pack_bytes):
            self._end_pack()
            self._end_files(has_ended=True)

    def finish(self) -> Frozen:
        """Wait until everything is stored, and return the manifest."""
        self._end_pack()
        self._end_files()
        if (store := self._store) is not None:
            # Only now: a thread that asks the store for each would wait for its turn to run, five
            # milliseconds a call, as long as this one is busy.
            known, kept = self._known_packs, self._kept_packs
            self._writes += [self._writers.submit(self._write, store, pack) for pack in known]
            self._writes += [self._writers.submit(self._write_kept, store, *each) for each in kept]
        while self._writes:
            self._wait()
        in_place = self._source.url if self._store is None else None
        manifest = join_files(self._dataset, in_place, self._encoded)
        return Frozen(manifest=manifest, written_bytes=sum(self._written))

    def _end_files(self, *, has_ended: bool = False) -> None:
        """Encode and remember the files since the last pack. has_ended: they end with one."""
        files, self._files = self._files, {}
        if not files:
            return
        frozen = [FrozenFile(file.path, tuple(parts)) for file, parts in files.items()]
        encoded = encode_files(frozen)
        self._encoded.append(encoded)
        digests = {file: each.digests for file, each in zip(files, frozen, strict=True)}
        is_pack = has_ended and all(file.size_bytes < SMALL_BYTES for file in files)
        self._hashes.learn(digests, pack=encoded if is_pack else None)

    def _read(self, piece: _Piece) -> _Piece:
        is_packed = self._store is not None and piece.file.size_bytes < SMALL_BYTES
        if not piece.digest:
            size_bytes = piece.size_bytes
            # What is packed waits for its pack; a large part is not needed after this call.
            data = (
                memoryview(bytearray(size_bytes)) if is_packed else self._buffers.view(size_bytes)
            )
            self._source.read(piece.file, piece.offset, data)
            piece = piece._replace(digest=digest(data), data=data)
        if is_packed:
            return piece
        if self._store is not None:
            self._write(self._store, [piece])
        return piece._replace(data=None)

    def _end_pack(self) -> None:
        """Name the pack, and let a thread store it."""
        pack, self._pack, self._pack_bytes = self._pack, [], 0
        if not pack or self._store is None:
            return
        name, offset = shard_name([piece.digest for piece in pack]), 0
        for file, _, size_bytes, blake3, _ in pack:
            self._files[file] = [Part(name, offset, size_bytes, blake3)]
            offset += size_bytes
        if all(piece.data is None for piece in pack):
            self._known_packs.append(pack)
            return
        if len(self._writes) > WRITERS:
            self._wait()
        self._writes.append(self._writers.submit(self._write, self._store, pack))

    def _wait(self) -> None:
        self._writes.pop(0).result()

    def _write(self, store: ObjectStore, pieces: Sequence[_Piece]) -> None:
        """Store the shard of these parts unless it is there."""
        name = shard_name([piece.digest for piece in pieces])
        size_bytes = sum(piece.size_bytes for piece in pieces)
        if not self._is_stored(store, name, size_bytes):
            key = files_shard_key(self._dataset, name)
            store.put(key, self._joined(pieces, size_bytes))
            self._written.append(size_bytes)

    def _write_kept(self, store: ObjectStore, run: Run, pack: EncodedFiles) -> None:
        [name] = pack.shards
        if not self._is_stored(store, name, pack.total_bytes):
            each = ((file, digests) for file, digests in run.each() if digests)
            self._write(store, [piece for known in each for piece in _pieces(*known)])

    def _is_stored(self, store: ObjectStore, name: str, size_bytes: int) -> bool:
        """Reading nothing of an object gives its size, and makes sure that its name is durable."""
        key = files_shard_key(self._dataset, name)
        return store.read_into(key, memoryview(bytearray())) == size_bytes

    def _joined(self, pieces: Sequence[_Piece], size_bytes: int) -> memoryview:
        """Return the bytes of these parts behind one another, until this thread's next call."""
        if len(pieces) == 1 and pieces[0].data is not None:
            return pieces[0].data
        joined, offset = self._buffers.view(size_bytes), 0
        for piece in pieces:
            part = joined[offset : offset + piece.size_bytes]
            if piece.data is not None:
                part[:] = piece.data
            else:
                self._read_again(piece, part)
            offset += piece.size_bytes
        return joined

    def _read_again(self, piece: _Piece, buffer: memoryview) -> None:
        self._source.read(piece.file, piece.offset, buffer)
        if digest(buffer) != piece.digest:
            raise _WrongHint(f"{piece.file.path} is not what it was hashed to before.")
