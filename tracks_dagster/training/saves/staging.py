"""Copies this rank's tensors into the arena: the one thing that training waits for.

Where each tensor goes is worked out once per plan and kept, with a view of the arena for each. What is
copied is looked up again at every save.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.training.saves.layout import Layout, lay_out

GROW_BYTES = 2 * 1024 * 1024  # sizes are rounded up to this
TOUCHERS = 8  # threads that touch memory for the first time
REGISTER_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every GPU of the process

# --- arena ----------------------------------------------------------------------------------------
#
# One block of host memory that saves are staged in and restores are read into, again and again.
#
# Reused because a first touch costs five times a copy (measured: 50 ms against 8 ms for 100 MB). It is
# anonymous memory; a thread of this process writes from it, so no other needs to see it. No huge pages
# are asked for: copies are not faster with them, and in a virtual machine, which has to find memory for
# each first, a restore's first touch took six times as long (370 ms against 60 for 126 MB).
#
# On a machine with GPUs it is pinned, so that the copy runs at the bus's speed: 55 GB/s against 12 on
# an H200. It is touched by several threads and then registered, which takes 0.4 s for 4 GB there;
# CUDA's own allocation, on one thread, takes 1.7 to 3.6 s.


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
        block = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_DONTFORK"):  # else the first save after a loader forks copies it all
            block.madvise(mmap.MADV_DONTFORK)
        memory = torch.frombuffer(block, dtype=torch.uint8)
        if self._is_pinned and not _pin(memory):
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        return memory


def _pin(memory: torch.Tensor) -> bool:
    """Have CUDA know the memory as pinned until the tensor goes; return whether it does."""
    with ThreadPoolExecutor(TOUCHERS, thread_name_prefix="toucher") as pool:
        for _ in pool.map(torch.Tensor.zero_, memory.chunk(TOUCHERS)):
            pass
    cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(cuda.cudaHostRegister(memory.data_ptr(), len(memory), REGISTER_PORTABLE)) != 0:
        with suppress(RuntimeError):  # CUDA gives its last error to the one who asks next
            torch.zeros(1, device="cuda")
        return False
    # Before its pages go. Not at the interpreter's end: the driver may be gone by then.
    weakref.finalize(memory, cuda.cudaHostUnregister, memory.data_ptr()).atexit = False
    return True


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
