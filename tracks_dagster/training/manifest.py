"""A checkpoint's manifest: what it lists, and how its bytes are read back and verified.

Nothing here imports torch, so that commands which only read can use it. A manifest lists five
members (model, optimizer, scheduler, rng, data), each with its step and the sha256 of what it lists;
one of another step makes the whole refused. Tensors are raw little-endian bytes; small ones share a
chunk, large ones span several. Writing is `checkpoint_files`'s work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from blake3 import blake3

from tracks_dagster.core.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.core.errors import CheckpointCorrupt, CheckpointMismatch
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.core.records import Json, canonical_json, sha256_hex

FORMAT = 1
CHUNK_BYTES_MAX = 8 * 1024 * 1024
MEMBERS = ("model", "optimizer", "scheduler", "rng", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One stored object of at most 8 MiB; `blake3` is of its bytes."""

    key: str
    blake3: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of a tensor in one chunk: `chunk_index` counts in the manifest's `chunks`."""

    chunk_index: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor. dtype: torch's name without "torch.", as in "float32"; pieces: in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of the five kinds of state, as of `step`.

    tensors: what is bulky; values: the rest, as JSON (`state_tree` says how it nests).
    """

    step: int
    values: Json = None
    tensors: tuple[TensorEntry, ...] = ()

    @property
    def sha256(self) -> str:
        """Digest of everything this member lists; through the chunks' hashes, of its bytes."""
        return sha256_hex(canonical_json(asdict(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that one checkpoint consists of.

    metrics: as reported at `step`; config_sha256: of the attempt's config as canonical JSON.
    """

    run_id: str
    attempt_id: int
    launch_id: str
    step: int
    chunks: tuple[Chunk, ...]
    members: Mapping[str, Member]
    metrics: Mapping[str, Json]
    config_sha256: str
    environment_sha256: str
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """Return the canonical JSON that is stored; its sha256 names the manifest."""
        stored = asdict(self)
        for name, member in self.members.items():
            stored["members"][name]["sha256"] = member.sha256
        return canonical_json(stored)


def parse_manifest(data: bytes, *, key: str) -> Manifest:
    """Return the manifest that `data` stores.

    Raises CheckpointCorrupt when it does not parse, lacks a member, or mixes members of two steps;
    CheckpointMismatch when another format version wrote it: its bytes are right, so nobody may
    quarantine it.
    """
    try:
        stored = json.loads(data)
        if stored["format"] != FORMAT:
            raise CheckpointMismatch(
                f"{key} has format {stored['format']}; this version reads {FORMAT}. Resume with the "
                "version that wrote it, or a newer one."
            )
        members = {name: _member(stored["members"][name]) for name in MEMBERS}
        manifest = Manifest(
            **{**stored, "members": members, "chunks": tuple(Chunk(**c) for c in stored["chunks"])}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{key} is no manifest of a checkpoint: {error!r}.") from error
    _check_members(manifest, stored["members"], key)
    return manifest


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
    told = (manifest.run_id, manifest.attempt_id, manifest.step)
    if told != (ref.run_id, ref.attempt_id, ref.step):
        raise CheckpointCorrupt(
            f"{key} is of run {told[0]}, attempt {told[1]}, step {told[2]}; the commit says "
            f"run {ref.run_id}, attempt {ref.attempt_id}, step {ref.step}."
        )
    return manifest


def read_tensors(
    store: ObjectStore, manifest: Manifest, member: str
) -> Iterator[tuple[TensorEntry, bytes]]:
    """Yield each tensor of a member with its bytes, every chunk verified as it is read.

    Holds one chunk and one tensor in memory. Raises CheckpointCorrupt naming the object, the hash
    expected and the hash found.
    """
    chunk_index, chunk_data = -1, b""
    for entry in manifest.members[member].tensors:
        parts = []
        for piece in entry.pieces:
            if piece.chunk_index != chunk_index:
                chunk_index = piece.chunk_index
                chunk_data = _read_chunk(store, manifest.chunks[chunk_index])
            parts.append(chunk_data[piece.offset_bytes : piece.offset_bytes + piece.size_bytes])
        yield entry, b"".join(parts)


def verify_checkpoint(store: ObjectStore, ref: CheckpointRef) -> int:
    """Read every byte of a checkpoint and return how many; raises CheckpointCorrupt."""
    manifest = read_manifest(store, ref)
    return sum(len(_read_chunk(store, chunk)) for chunk in manifest.chunks)


def weights_sha256(store: ObjectStore, ref: CheckpointRef) -> str:
    """Return the digest of all model tensors of a checkpoint, verified as they are read.

    sha256 over the tensors in name order, each as canonical JSON of [name, dtype, shape], a newline
    and its raw bytes. It does not depend on ranks, chunks, attempt or store, so two runs compare.
    Raises CheckpointCorrupt.
    """
    manifest = read_manifest(store, ref)
    digest = hashlib.sha256()
    for entry, data in read_tensors(store, manifest, "model"):  # they stand in name order
        digest.update(canonical_json([entry.name, entry.dtype, list(entry.shape)]) + b"\n")
        digest.update(data)
    return digest.hexdigest()


def _read_chunk(store: ObjectStore, chunk: Chunk) -> bytes:
    data = store.get(chunk.key)
    if data is None:
        raise CheckpointCorrupt(f"{chunk.key} is missing; expected blake3 {chunk.blake3}.")
    found = blake3(data).hexdigest()
    if found != chunk.blake3:
        raise CheckpointCorrupt(f"{chunk.key} has blake3 {found}; expected {chunk.blake3}.")
    return data


def _member(stored: Json) -> Member:
    tensors = tuple(
        TensorEntry(
            name=tensor["name"],
            dtype=tensor["dtype"],
            shape=tuple(tensor["shape"]),
            pieces=tuple(Piece(**piece) for piece in tensor["pieces"]),
        )
        for tensor in stored["tensors"]
    )
    return Member(step=stored["step"], values=stored["values"], tensors=tensors)


def _check_members(manifest: Manifest, stored: Mapping[str, Json], key: str) -> None:
    for name, member in manifest.members.items():
        if member.step != manifest.step:
            raise CheckpointCorrupt(
                f"{key} mixes steps: {name} is of step {member.step}, the checkpoint of step "
                f"{manifest.step}; it cannot be restored."
            )
        if member.sha256 != stored[name]["sha256"]:
            raise CheckpointCorrupt(
                f"{key}: {name} has sha256 {member.sha256}; expected {stored[name]['sha256']}."
            )
    names = [entry.name for entry in manifest.members["model"].tensors]
    if names != sorted(set(names)):
        raise CheckpointCorrupt(f"{key} does not list the model's tensors once each, by name.")
