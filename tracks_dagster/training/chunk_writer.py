"""Packs bytes into chunks and stores them: several at a time, and only what is not stored yet.

A chunk is named by the blake3 of its bytes. One that the restored checkpoint or an own commit already
names is named again instead of written; which checkpoints a save thereby leans on is remembered,
because a commit that leans on a quarantined one must not land.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from blake3 import blake3

from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.training.manifest import CHUNK_BYTES_MAX, Chunk, Piece

WRITERS = 4  # chunks written at once
PENDING_MAX = 8  # chunks held in memory until they are durable: 64 MiB


class KnownChunks:
    """Stored chunks that a save may name, by blake3, and the checkpoints that name each."""

    def __init__(self) -> None:
        self._chunks: dict[str, Chunk] = {}
        self._named_by: dict[str, set[str]] = {}

    def learn(self, manifest_sha256: str, chunks: Iterable[Chunk]) -> None:
        """Add the chunks of a checkpoint that was restored, or committed by this launch."""
        for chunk in chunks:
            self._chunks.setdefault(chunk.blake3, chunk)
            self._named_by.setdefault(chunk.key, set()).add(manifest_sha256)

    def forget(self) -> None:
        """Know nothing: the next save writes every chunk."""
        self._chunks.clear()
        self._named_by.clear()

    def find(self, digest: str) -> Chunk | None:
        """Return the stored chunk with that blake3, or None."""
        return self._chunks.get(digest)

    def sources(self, chunks: Iterable[Chunk]) -> frozenset[str]:
        """Return the manifest sha256 of every checkpoint that names one of `chunks`."""
        named = (self._named_by.get(chunk.key, set()) for chunk in chunks)
        return frozenset().union(*named)


class ChunkWriter:
    """Writes one save's chunks under `prefix`; leaving the `with` waits until all are durable."""

    def __init__(self, store: ObjectStore, prefix: str, known: KnownChunks) -> None:
        self.chunks: list[Chunk] = []
        self.total_bytes = 0
        self.written_bytes = 0
        self._store = store
        self._prefix = prefix
        self._known = known
        self._pack = bytearray()
        self._keys: set[str] = set()
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="chunk writer")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> ChunkWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Raise StoreError when a chunk could not be stored."""
        try:
            if error is None:
                self._close_pack()
                while self._pending:
                    self._pending.popleft().result()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def add(self, data: memoryview) -> tuple[Piece, ...]:
        """Store the bytes of one tensor and return where they lie.

        Small ones share a chunk with their neighbours; a large one begins and ends its own, so that
        it is found again when its neighbours change.
        """
        self.total_bytes += len(data)
        if not data:
            return ()
        if len(self._pack) + len(data) > CHUNK_BYTES_MAX:
            self._close_pack()
        if len(data) <= CHUNK_BYTES_MAX:
            piece = Piece(
                chunk_index=len(self.chunks), offset_bytes=len(self._pack), size_bytes=len(data)
            )
            self._pack += data
            return (piece,)
        pieces = []
        for first in range(0, len(data), CHUNK_BYTES_MAX):
            part = bytes(data[first : first + CHUNK_BYTES_MAX])
            index = len(self.chunks)
            pieces.append(Piece(chunk_index=index, offset_bytes=0, size_bytes=len(part)))
            self._emit(part)
        return tuple(pieces)

    def _close_pack(self) -> None:
        if self._pack:
            data, self._pack = bytes(self._pack), bytearray()
            self._emit(data)

    def _emit(self, data: bytes) -> None:
        """Append one chunk, and have it stored unless it is."""
        digest = blake3(data).hexdigest()
        known = self._known.find(digest)
        key = known.key if known else f"{self._prefix}chunks/{digest}"
        self.chunks.append(Chunk(key=key, blake3=digest, size_bytes=len(data)))
        if known or key in self._keys:
            return
        self._keys.add(key)
        self.written_bytes += len(data)
        if len(self._pending) >= PENDING_MAX:
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(self._store.put, key, data))
