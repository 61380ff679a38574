"""Stores the chunks of one rank's save: several at a time, and only what is not stored yet.

A chunk is named by the blake3 of its bytes. One that the restored checkpoint or the newest own commit
names is named again instead of written; which checkpoints a save thereby leans on is returned, because
a commit that leans on one in quarantine, or on a deleted one, must not land.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from blake3 import blake3

from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.training.saves.manifest import Chunk

WRITERS = 16  # chunks written at once: enough to keep a disk busy while others wait for its fsync

# The bytes of a chunk, or what reads them when it is their turn: they are used before the same thread
# reads the next, so that it may read both into one buffer.
Part = memoryview | Callable[[], memoryview]


class KnownChunks:
    """Stored chunks that a save may name: of the restored checkpoint and the newest own commit.

    Older own commits are let go of: a collector may delete them while an attempt trains.
    """

    def __init__(self) -> None:
        self._restored: dict[str, Chunk] = {}
        self._restored_from = ""
        self._committed: dict[str, Chunk] = {}
        self._committed_as = ""

    def learn_restored(self, manifest_sha256: str, chunks: Iterable[Chunk]) -> None:
        """Take in the checkpoint that this attempt restored, of its own run."""
        self._restored = {chunk.blake3: chunk for chunk in chunks}
        self._restored_from = manifest_sha256

    def learn_commit(self, manifest_sha256: str, chunks: Iterable[Chunk]) -> None:
        """Take in this launch's newest commit, in place of the one before."""
        self._committed = {chunk.blake3: chunk for chunk in chunks}
        self._committed_as = manifest_sha256

    def forget(self) -> None:
        """Know nothing: the next save writes every chunk."""
        self.learn_restored("", ())
        self.learn_commit("", ())

    def find(self, digest: str) -> Chunk | None:
        """Return the stored chunk with that blake3, or None."""
        return self._committed.get(digest) or self._restored.get(digest)

    def sources(self, chunks: Iterable[Chunk]) -> frozenset[str]:
        """Return the manifest sha256 of every known checkpoint that names one of `chunks`.

        Both, where the newest commit names what was restored: if that is found corrupt, so is this.
        """
        named = list(chunks)
        known = ((self._committed, self._committed_as), (self._restored, self._restored_from))
        return frozenset(
            sha256
            for chunks, sha256 in known
            if any(chunks.get(chunk.blake3) == chunk for chunk in named)
        )


def store_chunks(
    store: ObjectStore,
    prefix: str,
    data: Sequence[Part],
    known: KnownChunks,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    writers: int = WRITERS,
) -> tuple[list[Chunk], int]:
    """Store what `known` does not hold, under `prefix`; return every chunk, and the bytes written.

    All are durable when this returns. meanwhile: what to do while the disk is busy. writers: chunks
    written at once. Raises StoreError when one could not be stored, and what `meanwhile` and a part
    that is read raise.
    """
    taken: set[str] = set()  # chunks of equal bytes are stored once
    lock = threading.Lock()

    def store_one(given: Part) -> tuple[Chunk, int]:
        part = given() if callable(given) else given
        digest = blake3(part).hexdigest()
        found = known.find(digest)
        if found is not None:
            return found, 0
        chunk = Chunk(key=f"{prefix}chunks/{digest}", blake3=digest, size_bytes=len(part))
        with lock:
            is_first = digest not in taken
            taken.add(digest)
        if is_first:
            store.put(chunk.key, part)
        return chunk, len(part) if is_first else 0

    stored = _in_threads(store_one, data, meanwhile, writers)
    return [chunk for chunk, _ in stored], sum(written for _, written in stored)


def _in_threads(
    work: Callable[[Part], tuple[Chunk, int]],
    data: Sequence[Part],
    meanwhile: Callable[[], None],
    writers: int,
) -> list[tuple[Chunk, int]]:
    """Return what `work` makes of each part, several at a time; the first error stops the rest.

    In daemon threads, which an executor's are not: a store that never answers must not keep a rank
    from ending.
    """
    done: dict[int, tuple[Chunk, int]] = {}
    errors: list[BaseException] = []
    waiting, lock = iter(enumerate(data)), threading.Lock()

    def run() -> None:
        while not errors:
            with lock:
                index, part = next(waiting, (-1, None))
            if part is None:
                return
            try:
                done[index] = work(part)
            except BaseException as error:  # noqa: BLE001 - a thread's edge: raised below
                errors.append(error)

    threads = [
        threading.Thread(target=run, name=f"chunk writer {number}", daemon=True)
        for number in range(min(writers, len(data)))
    ]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
    except BaseException as error:  # noqa: BLE001 - raised once nobody reads the memory any more
        errors.append(error)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [done[index] for index in range(len(data))]
