"""Copies this rank's tensors into the arena: the one thing that training waits for.

Where each tensor goes is worked out once per plan and kept, with a view of the arena for each. What is
copied is looked up anew at every save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from tracks_dagster.track.errors import TrainingError
from tracks_dagster.training.saves.arena import Arena
from tracks_dagster.training.saves.layout import Layout, lay_out


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
