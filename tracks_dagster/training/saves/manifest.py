"""A checkpoint's manifest, and everything that it lists, read back and verified.

Nothing here imports torch, so that commands which only read can use it. A manifest lists members, each
with its step and the sha256 of what it lists; one of another step makes the whole refused. A checkpoint
of tensors has model, optimizer, scheduler, scaler, rng, data, progress, and what else a script
registered by name; one of a folder that the script wrote itself has folder, rng, data, progress. A
tensor is one or more shards, each written by one rank: raw little-endian bytes in row-major order. A
file is a tensor of bytes with one dimension, named by its path in the folder. Small ones share a chunk,
large ones span several. `storage_writer` makes one of the tensors that the ranks stored, which
`loading` restores into a model; `folders` makes one of files and writes them back.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import chain

from blake3 import blake3

from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointMismatch,
    ObjectLost,
)
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key

FORMAT = 2  # the seven members of today; what versions without names of a script's own read as well
FORMAT_NAMED = 3  # members by any name, each with its kind
CHUNK_BYTES_MAX = 8 * 1024 * 1024
CHUNKS_CACHED_MAX = 4  # while reading tensor by tensor: neighbours share a chunk
MEMBERS = ("model", "optimizer", "scheduler", "scaler", "rng", "data", "progress")
FOLDER = "folder"  # the member that lists the files of a folder
ALWAYS = ("rng", "data", "progress")  # in a manifest of any format
KINDS = {"model": "module", "optimizer": "optimizer", "scheduler": "state", "scaler": "state"}
VALUES = "values"  # the kind of a member that is not a registered state
TENSORS, FILES = "tensors", "files"  # kinds of checkpoints; FILES is that of its member FOLDER, too


def clean_name(name: str) -> str:
    """Return a tensor's name without the wrappers of torch.compile inside a module."""
    return name.replace("_orig_mod.", "")


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
    """One state, as of `step`.

    tensors: what is bulky; values: the rest, as JSON (`plain_state` says how it nests).
    kind: "module", "optimizer", "state", FILES, or VALUES. ranks: how many ranks saved it, each its
    own: values are a list by rank, and tensors' names begin with `rank-<r>.`; None: one for all ranks.
    """

    step: int
    values: Json = None
    tensors: tuple[TensorEntry, ...] = ()
    kind: str = VALUES
    ranks: int | None = None

    def to_json(self, format_: int = FORMAT) -> dict[str, Json]:
        """Return what is stored of it, with the digest of everything that it lists; through the
        chunks' hashes, of its bytes.
        """
        stored: dict[str, Json] = {
            "step": self.step,
            "values": self.values,
            "tensors": [_entry_json(entry) for entry in self.tensors],
        }
        if format_ == FORMAT_NAMED:
            stored |= {"kind": self.kind, "ranks": self.ranks}
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

    @property
    def kind(self) -> str:
        """TENSORS, or FILES of a folder."""
        folder = self.members.get(FOLDER)
        return TENSORS if folder is None or folder.kind != FILES else FILES

    @property
    def content(self) -> str:
        """The member whose bytes say whether two checkpoints are the same: weights, or files."""
        return FOLDER if self.kind == FILES else "model"

    @property
    def total_bytes(self) -> int:
        """The bytes of all tensors or files."""
        return sum(
            piece.size_bytes
            for member in self.members.values()
            for entry in member.tensors
            for shard in entry.shards
            for piece in shard.pieces
        )

    def to_bytes(self) -> bytes:
        """Return the canonical JSON that is stored; its sha256 names the manifest.

        Raises CheckpointError for one that is too large to be read again.
        """
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        stored["chunks"] = [asdict(chunk) for chunk in self.chunks]
        stored["members"] = {
            name: member.to_json(self.format) for name, member in self.members.items()
        }
        data = canonical_json(stored)
        if len(data) > MANIFEST_BYTES_MAX:
            raise CheckpointError(
                f"Cannot save step {self.step}: its manifest has {len(data)} bytes, and none of more "
                f"than {MANIFEST_BYTES_MAX} is read; save fewer, larger tensors."
            )
        return data


