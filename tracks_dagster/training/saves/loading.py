"""From a committed checkpoint back into modules and optimizers, by DCP's load planner.

In two steps, because a gang must agree first: `fetch` reads and verifies all that this rank needs and
changes nothing; `load_into` puts it in place. What was saved by one number of ranks loads into
another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import LoadPlan

from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves import state_dict
from tracks_dagster.training.saves.manifest import Manifest
from tracks_dagster.training.saves.staging import Arena
from tracks_dagster.training.saves.state_dict import Tensors, Trained
from tracks_dagster.training.saves.storage_reader import CheckpointStorageReader
from tracks_dagster.training.saves.verifying import read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A checkpoint whose every needed byte is in host memory and was verified.

    tensors: what it will be put into, by flat name; the model's are its own.
    """

    ref: CheckpointRef
    manifest: Manifest
    tensors: Tensors
    reader: CheckpointStorageReader
    plan: LoadPlan
    planner: DefaultLoadPlanner

    @property
    def rng(self) -> Sequence[Json]:
        """The random state of every rank that saved, by rank."""
        ranks: Sequence[Json] = self.manifest.members["rng"].values
        return ranks

    @property
    def data(self) -> Mapping[str, Json]:
        """Cursor, epoch and what the order of samples depends on."""
        data: Mapping[str, Json] = self.manifest.members["data"].values
        return data

    @property
    def progress(self) -> Mapping[str, Json]:
        """Best metric and the newest losses."""
        progress: Mapping[str, Json] = self.manifest.members["progress"].values
        return progress


def fetch(store: ObjectStore, ref: CheckpointRef, trained: Trained, *, arena: Arena) -> Fetched:
    """Read what this rank needs of a checkpoint, verified; changes nothing.

    Raises CheckpointCorrupt naming the object, the hash expected and the hash found;
    CheckpointMismatch when it is of another model.
    """
    manifest = read_manifest(store, ref)
    return _fetch(store, ref, manifest, state_dict.targets(trained, manifest), arena)


def load_into(trained: Trained, fetched: Fetched) -> None:
    """Put a checkpoint into model, optimizer, scheduler and scaler.

    Raises CheckpointMismatch when it does not fit them.
    """
    fetched.reader.read_data(fetched.plan, fetched.planner)
    state_dict.put_back(trained, fetched.manifest, fetched.tensors)


def load_weights(model: nn.Module, store: ObjectStore, ref: CheckpointRef) -> None:
    """Put a checkpoint's weights into a whole model, verified; raises as `fetch` does."""
    manifest = read_manifest(store, ref)
    tensors = state_dict.model_targets(model, manifest)
    fetched = _fetch(store, ref, manifest, tensors, Arena(torch.device("cpu")))
    fetched.reader.read_data(fetched.plan, fetched.planner)
    state_dict.put_model_back(model, tensors)


def _fetch(
    store: ObjectStore, ref: CheckpointRef, manifest: Manifest, tensors: Tensors, arena: Arena
) -> Fetched:
    reader = CheckpointStorageReader(store, manifest, arena=arena)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(tensors, reader.read_metadata())
    plan = planner.finish_plan(planner.create_local_plan())
    reader.fetch(plan)
    return Fetched(
        ref=ref, manifest=manifest, tensors=tensors, reader=reader, plan=plan, planner=planner
    )
