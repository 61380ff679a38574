"""Makes a save's manifest of what all of its ranks stored, and carries their results to rank 0.

Nothing here reads or writes the store: `storage_writer` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import object_prefix
from tracks_dagster.training.saves.manifest import (
    MEMBERS,
    Chunk,
    Manifest,
    Member,
    Piece,
    Shard,
    TensorEntry,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Everything besides tensors that one step's checkpoint says.

    values: of each member that is more than tensors; rng: of every rank, by rank; data: cursor, epoch
    and what the order of samples depends on; progress: best metric and the newest losses.
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

    @property
    def prefix(self) -> str:
        """Where the checkpoint's objects lie."""
        return object_prefix(self.run_id, self.attempt_id, self.launch_id, self.step)


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
    entries: dict[str, list[TensorEntry]] = {member: [] for member in MEMBERS}
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
    }
    members = {
        member: Member(
            step=moment.step,
            values=values.get(member),
            tensors=tuple(sorted(entries[member], key=lambda entry: entry.name)),
        )
        for member in MEMBERS
    }
    return Manifest(
        run_id=moment.run_id,
        attempt_id=moment.attempt_id,
        launch_id=moment.launch_id,
        step=moment.step,
        chunks=tuple(indices),
        members=members,
        metrics=moment.metrics,
        config_sha256=moment.config_sha256,
        environment_sha256=moment.environment_sha256,
    )


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
