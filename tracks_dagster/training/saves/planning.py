"""Who writes what: DCP's plan of a save over all ranks, kept as long as the tensors stay alike.

With DDP every rank holds everything and the plan shares the writing out; with FSDP2 each rank writes
its own shards. A kept plan is checked against the tensors of every save: a stale one would store the
first save's tensors for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves.state_tree import Tensors


@dataclass(frozen=True, slots=True)
class Planned:
    """This rank's plan, the planner that resolves its items, and every rank's tensors and bytes."""

    plan: SavePlan
    planner: DefaultSavePlanner
    metadata: Metadata
    total_bytes: int


class SavePlanning:
    """Plans the saves of one launch. parameters: flat names of the model's.

    Buffers may differ between ranks (BatchNorm sees other samples on each). Those of rank 0 are saved,
    as DDP gives them to all ranks before each forward.
    """

    def __init__(self, ranks: Ranks, parameters: frozenset[str] = frozenset()) -> None:
        self._ranks = ranks
        self._parameters = parameters
        self._structure: object = None
        self._plan: SavePlan | None = None
        self._metadata: Metadata | None = None
        self._total_bytes = 0

    def plan(self, tensors: Tensors) -> Planned:
        """Return the plan for these tensors. Collective: all ranks plan anew when one has to."""
        structure = _structure(tensors)
        (changed,) = self._ranks.sum([float(structure != self._structure)])
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(tensors, is_coordinator=self._ranks.is_first)
        if changed or self._plan is None or self._metadata is None:
            # Every rank makes the same global plan of the same local ones.
            plans = self._ranks.gather_objects(self._own(planner.create_local_plan(), tensors))
            plans, self._metadata = planner.create_global_plan(plans)
            self._plan, self._structure = plans[self._ranks.rank], structure
            self._total_bytes = _total_bytes(self._metadata)
        plan = planner.finish_plan(self._plan)
        return Planned(plan, planner, self._metadata, self._total_bytes)

    def _own(self, plan: SavePlan, tensors: Tensors) -> SavePlan:
        """Return a rank's plan without what rank 0 alone saves."""
        if self._ranks.is_first:
            return plan
        items = [item for item in plan.items if not self._is_plain_buffer(item.index.fqn, tensors)]
        return replace(plan, items=items)

    def _is_plain_buffer(self, name: str, tensors: Tensors) -> bool:
        return (
            name.startswith("model.")
            and name not in self._parameters
            and not isinstance(tensors[name], DTensor)
        )


def _total_bytes(metadata: Metadata) -> int:
    return sum(
        math.prod(each.size) * each.properties.dtype.itemsize
        for each in metadata.state_dict_metadata.values()
        if isinstance(each, TensorStorageMetadata)
    )


def _structure(tensors: Tensors) -> object:
    return [
        (name, tensor.dtype, tensor.shape, _sharding(tensor)) for name, tensor in tensors.items()
    ]


def _sharding(tensor: torch.Tensor) -> object:
    return (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
