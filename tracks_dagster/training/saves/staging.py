"""Copies this rank's tensors into the arena: the one thing that training waits for.

Where each tensor goes is worked out once per plan and kept, with a view of the arena for each. What is
copied is looked up anew at every save.
"""

from __future__ import annotations

import math
import mmap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.training.saves.manifest import CHUNK_BYTES_MAX

# --- layout ---------------------------------------------------------------------------------------
#
# Where the tensors of one rank lie in its staging memory, and how that is cut into chunks. Pure.
#
# Chunks are what is stored, hashed and found again, so that unchanged ones are not written twice. Small
# tensors share a chunk with their neighbours; a larger one begins and ends its own, so that it is
# found again when its neighbours change. Model and optimizer never share one: a frozen layer's weights
# stay while optimizer states move. The same tensors give the same layout.

SHARED_BYTES_MAX = CHUNK_BYTES_MAX // 2  # a tensor up to this size shares a chunk
ALIGNED_BYTES = 64  # every tensor begins at a multiple: any dtype can be viewed there
GROW_BYTES = 2 * 1024 * 1024  # sizes are rounded up to whole huge pages


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


# --- arena ----------------------------------------------------------------------------------------
#
# One block of host memory that saves are staged in and restores are read into, again and again.
#
# Reused because a first touch costs five times a copy (measured: 50 ms against 8 ms for 100 MB). On a
# machine with GPUs it is pinned, so that the copy runs at the bus's speed. Elsewhere it is anonymous
# memory with huge pages asked for; a thread of this process writes from it, so no other needs to
# see it.


class Arena:
    """Grows to the largest size asked for; what was in it before is lost then."""

    def __init__(self, device: torch.device) -> None:
        """Stage for tensors of `device`."""
        self._is_pinned = device.type == "cuda"
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, size_bytes: int) -> torch.Tensor:
        """Return the first `size_bytes` of the block. (size_bytes,) uint8, on the host."""
        if len(self._bytes) < size_bytes:
            size = -(-size_bytes // GROW_BYTES) * GROW_BYTES
            self._bytes = torch.empty(0, dtype=torch.uint8)  # let the old block go first
            self._bytes = self._allocate(size)
        return self._bytes[:size_bytes]

    def fit(self, size_bytes: int) -> torch.Tensor:
        """Do the same, and let go of a block of more than twice that size.

        A restore reads all that a rank needs; where ranks share the writing out, a save is smaller.
        """
        if len(self._bytes) > 2 * max(size_bytes, GROW_BYTES):
            self._bytes = torch.empty(0, dtype=torch.uint8)
        return self.take(size_bytes)

    @property
    def address(self) -> int:
        """Where the block lies; another value after it grew."""
        return self._bytes.data_ptr()

    def settle(self, tensors: Sequence[torch.Tensor]) -> None:
        """Wait for the copies of these, from every GPU that they lie on."""
        if self._is_pinned:
            for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
                torch.cuda.current_stream(device).synchronize()

    def view(self, size_bytes: int) -> memoryview:
        """Return the same bytes for those who read and write files."""
        view: memoryview = self.take(size_bytes).numpy().data
        return view

    def _allocate(self, size_bytes: int) -> torch.Tensor:
        if self._is_pinned:
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux; fewer faults, and faster copies
            block.madvise(mmap.MADV_HUGEPAGE)
        if hasattr(mmap, "MADV_DONTFORK"):  # else the first save after a loader forks copies it all
            block.madvise(mmap.MADV_DONTFORK)
        return torch.frombuffer(block, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Staged:
    """What a plan's tensors were when they were copied. tensors: of each item, views of the arena;
    chunks: their bytes as they are stored; both hold until the next `stage`.
    """

    plan: SavePlan
    layout: Layout
    tensors: tuple[torch.Tensor, ...]
    chunks: tuple[memoryview, ...]


class Staging:
    """Stages the saves of one rank, one at a time, in one arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._staged: Staged | None = None
        self._address = 0

    def stage(self, plan: SavePlan, planner: SavePlanner) -> Staged:
        """Copy what the plan names. The tensors may change as soon as this returns."""
        staged = self._staged
        if staged is None or staged.plan is not plan or self._address != self._arena.address:
            staged = self._staged = self._prepare(plan)
            self._address = self._arena.address
        live = [cast(torch.Tensor, planner.resolve_data(item)) for item in plan.items]
        if live:  # a rank may hold nothing, and the copy refuses an empty list
            with torch.no_grad():
                torch._foreach_copy_(staged.tensors, live, non_blocking=True)
        self._arena.settle(live)
        return staged

    def _prepare(self, plan: SavePlan) -> Staged:
        layout = lay_out([(item.index.fqn.partition(".")[0], _size(item)) for item in plan.items])
        memory = self._arena.fit(layout.total_bytes)
        memory.zero_()  # the gaps between tensors: equal tensors give equal chunks
        tensors = []
        for item, slot in zip(plan.items, layout.slots, strict=True):
            dtype, shape = _form(item)
            place = memory[slot.offset_bytes : slot.end_bytes].view(dtype)
            tensors.append(place.view(shape))
        view = self._arena.view(layout.total_bytes)
        chunks = tuple(view[chunk.offset_bytes : chunk.end_bytes] for chunk in layout.chunks)
        return Staged(plan, layout, tuple(tensors), chunks)


def _form(item: WriteItem) -> tuple[torch.dtype, torch.Size]:
    """Return dtype and shape of this rank's box of a tensor."""
    if item.tensor_data is None:
        raise TrainingError(f"Cannot save {item.index.fqn}: only tensors go into chunks.")
    return item.tensor_data.properties.dtype, item.tensor_data.chunk.sizes


def _size(item: WriteItem) -> int:
    dtype, shape = _form(item)
    return math.prod(shape) * dtype.itemsize