def parse_manifest(data: bytes, *, key: str) -> Manifest:
    """Return the manifest that `data` stores.

    Raises CheckpointCorrupt when it does not parse, lacks a member, or mixes members of two steps;
    CheckpointMismatch when another format version wrote it: its bytes are right, so nobody may
    quarantine it.
    """
    try:
        stored = parse_json(data, bytes_max=MANIFEST_BYTES_MAX)
        if stored["format"] not in (FORMAT, FORMAT_NAMED):
            raise CheckpointMismatch(
                f"{key} has format {stored['format']}; this version reads {FORMAT} and "
                f"{FORMAT_NAMED}. Resume with the version of tracks-dagster that wrote it, or a newer "
                "one."
            )
        is_named = stored["format"] == FORMAT_NAMED
        names = dict.fromkeys((*ALWAYS, *stored["members"])) if is_named else MEMBERS
        members = {name: _member(name, stored["members"][name]) for name in names}
        manifest = Manifest(
            **{**stored, "members": members, "chunks": tuple(Chunk(**c) for c in stored["chunks"])}
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"{key} is not a manifest of a checkpoint: {error!r}.") from error
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


def _member(name: str, stored: Json) -> Member:
    tensors = tuple(
        TensorEntry(
            name=tensor["name"],
            dtype=tensor["dtype"],
            shape=tuple(tensor["shape"]),
            shards=tuple(_shard(shard) for shard in tensor["shards"]),
        )
        for tensor in stored["tensors"]
    )
    return Member(
        step=stored["step"],
        values=stored["values"],
        tensors=tensors,
        kind=stored.get("kind", KINDS.get(name, VALUES)),
        ranks=stored.get("ranks"),
    )


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
    for name, member in manifest.members.items():
        names = [entry.name for entry in member.tensors]
        if member.kind in ("module", FILES) and names != sorted(set(names)):
            raise CheckpointCorrupt(f"{key} does not list the {name}'s tensors once each, by name.")


def read_manifest(store: ObjectStore, ref: CheckpointRef) -> Manifest:
    """Return the manifest of `ref`, verified.

    Raises CheckpointCorrupt when it is missing, its bytes do not have the sha256 that `ref` names,
    or it speaks of another run, attempt or step; CheckpointMismatch for another format version.
    """
    key = manifest_key(ref)
    try:
        data = read_addressed(store, key, ref.manifest_sha256)
    except ObjectLost as error:
        raise CheckpointCorrupt(f"{error}.") from error
    manifest = parse_manifest(data, key=key)
    named = (manifest.run_id, manifest.attempt_id, manifest.step)
    if named != (ref.run_id, ref.attempt_id, ref.step):
        raise CheckpointCorrupt(
            f"{key} is of run {named[0]}, attempt {named[1]}, step {named[2]}; the commit says "
            f"run {ref.run_id}, attempt {ref.attempt_id}, step {ref.step}."
        )
    return manifest


def check_kind(manifest: Manifest, kind: str) -> None:
    """Raise CheckpointMismatch unless it is a checkpoint of that kind."""
    if manifest.kind == kind:
        return
    contents = {TENSORS: "the tensors that a script registered", FILES: "a folder of files"}
    raise CheckpointMismatch(
        f"Step {manifest.step} of run {manifest.run_id} holds {contents[manifest.kind]}, and what "
        f"reads it wants {contents[kind]}; use the script that wrote it, or export it."
    )


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
    """Return the digest of a checkpoint's weights, verified as they are read: of all model tensors,
    or of all files of a folder.

    Raises CheckpointCorrupt.
    """
    manifest = read_manifest(store, ref)
    if manifest.kind == TENSORS:
        return digest_weights(read_tensors(store, manifest, "model"))
    chunks = _ChunkCache(store, manifest)
    return digest_parts(
        (entry, chain.from_iterable(map(chunks.parts, entry.shards)))
        for entry in manifest.members[FOLDER].tensors
    )


