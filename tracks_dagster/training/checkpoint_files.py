"""The bytes of one checkpoint: from modules and optimizers to chunks and a manifest, and back.

Durable bytes are not a checkpoint yet: only the commit record makes one, and `saving` appends it.
Nothing is pickled. Names and bytes do not depend on ranks or on the DDP wrapper, so a checkpoint of
one world size restores into another.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tracks_dagster.core.checkpoints import CheckpointRef, object_prefix
from tracks_dagster.core.errors import CheckpointMismatch, TrainingError
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.records import Json, sha256_hex
from tracks_dagster.training.chunk_writer import ChunkWriter, KnownChunks
from tracks_dagster.training.manifest import (
    Manifest,
    Member,
    TensorEntry,
    read_manifest,
    read_tensors,
)
from tracks_dagster.training.state_tree import Tensors, put_together, take_apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What is trained. optimizer and scheduler are of `model`, which DDP may wrap."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Everything besides tensors that one step's checkpoint says.

    rng: of every rank, by rank; data: cursor, epoch and what the order depends on.
    """

    run_id: str
    attempt_id: int
    launch_id: str
    step: int
    rng: Sequence[Json]
    data: Mapping[str, Json]
    metrics: Mapping[str, Json]
    config_sha256: str
    environment_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A checkpoint whose bytes are durable and that nobody knows of yet.

    sources: manifest sha256 of every other checkpoint whose chunks it names.
    """

    ref: CheckpointRef
    manifest: Manifest
    total_bytes: int
    written_bytes: int
    sources: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A checkpoint read into host memory with every hash verified."""

    ref: CheckpointRef
    manifest: Manifest
    model: Tensors
    optimizer: Any
    scheduler: Any

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


def write_checkpoint(
    store: ObjectStore, trained: Trained, moment: Moment, known: KnownChunks
) -> Written:
    """Store chunks, then the manifest; both are durable when this returns.

    Raises StoreError when the store fails, TrainingError for a state that JSON and tensors cannot say.
    """
    prefix = object_prefix(moment.run_id, moment.attempt_id, moment.launch_id, moment.step)
    step = moment.step
    optimizer, optimizer_tensors = take_apart(trained.optimizer.state_dict(), name="optimizer")
    schedule = trained.scheduler.state_dict() if trained.scheduler else None
    scheduler, scheduler_tensors = take_apart(schedule, name="scheduler")
    with ChunkWriter(store, prefix, known) as writer:
        members = {
            "model": _written(writer, step, None, model_tensors(trained.model)),
            "optimizer": _written(writer, step, optimizer, optimizer_tensors),
            "scheduler": _written(writer, step, scheduler, scheduler_tensors),
            "rng": Member(step=step, values=list(moment.rng)),
            "data": Member(step=step, values=dict(moment.data)),
        }
    manifest = Manifest(
        run_id=moment.run_id,
        attempt_id=moment.attempt_id,
        launch_id=moment.launch_id,
        step=step,
        chunks=tuple(writer.chunks),
        members=members,
        metrics=moment.metrics,
        config_sha256=moment.config_sha256,
        environment_sha256=moment.environment_sha256,
    )
    data = manifest.to_bytes()
    ref = CheckpointRef(moment.run_id, moment.attempt_id, step, prefix, sha256_hex(data))
    store.put(f"{prefix}manifest-{ref.manifest_sha256}.json", data)
    return Written(
        ref=ref,
        manifest=manifest,
        total_bytes=writer.total_bytes,
        written_bytes=writer.written_bytes,
        sources=known.sources(manifest.chunks),
    )


def read_checkpoint(store: ObjectStore, ref: CheckpointRef) -> Stored:
    """Read a whole checkpoint into host memory, verifying every hash; changes no model.

    Raises CheckpointCorrupt naming the object, the hash expected and the hash found.
    """
    manifest = read_manifest(store, ref)
    optimizer = manifest.members["optimizer"].values
    scheduler = manifest.members["scheduler"].values
    return Stored(
        ref=ref,
        manifest=manifest,
        model=_read_member(store, manifest, "model"),
        optimizer=put_together(optimizer, _read_member(store, manifest, "optimizer")),
        scheduler=put_together(scheduler, _read_member(store, manifest, "scheduler")),
    )


def load_into(trained: Trained, stored: Stored) -> None:
    """Put a checkpoint into the model, the optimizer and the scheduler.

    Raises CheckpointMismatch when it does not fit them.
    """
    load_model(trained.model, stored)
    try:
        trained.optimizer.load_state_dict(stored.optimizer)
    except (ValueError, KeyError) as error:
        raise CheckpointMismatch(
            f"The optimizer of step {stored.ref.step} does not fit this one: {error}."
        ) from error
    if (trained.scheduler is None) != (stored.scheduler is None):
        holder = "this trainer" if stored.scheduler is None else "the checkpoint"
        raise CheckpointMismatch(
            f"Only {holder} of step {stored.ref.step} has a learning-rate scheduler; register what "
            "was registered when it was saved."
        )
    if trained.scheduler is not None:
        trained.scheduler.load_state_dict(stored.scheduler)


def load_model(model: nn.Module, stored: Stored) -> None:
    """Put a checkpoint's weights into `model`; raises CheckpointMismatch naming what differs."""
    own = model_tensors(model)
    for name in sorted(own.keys() | stored.model.keys()):
        ours, theirs = _form(own.get(name)), _form(stored.model.get(name))
        if ours != theirs:
            raise CheckpointMismatch(
                f"Tensor {name} of step {stored.ref.step} does not fit the model: it is {theirs} "
                f"in the checkpoint and {ours} in the model. The config must build the model that "
                "was saved."
            )
    _unwrapped(model).load_state_dict(stored.model)


def model_tensors(model: nn.Module) -> Tensors:
    """Return parameters and buffers by name, in name order, without the DDP wrapper's prefix."""
    state = _unwrapped(model).state_dict()
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise TrainingError(
                f"Cannot save {name}: a module's extra state is a {type(value).__name__}; keep it "
                "in a buffer."
            )
    return {name: state[name] for name in sorted(state)}


def _unwrapped(model: nn.Module) -> nn.Module:
    if isinstance(model, DistributedDataParallel):
        module: nn.Module = model.module
        return module
    return model


def _written(writer: ChunkWriter, step: int, values: Json, tensors: Tensors) -> Member:
    entries = tuple(
        TensorEntry(
            name=name,
            dtype=_dtype(tensor),
            shape=tuple(tensor.shape),
            pieces=writer.add(_bytes_of(tensor)),
        )
        for name, tensor in tensors.items()
    )
    return Member(step=step, values=values, tensors=entries)


def _read_member(store: ObjectStore, manifest: Manifest, member: str) -> Tensors:
    return {
        entry.name: _tensor_of(entry, data) for entry, data in read_tensors(store, manifest, member)
    }


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the raw little-endian bytes, in row-major order."""
    if sys.byteorder != "little":
        raise TrainingError("Checkpoints are little-endian and this machine is not.")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _tensor_of(entry: TensorEntry, data: bytes) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    if not data:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(entry.shape)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _form(tensor: torch.Tensor | None) -> str:
    return "missing" if tensor is None else f"{_dtype(tensor)} {list(tensor.shape)}"
