"""A checkpoint's manifest: what it lists, and how that is stored as JSON.

Nothing here imports torch, so that commands which only read can use it. A manifest lists seven
members (model, optimizer, scheduler, scaler, rng, data, progress), each with its step and the sha256
of what it lists; one of another step makes the whole refused. A tensor is one or more shards, each
written by one rank: raw little-endian bytes in row-major order. Small ones share a chunk, large ones
span several. `manifest_making` makes one of what the ranks stored; `verifying` reads it, and the
bytes that it lists, back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch
from tracks_dagster.track.records import Json, canonical_json, sha256_hex

FORMAT = 2
CHUNK_BYTES_MAX = 8 * 1024 * 1024
MEMBERS = ("model", "optimizer", "scheduler", "scaler", "rng", "data", "progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One stored object of at most 8 MiB; `blake3` is of its bytes."""

    key: str
    blake3: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of a shard in one chunk: `chunk_index` counts in the manifest's `chunks`."""

    chunk_index: int
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The box of a tensor that begins at `offsets` and has `shape`; pieces: its bytes, in order."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor, whole. dtype: torch's name without "torch.", as in "float32"."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of the seven kinds of state, as of `step`.

    tensors: what is bulky; values: the rest, as JSON (`state_dict` says how it nests).
    """

    step: int
    values: Json = None
    tensors: tuple[TensorEntry, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """Return what is stored of it, with the digest of everything that it lists; through the
        chunks' hashes, of its bytes.
        """
        stored: dict[str, Json] = {
            "step": self.step,
            "values": self.values,
            "tensors": [_entry_json(entry) for entry in self.tensors],
        }
        return {**stored, "sha256": _digest(stored)}


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
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        stored["chunks"] = [asdict(chunk) for chunk in self.chunks]
        stored["members"] = {name: member.to_json() for name, member in self.members.items()}
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
                "version of tracks-dagster that wrote it, or a newer one."
            )
        members = {name: _member(stored["members"][name]) for name in MEMBERS}
        manifest = Manifest(
            **{**stored, "members": members, "chunks": tuple(Chunk(**c) for c in stored["chunks"])}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{key} is no manifest of a checkpoint: {error!r}.") from error
    _check_members(manifest, stored["members"], key)
    return manifest


def _digest(stored: Mapping[str, Json]) -> str:
    return sha256_hex(canonical_json(stored))


def _entry_json(entry: TensorEntry) -> dict[str, Json]:
    """Return an entry as JSON; by hand: `asdict` made reading a manifest three times as slow."""
    shards = [
        {
            "offsets": shard.offsets,
            "shape": shard.shape,
            "pieces": [
                {
                    "chunk_index": piece.chunk_index,
                    "offset_bytes": piece.offset_bytes,
                    "size_bytes": piece.size_bytes,
                }
                for piece in shard.pieces
            ],
        }
        for shard in entry.shards
    ]
    return {"name": entry.name, "dtype": entry.dtype, "shape": entry.shape, "shards": shards}


def _member(stored: Json) -> Member:
    tensors = tuple(
        TensorEntry(
            name=tensor["name"],
            dtype=tensor["dtype"],
            shape=tuple(tensor["shape"]),
            shards=tuple(_shard(shard) for shard in tensor["shards"]),
        )
        for tensor in stored["tensors"]
    )
    return Member(step=stored["step"], values=stored["values"], tensors=tensors)


def _shard(stored: Json) -> Shard:
    return Shard(
        offsets=tuple(stored["offsets"]),
        shape=tuple(stored["shape"]),
        pieces=tuple(Piece(**piece) for piece in stored["pieces"]),
    )


def _check_members(manifest: Manifest, stored: Mapping[str, Json], key: str) -> None:
    for name, member in manifest.members.items():
        if member.step != manifest.step:
            raise CheckpointCorrupt(
                f"{key} mixes steps: {name} is of step {member.step}, the checkpoint of step "
                f"{manifest.step}; it cannot be restored."
            )
        found = _digest({k: v for k, v in stored[name].items() if k != "sha256"})
        if found != stored[name]["sha256"]:
            raise CheckpointCorrupt(
                f"{key}: {name} has sha256 {found}; expected {stored[name]['sha256']}."
            )
    names = [entry.name for entry in manifest.members["model"].tensors]
    if names != sorted(set(names)):
        raise CheckpointCorrupt(f"{key} does not list the model's tensors once each, by name.")
