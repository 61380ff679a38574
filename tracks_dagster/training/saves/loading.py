"""From a committed checkpoint back into modules and optimizers, by DCP's load planner.

In two steps, because a gang must agree first: `fetch` reads and verifies all that this rank needs and
changes nothing; `load_into` puts it in place. What was saved by one number of ranks loads into
another.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves import state_dict
from tracks_dagster.training.saves.manifest import (
    TENSORS,
    Chunk,
    Manifest,
    Piece,
    Shard,
    TensorEntry,
    check_kind,
    read_chunk_into,
    read_manifest,
)
from tracks_dagster.training.saves.plain_state import Tensors
from tracks_dagster.training.saves.staging import Arena
from tracks_dagster.training.saves.trained import Trained

READERS = 8  # chunks read and hashed at once


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


def fetch(
    store: ObjectStore,
    ref: CheckpointRef,
    trained: Trained,
    *,
    arena: Arena,
    rank: int = 0,
    world_size: int = 1,
) -> Fetched:
    """Read what this rank needs of a checkpoint, verified; changes nothing.

    Raises CheckpointCorrupt naming the object, the hash expected and the hash found;
    CheckpointMismatch when it is of another model.
    """
    manifest = read_manifest(store, ref)
    check_kind(manifest, TENSORS)
    tensors = state_dict.targets(trained, manifest, rank=rank, world_size=world_size)
    return _fetch(store, ref, manifest, tensors, arena)


def load_own_into(trained: Trained, fetched: Fetched, *, rank: int = 0) -> None:
    """Put a checkpoint into the states of the script's own names, and into nothing else.

    Raises CheckpointMismatch when it does not fit them.
    """
    own = {*trained.states, *trained.per_rank}
    items = [i for i in fetched.plan.items if _member(i) in own]
    if items:
        fetched.reader.read_data(replace(fetched.plan, items=items), fetched.planner)
    state_dict.put_own_back(trained, fetched.manifest, fetched.tensors, rank=rank)


def load_into(trained: Trained, fetched: Fetched) -> None:
    """Put a checkpoint into modules, optimizers, scheduler and scaler.

    Raises CheckpointMismatch when it does not fit them.
    """
    own = {*trained.states, *trained.per_rank}
    items = [i for i in fetched.plan.items if _member(i) not in own]  # whose tensors moved on
    fetched.reader.read_data(replace(fetched.plan, items=items), fetched.planner)
    state_dict.put_back(trained, fetched.manifest, fetched.tensors)


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


class CheckpointStorageReader(StorageReader):
    """Reads one verified manifest's tensors. The arena holds what was fetched, until `read_data`.

    Nothing is put into a model before every chunk that this rank needs was read and has the hash that
    the manifest names: a corrupt checkpoint leaves the model as it was, for the one before.
    """

    def __init__(self, store: ObjectStore, manifest: Manifest, *, arena: Arena) -> None:
        self._store = store
        self._manifest = manifest
        self._arena = arena
        self._places: dict[int, int] = {}  # of fetched chunks, by index: offset in the arena
        self._entries: dict[str, TensorEntry] = {
            f"{name}.{entry.name}": entry
            for name, member in manifest.members.items()
            for entry in member.tensors
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Forget what was fetched."""
        self._places = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return every tensor's shape, dtype and shards, as DCP plans with them."""
        return Metadata({name: _metadata(entry) for name, entry in self._entries.items()})

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: every rank reads by itself."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: a checkpoint is named by its commit, never by a path."""
        return False

    def fetch(self, plan: LoadPlan) -> int:
        """Read every chunk that the plan needs, verified; return how many bytes were read.

        Raises CheckpointCorrupt naming the object, the hash expected and the hash found.
        """
        needed = sorted({p.chunk_index for item in plan.items for p in self._pieces(item)[1]})
        chunks = [self._manifest.chunks[index] for index in needed]
        total = sum(chunk.size_bytes for chunk in chunks)
        memory = self._arena.view(total)
        parts, offset = [], 0
        for index, chunk in zip(needed, chunks, strict=True):
            self._places[index] = offset
            parts.append(memory[offset : offset + chunk.size_bytes])
            offset += chunk.size_bytes
        with ThreadPoolExecutor(READERS, thread_name_prefix="chunk reader") as pool:
            for _ in pool.map(self._read, chunks, parts):
                pass
        return total

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Put the plan's tensors in place, fetching them first if that was not done."""
        if not self._places:
            self.fetch(plan)
        places = [planner.resolve_tensor(item).detach() for item in plan.items]
        # Several at a time: most places are new memory, whose first touch costs more than the copy.
        # By size, so that the shares are alike; a task for each tensor would cost more than its copy.
        work = sorted(zip(plan.items, places, strict=True), key=lambda each: each[1].numel())
        with ThreadPoolExecutor(READERS, thread_name_prefix="chunk reader") as pool:
            for _ in pool.map(self._put, [work[first::READERS] for first in range(READERS)]):
                pass
        for item, place in zip(plan.items, places, strict=True):
            planner.commit_tensor(item, place)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _put(self, share: Sequence[tuple[ReadItem, torch.Tensor]]) -> None:
        for item, place in share:
            place.copy_(self._box(item))

    def _read(self, chunk: Chunk, part: memoryview) -> None:
        read_chunk_into(self._store, chunk, part)

    def _pieces(self, item: ReadItem) -> tuple[int, list[Piece]]:
        """Return the pieces that hold the item's box, and which byte of the shard they begin at."""
        entry, shard = self._shard(item)
        first, last = _span(item, shard, _dtype(entry).itemsize)
        found: list[Piece] = []
        at = begin = 0
        for piece in shard.pieces:
            if at < last and at + piece.size_bytes > first:
                begin = begin if found else at
                found.append(piece)
            at += piece.size_bytes
        return begin, found

    def _box(self, item: ReadItem) -> torch.Tensor:
        """Return the item's box of a stored shard, as it lies in the arena."""
        entry, shard = self._shard(item)
        dtype = _dtype(entry)
        begin, pieces = self._pieces(item)
        if not pieces:
            return torch.empty(tuple(item.lengths), dtype=dtype)
        first, last = _span(item, shard, dtype.itemsize)
        flat = self._joined(pieces)[first - begin : last - begin].view(dtype)
        return flat.as_strided(tuple(item.lengths), _strides(shard.shape))

    def _joined(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Return the bytes of pieces that follow one another in a shard.

        A view of the arena where they lie side by side, as nearly always: chunks of equal bytes are
        stored and fetched once.
        """
        runs: list[list[int]] = []
        for piece in pieces:
            start = self._places[piece.chunk_index] + piece.offset_bytes
            if runs and runs[-1][1] == start:
                runs[-1][1] += piece.size_bytes
            else:
                runs.append([start, start + piece.size_bytes])
        memory = self._arena.take(max(end for _, end in runs))
        parts = [memory[start:end] for start, end in runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _shard(self, item: ReadItem) -> tuple[TensorEntry, Shard]:
        entry = self._entries[item.storage_index.fqn]
        offsets = tuple(item.storage_index.offset or ())
        return entry, next(shard for shard in entry.shards if shard.offsets == offsets)


def _member(item: ReadItem) -> str:
    return item.storage_index.fqn.partition(".")[0]


def _metadata(entry: TensorEntry) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=_dtype(entry)),
        size=torch.Size(entry.shape),
        chunks=[
            ChunkStorageMetadata(offsets=torch.Size(s.offsets), sizes=torch.Size(s.shape))
            for s in entry.shards
        ],
    )


def _span(item: ReadItem, shard: Shard, item_bytes: int) -> tuple[int, int]:
    """Return the first byte of the shard that the item's box touches, and the one after the last."""
    if math.prod(item.lengths) == 0:
        return 0, 0
    first = last = 0
    for offset, length, size in zip(item.storage_offsets, item.lengths, shard.shape, strict=True):
        first = first * size + offset
        last = last * size + offset + length - 1
    return first * item_bytes, (last + 1) * item_bytes


def _strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a row-major tensor, in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides[: len(shape)]


def _dtype(entry: TensorEntry) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return dtype
