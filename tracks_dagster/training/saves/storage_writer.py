"""DCP's StorageWriter over an object store: one rank's part of a save, and the manifest of them all.

`write_data` stages the rank's tensors, which is all that training waits for, and
stores them as chunks in a thread. `finish` makes the manifest; its bytes are durable when it returns,
and still nobody knows of it: only the commit record makes a checkpoint, and `committing` appends it.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from tracks_dagster.track.errors import NonFinite, TrainingError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key, object_prefix
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves.chunk_writer import KnownChunks, store_chunks
from tracks_dagster.training.saves.manifest import (
    FORMAT,
    FORMAT_NAMED,
    KINDS,
    MEMBERS,
    VALUES,
    Chunk,
    Manifest,
    Member,
    Piece,
    Shard,
    TensorEntry,
)
from tracks_dagster.training.saves.plain_state import Tensors
from tracks_dagster.training.saves.staging import Staged, Staging

FINITE_PIECE = 1024 * 1024  # elements that are looked through at once


@dataclass(frozen=True, slots=True)
class PlannedSave:
    """This rank's plan, the planner that resolves its items, and every rank's tensors and bytes."""

    plan: SavePlan
    planner: DefaultSavePlanner
    metadata: Metadata
    total_bytes: int


class SavePlanning:
    """Plans the saves of one launch: who writes what. parameters: flat names of the modules'.

    DCP's plan over all ranks is kept as long as the tensors stay alike. With DDP every rank holds
    everything and the plan shares the writing out; with FSDP2 each rank writes its own shards. A kept
    plan is checked against the tensors of every save: a stale one would store the first save's tensors
    for ever.

    Buffers may differ between ranks (BatchNorm sees other samples on each). Those of rank 0 are saved,
    as DDP gives them to all ranks before each forward.
    """

    def __init__(
        self,
        ranks: Ranks,
        parameters: frozenset[str] = frozenset(),
        modules: frozenset[str] = frozenset({"model"}),
    ) -> None:
        self._ranks = ranks
        self._parameters = parameters
        self._modules = modules
        self._structure: object = None
        self._plan: SavePlan | None = None
        self._metadata: Metadata | None = None
        self._total_bytes = 0

    def plan(self, tensors: Tensors) -> PlannedSave:
        """Return the plan for these tensors. Collective: all ranks plan again when one has to."""
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
        return PlannedSave(plan, planner, self._metadata, self._total_bytes)

    def _own(self, plan: SavePlan, tensors: Tensors) -> SavePlan:
        """Return a rank's plan without what rank 0 alone saves."""
        if self._ranks.is_first:
            return plan
        items = [item for item in plan.items if not self._is_plain_buffer(item.index.fqn, tensors)]
        return replace(plan, items=items)

    def _is_plain_buffer(self, name: str, tensors: Tensors) -> bool:
        return (
            name.partition(".")[0] in self._modules
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCheckpoint:
    """A checkpoint whose bytes are durable and that nobody knows of yet."""

    ref: CheckpointRef
    manifest: Manifest
    total_bytes: int


class CheckpointStorageWriter(StorageWriter):
    """Writes one save of one rank. `moment` may be completed until `finish` is called.

    parameters: flat names of what must be finite; a rank that finds NaN or infinity among its own
    raises NonFinite from the future of `write_data`, and nothing of the save is ever committed.
    """

    def __init__(
        self,
        store: ObjectStore,
        moment: Moment,
        *,
        staging: Staging,
        known: KnownChunks,
        parameters: frozenset[str] = frozenset(),
    ) -> None:
        self.moment = moment
        self.chunks: list[Chunk] = []
        self.written_bytes = 0
        self.written: WrittenCheckpoint | None = None
        self._object_store = store
        self._staging = staging
        self._known = known
        self._parameters = parameters

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a writer is of one save, and `moment` names it."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Do nothing: rank 0 alone is asked to `finish`."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return the plans as they are."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: a checkpoint is named by its commit, never by a path."""
        return False

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Stage the plan's tensors, then store them in a thread; `storage_data` says where they lie.

        What DCP's own save calls; one who has a thread of its own calls `stage` and `store`.
        """
        staged = self.stage(plan, planner)
        future: Future[list[WriteResult]] = Future()

        def store() -> None:
            try:
                future.set_result(self.store(staged))
            except Exception as error:  # noqa: BLE001 - a thread's edge: it goes to who waits
                future.set_exception(error)  # type: ignore[arg-type]

        threading.Thread(target=store, name="checkpoint writer", daemon=True).start()
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Store the manifest of all ranks' parts; `written` is the checkpoint then."""
        self.written = self.write_manifest(metadata, results)

    def write_manifest(
        self, metadata: Metadata, results: list[list[WriteResult]]
    ) -> WrittenCheckpoint:
        """Store the manifest of all ranks' parts, and return what can be committed."""
        manifest = make_manifest(self.moment, metadata, results)
        data = manifest.to_bytes()
        moment = self.moment
        ref = CheckpointRef(
            moment.run_id, moment.attempt_id, moment.step, moment.prefix, sha256_hex(data)
        )
        self._object_store.put(manifest_key(ref), data)
        total = sum(result.size_in_bytes for each in results for result in each)
        return WrittenCheckpoint(ref=ref, manifest=manifest, total_bytes=total)

    def stage(self, plan: SavePlan, planner: SavePlanner) -> Staged:
        """Copy the plan's tensors: they may change as soon as this returns."""
        if sys.byteorder != "little":
            raise TrainingError("Checkpoints are little-endian and this machine is not.")
        return self._staging.stage(plan, planner)

    def store(self, staged: Staged) -> list[WriteResult]:
        """Store what was staged; durable when this returns. Raises StoreError or NonFinite."""
        self.chunks, self.written_bytes = store_chunks(
            self._object_store,
            self.moment.prefix,
            staged.chunks,
            self._known,
            meanwhile=lambda: self._check_finite(staged),
        )
        return [
            WriteResult(
                index=item.index,
                size_in_bytes=slot.size_bytes,
                storage_data=tuple(
                    StoredPiece(self.chunks[index], part.offset_bytes, part.size_bytes)
                    for index, part in pieces
                ),
            )
            for item, slot, pieces in zip(
                staged.plan.items, staged.layout.slots, staged.layout.pieces, strict=True
            )
        ]

    def _check_finite(self, staged: Staged) -> None:
        """Raise NonFinite for parameters that no run should resume from.

        The loss of a step is of the weights before it, so a finite one proves nothing. Buffers may
        hold infinities on purpose (a mask does).
        """
        for item, tensor in zip(staged.plan.items, staged.tensors, strict=True):
            if item.index.fqn in self._parameters and not is_finite(tensor):
                raise NonFinite(
                    f"Step {self.moment.step} left NaN or infinity in {item.index.fqn}; it is "
                    "not saved."
                )


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether every element is finite, a piece at a time, so that it takes little memory."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    return all(_is_finite_piece(piece) for piece in torch.split(tensor.reshape(-1), FINITE_PIECE))


def _is_finite_piece(piece: torch.Tensor) -> bool:
    """Return whether a few elements are finite; one pass is enough when their sum is."""
    if math.isfinite(piece.sum(dtype=torch.float64).item()):
        return True
    return bool(torch.isfinite(piece.double()).all())  # a sum may overflow where no element does


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Everything besides tensors that one step's checkpoint says.

    values: of each member that is more than tensors; rng: of every rank, by rank; data: cursor, epoch
    and what the order of samples depends on; progress: best metric and the newest losses.
    kinds: of what was registered by names of the script's own; own: of each such state of which every
    rank has its own, the values by rank.
    """

    run_id: str
    attempt_id: int
    launch_id: str
    step: int
    values: Mapping[str, Json]
    rng: Sequence[Json]
    data: Mapping[str, Json]
    progress: Mapping[str, Json]
    metrics: Mapping[str, Json]
    config_sha256: str
    environment_sha256: str
    kinds: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Sequence[Json]] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        """Where the checkpoint's objects lie."""
        return object_prefix(AttemptRef(self.run_id, self.attempt_id), self.launch_id, self.step)

    def manifest(
        self, chunks: Iterable[Chunk], members: Mapping[str, Member], *, is_named: bool
    ) -> Manifest:
        """Return the manifest of this step. is_named: members have names that others gave."""
        return Manifest(
            run_id=self.run_id,
            attempt_id=self.attempt_id,
            launch_id=self.launch_id,
            step=self.step,
            chunks=tuple(chunks),
            members=members,
            metrics=self.metrics,
            config_sha256=self.config_sha256,
            environment_sha256=self.environment_sha256,
            format=FORMAT_NAMED if is_named else FORMAT,
        )


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Bytes of a shard in a stored chunk: what a WriteResult carries from rank to rank."""

    chunk: Chunk
    offset_bytes: int
    size_bytes: int


def make_manifest(
    moment: Moment, metadata: Metadata, results: Sequence[Sequence[WriteResult]]
) -> Manifest:
    """Return the manifest of what all ranks stored. Pure; the same parts give the same bytes."""
    stored: dict[MetadataIndex, tuple[StoredPiece, ...]] = {
        result.index: result.storage_data for each in results for result in each
    }
    indices: dict[Chunk, int] = {}
    kinds = {**dict.fromkeys(MEMBERS, VALUES), **KINDS, **moment.kinds}
    entries: dict[str, list[TensorEntry]] = {member: [] for member in kinds}
    for flat, tensor in metadata.state_dict_metadata.items():
        member, _, name = flat.partition(".")
        shards = []
        for number, box in enumerate(cast(Any, tensor).chunks):
            found = stored[MetadataIndex(flat, box.offsets, number)]
            shards.append(
                Shard(
                    offsets=tuple(box.offsets),
                    shape=tuple(box.sizes),
                    pieces=_pieces(found, indices),
                )
            )
        shards.sort(key=lambda shard: shard.offsets)
        dtype = str(cast(Any, tensor).properties.dtype).removeprefix("torch.")
        size = tuple(cast(Any, tensor).size)
        entries[member].append(
            TensorEntry(name=name, dtype=dtype, shape=size, shards=tuple(shards))
        )
    values = {
        **moment.values,
        "rng": list(moment.rng),
        "data": dict(moment.data),
        "progress": dict(moment.progress),
        **{member: list(each) for member, each in moment.own.items()},
    }
    members = {
        member: Member(
            step=moment.step,
            values=values.get(member),
            tensors=tuple(sorted(entries[member], key=lambda entry: entry.name)),
            kind=kind,
            ranks=len(moment.own[member]) if member in moment.own else None,
        )
        for member, kind in kinds.items()
    }
    return moment.manifest(indices, members, is_named=bool(moment.kinds))


def results_to_json(results: Sequence[WriteResult]) -> Json:
    """Return a rank's results as JSON, for rank 0."""
    chunks = list(dict.fromkeys(p.chunk for result in results for p in result.storage_data))
    places = {chunk: place for place, chunk in enumerate(chunks)}
    return {
        "chunks": [[chunk.key, chunk.blake3, chunk.size_bytes] for chunk in chunks],
        "results": [
            [
                result.index.fqn,
                list(result.index.offset or ()),
                result.index.index,
                result.size_in_bytes,
                [[places[p.chunk], p.offset_bytes, p.size_bytes] for p in result.storage_data],
            ]
            for result in results
        ],
    }


def results_from_json(stored: Json) -> list[WriteResult]:
    """Return the results that `results_to_json` wrote."""
    chunks = [Chunk(key=key, blake3=digest, size_bytes=n) for key, digest, n in stored["chunks"]]
    return [
        WriteResult(
            index=MetadataIndex(fqn, offset, index),
            size_in_bytes=size,
            storage_data=tuple(StoredPiece(chunks[i], at, n) for i, at, n in pieces),
        )
        for fqn, offset, index, size, pieces in stored["results"]
    ]


def _pieces(stored: Sequence[StoredPiece], indices: dict[Chunk, int]) -> tuple[Piece, ...]:
    return tuple(
        Piece(
            chunk_index=indices.setdefault(piece.chunk, len(indices)),
            offset_bytes=piece.offset_bytes,
            size_bytes=piece.size_bytes,
        )
        for piece in stored
    )
