"""Reads back what a checkpoint consists of, every byte verified against the hash that names it.

Nothing here imports torch, so that commands which only read can use it. What a manifest lists is
`manifest`'s concept; restoring into a model is `storage_reader`'s work.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from blake3 import blake3

from tracks_dagster.track.errors import CheckpointCorrupt
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.training.saves.manifest import (
    Chunk,
    Manifest,
    Shard,
    TensorEntry,
    parse_manifest,
)

CHUNKS_CACHED_MAX = 4  # while reading tensor by tensor: neighbours share a chunk


def read_manifest(store: ObjectStore, ref: CheckpointRef) -> Manifest:
    """Return the manifest of `ref`, verified.

    Raises CheckpointCorrupt when it is missing, its bytes do not have the sha256 that `ref` names,
    or it speaks of another run, attempt or step; CheckpointMismatch for another format version.
    """
    key = manifest_key(ref)
    data = store.get(key)
    if data is None:
        raise CheckpointCorrupt(f"{key} is missing; expected sha256 {ref.manifest_sha256}.")
    found = sha256_hex(data)
    if found != ref.manifest_sha256:
        raise CheckpointCorrupt(f"{key} has sha256 {found}; expected {ref.manifest_sha256}.")
    manifest = parse_manifest(data, key=key)
    named = (manifest.run_id, manifest.attempt_id, manifest.step)
    if named != (ref.run_id, ref.attempt_id, ref.step):
        raise CheckpointCorrupt(
            f"{key} is of run {named[0]}, attempt {named[1]}, step {named[2]}; the commit says "
            f"run {ref.run_id}, attempt {ref.attempt_id}, step {ref.step}."
        )
    return manifest


def read_tensors(
    store: ObjectStore, manifest: Manifest, member: str
) -> Iterator[tuple[TensorEntry, bytes]]:
    """Yield each tensor of a member with its bytes, every chunk verified as it is read.

    Holds four chunks and one tensor in memory. Raises CheckpointCorrupt naming the object, the hash
    expected and the hash found.
    """
    chunks = _ChunkCache(store, manifest)
    for entry in manifest.members[member].tensors:
        yield entry, _whole(entry, [chunks.read(shard) for shard in entry.shards])


def verify_checkpoint(store: ObjectStore, ref: CheckpointRef) -> int:
    """Read every byte of a checkpoint and return how many; raises CheckpointCorrupt."""
    manifest = read_manifest(store, ref)
    return sum(len(_read_chunk(store, chunk)) for chunk in dict.fromkeys(manifest.chunks))


def weights_sha256(store: ObjectStore, ref: CheckpointRef) -> str:
    """Return the digest of all model tensors of a checkpoint, verified as they are read.

    Raises CheckpointCorrupt.
    """
    return digest_weights(read_tensors(store, read_manifest(store, ref), "model"))


def digest_weights(tensors: Iterable[tuple[TensorEntry, bytes]]) -> str:
    """Return the digest of a model's tensors, given in name order as `read_tensors` yields them.

    sha256 over the tensors, each as canonical JSON of [name, dtype, shape], a newline and its raw
    bytes. It does not depend on ranks, chunks, attempt or store, so two runs compare.
    """
    digest = hashlib.sha256()
    for entry, data in tensors:
        digest.update(canonical_json([entry.name, entry.dtype, list(entry.shape)]) + b"\n")
        digest.update(data)
    return digest.hexdigest()


class _ChunkCache:
    """The chunks read last, verified."""

    def __init__(self, store: ObjectStore, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self._chunks: OrderedDict[int, bytes] = OrderedDict()

    def read(self, shard: Shard) -> bytes:
        """Return a shard's bytes."""
        return b"".join(
            self._chunk(piece.chunk_index)[piece.offset_bytes :][: piece.size_bytes]
            for piece in shard.pieces
        )

    def _chunk(self, index: int) -> memoryview:
        if index not in self._chunks:
            self._chunks[index] = _read_chunk(self._store, self._manifest.chunks[index])
            if len(self._chunks) > CHUNKS_CACHED_MAX:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(index)
        return memoryview(self._chunks[index])


def _whole(entry: TensorEntry, shards: list[bytes]) -> bytes:
    """Return a tensor's bytes, put together from its shards'."""
    if len(shards) == 1:
        return shards[0]
    item_bytes = sum(len(data) for data in shards) // max(1, math.prod(entry.shape))
    whole = np.empty((*entry.shape, item_bytes), dtype=np.uint8)
    for shard, data in zip(entry.shards, shards, strict=True):
        box = tuple(slice(o, o + n) for o, n in zip(shard.offsets, shard.shape, strict=True))
        whole[box] = np.frombuffer(data, dtype=np.uint8).reshape(*shard.shape, item_bytes)
    return whole.tobytes()


def _read_chunk(store: ObjectStore, chunk: Chunk) -> bytes:
    data = store.get(chunk.key)
    if data is None:
        raise CheckpointCorrupt(f"{chunk.key} is missing; expected blake3 {chunk.blake3}.")
    found = blake3(data).hexdigest()
    if found != chunk.blake3:
        raise CheckpointCorrupt(f"{chunk.key} has blake3 {found}; expected {chunk.blake3}.")
    return data


# --- checkpoint reader ----------------------------------------------------------------------------
#
# Committed checkpoints behind `ports.CheckpointReader`: for services, which know no manifest.


class StoredCheckpoints:
    """Implements `ports.CheckpointReader` over one store. Imports no torch."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def verify(self, ref: CheckpointRef) -> int:
        return verify_checkpoint(self._store, ref)

    def chunk_sizes(self, ref: CheckpointRef) -> Mapping[str, int]:
        return {chunk.key: chunk.size_bytes for chunk in read_manifest(self._store, ref).chunks}