def digest_weights(tensors: Iterable[tuple[TensorEntry, bytes]]) -> str:
    """Return the digest of a model's tensors, given in name order as `read_tensors` yields them."""
    return digest_parts((entry, (data,)) for entry, data in tensors)


def digest_parts(
    entries: Iterable[tuple[TensorEntry, Iterable[bytes | memoryview]]],
) -> str:
    """Return the digest of tensors or files in name order, each with its bytes in parts.

    sha256 over all of them, each as canonical JSON of [name, dtype, shape], a newline and its raw
    bytes. It does not depend on ranks, chunks, attempt or store, so two runs compare.
    """
    digest = hashlib.sha256()
    for entry, parts in entries:
        digest.update(canonical_json([entry.name, entry.dtype, list(entry.shape)]) + b"\n")
        for part in parts:
            digest.update(part)
    return digest.hexdigest()


class _ChunkCache:
    """The chunks read last, verified."""

    def __init__(self, store: ObjectStore, manifest: Manifest) -> None:
        self._store = store
        self._manifest = manifest
        self._chunks: OrderedDict[int, bytes] = OrderedDict()

    def read(self, shard: Shard) -> bytes:
        """Return a shard's bytes."""
        return b"".join(self.parts(shard))

    def parts(self, shard: Shard) -> Iterator[memoryview]:
        """Yield a shard's bytes, piece by piece."""
        for piece in shard.pieces:
            yield self._chunk(piece.chunk_index)[piece.offset_bytes :][: piece.size_bytes]

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
    import numpy as np  # 10 MB, which who only reads manifests never needs

    item_bytes = sum(len(data) for data in shards) // max(1, math.prod(entry.shape))
    whole = np.empty((*entry.shape, item_bytes), dtype=np.uint8)
    for shard, data in zip(entry.shards, shards, strict=True):
        box = tuple(slice(o, o + n) for o, n in zip(shard.offsets, shard.shape, strict=True))
        whole[box] = np.frombuffer(data, dtype=np.uint8).reshape(*shard.shape, item_bytes)
    return whole.tobytes()


def read_chunk_into(store: ObjectStore, chunk: Chunk, part: memoryview) -> None:
    """Read a chunk into `part`, which has its size, verified; raises CheckpointCorrupt."""
    size = store.read_into(chunk.key, part)
    if size is None:
        raise CheckpointCorrupt(f"{chunk.key} is missing; expected blake3 {chunk.blake3}.")
    if size != chunk.size_bytes:
        raise CheckpointCorrupt(
            f"{chunk.key} has {size} bytes; expected {chunk.size_bytes}, with blake3 {chunk.blake3}."
        )
    found = blake3(part).hexdigest()
    if found != chunk.blake3:
        raise CheckpointCorrupt(f"{chunk.key} has blake3 {found}; expected {chunk.blake3}.")


def _read_chunk(store: ObjectStore, chunk: Chunk) -> bytes:
    data = store.get(chunk.key, chunk.size_bytes)
    if data is None:
        raise CheckpointCorrupt(f"{chunk.key} is missing; expected blake3 {chunk.blake3}.")
    found = blake3(data).hexdigest()
    if found != chunk.blake3:
        raise CheckpointCorrupt(f"{chunk.key} has blake3 {found}; expected {chunk.blake3}.")
    return data


class StoredCheckpoints:
    """Implements `checkpoints.ports.CheckpointReader` over one store, for services."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def verify(self, ref: CheckpointRef) -> int:
        return verify_checkpoint(self._store, ref)

    def chunk_sizes(self, ref: CheckpointRef) -> Mapping[str, int]:
        return {chunk.key: chunk.size_bytes for chunk in read_manifest(self._store, ref).chunks}
