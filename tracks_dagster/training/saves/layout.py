"""Where the tensors or files of one rank lie behind one another, and how that is cut. Pure.

Chunks are what is stored, hashed and found again, so that unchanged ones are not written twice. Small
tensors share a chunk with their neighbours; a larger one begins and ends its own, so that it is
found again when its neighbours change. Model and optimizer never share one: a frozen layer's weights
stay while optimizer states move. The same sizes give the same layout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracks_dagster.training.saves.manifest import CHUNK_BYTES_MAX

SHARED_BYTES_MAX = CHUNK_BYTES_MAX // 2  # a tensor up to this size shares a chunk
ALIGNED_BYTES = 64  # every tensor begins at a multiple: any dtype can be viewed there


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of the staging memory."""

    offset_bytes: int
    size_bytes: int

    @property
    def end_bytes(self) -> int:
        """The first byte after it."""
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """slots: each tensor's extent, in the order given; chunks: what is stored, without gaps;
    pieces: of each slot, (chunk index, extent within that chunk) of its bytes, in order.
    """

    slots: tuple[Extent, ...]
    chunks: tuple[Extent, ...]
    pieces: tuple[tuple[tuple[int, Extent], ...], ...]

    @property
    def total_bytes(self) -> int:
        """How much staging memory it takes."""
        return self.chunks[-1].end_bytes if self.chunks else 0


def lay_out(tensors: Sequence[tuple[str, int]]) -> Layout:
    """Return where tensors of these (group, size in bytes) lie; groups never share a chunk."""
    slots: list[Extent] = []
    chunks: list[Extent] = []
    start = end = 0  # of the chunk that small tensors go to
    shared_by = ""
    for group, size in tensors:
        if size > SHARED_BYTES_MAX or group != shared_by or end - start + size > CHUNK_BYTES_MAX:
            _close(chunks, start, end)
            start = end
        shared_by = group
        slots.append(Extent(end, size))
        if size > SHARED_BYTES_MAX:
            chunks.extend(_cut(end, _aligned(size)))
            start = end = end + _aligned(size)
        else:
            end += _aligned(size)
    _close(chunks, start, end)
    starts = [chunk.offset_bytes for chunk in chunks]
    pieces = tuple(
        tuple(_pieces(slot, chunks, starts)) if slot.size_bytes else () for slot in slots
    )
    return Layout(tuple(slots), tuple(chunks), pieces)


def _pieces(
    slot: Extent, chunks: Sequence[Extent], starts: Sequence[int]
) -> Iterator[tuple[int, Extent]]:
    """Yield where a slot's bytes lie in the chunks; `starts` are their offsets, in order."""
    for index in range(bisect_right(starts, slot.offset_bytes) - 1, len(chunks)):
        chunk = chunks[index]
        if chunk.offset_bytes >= slot.end_bytes:
            return
        first = max(slot.offset_bytes, chunk.offset_bytes)
        yield (
            index,
            Extent(first - chunk.offset_bytes, min(slot.end_bytes, chunk.end_bytes) - first),
        )


def _close(chunks: list[Extent], start: int, end: int) -> None:
    if end > start:
        chunks.append(Extent(start, end - start))


def _cut(offset: int, size: int) -> Iterator[Extent]:
    """Yield chunks of about the same size, none above the largest."""
    count = -(-size // CHUNK_BYTES_MAX)
    step = _aligned(-(-size // count))
    for first in range(0, size, step):
        yield Extent(offset + first, min(step, size - first))


def _aligned(size: int) -> int:
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES
