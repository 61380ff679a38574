"""Export a checkpoint's weights as one safetensors file, or its files, every chunk verified.

For other programs: nothing here resumes from such a file, which has no hashes inside and loads with a
flipped bit without a word. Needs no torch, so a command can use it on any machine.

The format (https://github.com/huggingface/safetensors#format) is the header's size as eight bytes,
the header as JSON, padded with spaces, and the tensors without gaps. It is written here, and not by
its library, which wants every tensor in memory at once.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch, InvalidInput
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves.folder_files import read_folder, write_files
from tracks_dagster.training.saves.manifest import (
    FOLDER,
    TENSORS,
    Manifest,
    TensorEntry,
    digest_weights,
    read_manifest,
    read_tensors,
)

WORDS = {  # torch's name → the format's
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "bool": "BOOL",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
}
ALIGNMENT_BYTES = 8  # of the first tensor; the wider types come first, so that all are aligned
NO_DIGEST = "0" * 64  # holds the place of weights_sha256, which is known once all was read


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedWeights:
    """What was written. total_bytes: of the tensors; metadata: as in the file."""

    path: str
    tensor_count: int
    total_bytes: int
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where each tensor's bytes lie behind the header: name → (begin, end)."""

    entries: Mapping[str, TensorEntry]
    offsets: Mapping[str, tuple[int, int]]

    @property
    def total_bytes(self) -> int:
        return max(end for _, end in self.offsets.values())

    def header(self, metadata: Mapping[str, str]) -> bytes:
        """Return the file's beginning; its size does not depend on the digest in `metadata`."""
        header: dict[str, Json] = {"__metadata__": dict(metadata)}
        for name, (begin, end) in self.offsets.items():
            entry = self.entries[name]
            shape = list(entry.shape)
            header[name] = {
                "dtype": WORDS[entry.dtype],
                "shape": shape,
                "data_offsets": [begin, end],
            }
        data = json.dumps(header, separators=(",", ":")).encode()
        data += b" " * (-len(data) % ALIGNMENT_BYTES)
        return len(data).to_bytes(8, "little") + data


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFolder:
    """What was written. total_bytes: of the files."""

    path: str
    file_count: int
    total_bytes: int
    metadata: dict[str, str]


def export_checkpoint(
    store: ObjectStore, ref: CheckpointRef, path: Path, *, overwrite: bool = False
) -> ExportedWeights | ExportedFolder:
    """Write what `ref` holds to `path`, in full or not at all.

    The model's tensors as one file, or the files of a folder as a folder. Raises as `export_weights`
    does.
    """
    try:
        manifest = read_manifest(store, ref)
    except CheckpointCorrupt as error:
        raise _cannot_export(ref, error) from error
    if manifest.kind == TENSORS:
        return export_weights(store, ref, path, overwrite=overwrite)
    return export_folder(store, ref, path)


def export_folder(store: ObjectStore, ref: CheckpointRef, path: Path) -> ExportedFolder:
    """Write the files of `ref` to a new folder `path`, in full or not at all; raises as
    `export_weights` does.
    """
    if path.exists() or path.is_symlink() or not path.absolute().parent.is_dir():
        raise InvalidInput(
            f"Cannot export to {path}: step {ref.step} is a folder of files; name a folder that is not "
            "there yet, in one that is."
        )
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        manifest, _ = read_folder(store, ref)
        write_files(store, manifest, partial)
        for folder, _folders, files in os.walk(partial):
            for name in files:
                _sync(Path(folder) / name)
            _sync(Path(folder))
        partial.rename(path)
        _sync(path.absolute().parent)
    except CheckpointCorrupt as error:
        raise _cannot_export(ref, error) from error
    except OSError as error:
        raise InvalidInput(
            f"Cannot write {path}: {error}. No folder was left; choose one that can be written and has "
            "room for the files."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return ExportedFolder(
        path=str(path),
        file_count=len(manifest.members[FOLDER].tensors),
        total_bytes=manifest.total_bytes,
        metadata={name: text for name, text in _metadata(ref).items() if text != NO_DIGEST},
    )


def _cannot_export(ref: CheckpointRef, error: CheckpointCorrupt) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"Cannot export step {ref.step} of run {ref.run_id}: {error} No file was written. "
        f"`tracks checkpoints verify {ref.run_id} --step {ref.step} --attempt {ref.attempt_id}` "
        "records it and names the checkpoint that a resume takes instead."
    )


def export_weights(
    store: ObjectStore, ref: CheckpointRef, path: Path, *, overwrite: bool = False
) -> ExportedWeights:
    """Write the model's tensors of `ref` to `path`, in full or not at all.

    Holds one tensor in memory. Raises InvalidInput for a path that cannot be written or is taken,
    CheckpointCorrupt naming object, expected and found, CheckpointMismatch for tensors that
    safetensors has no word for.
    """
    _check_path(path, overwrite=overwrite)
    try:
        manifest = read_manifest(store, ref)
        layout = _lay_out(manifest)
        digest = _write(store, manifest, layout, path, _metadata(ref))
    except CheckpointCorrupt as error:
        raise _cannot_export(ref, error) from error
    return ExportedWeights(
        path=str(path),
        tensor_count=len(layout.entries),
        total_bytes=layout.total_bytes,
        metadata={**_metadata(ref), "weights_sha256": digest},
    )


def _metadata(ref: CheckpointRef) -> dict[str, str]:
    return {
        "format": "pt",  # some loaders refuse a file that does not name the framework of its tensors
        "run_id": ref.run_id,
        "attempt_id": str(ref.attempt_id),
        "step": str(ref.step),
        "manifest_sha256": ref.manifest_sha256,
        "weights_sha256": NO_DIGEST,
    }


def _check_path(path: Path, *, overwrite: bool) -> None:
    try:
        is_there, is_file_name = path.exists(), not path.is_dir() and path.parent.is_dir()
    except OSError:  # a name that is too long, or in a folder that this user may not look into
        is_there = is_file_name = False
    if not is_file_name:
        raise InvalidInput(
            f"Cannot export to {path}: name a file in a folder that exists, for example "
            "weights.safetensors."
        )
    if is_there and not overwrite:
        raise InvalidInput(
            f"{path} is there already and was left as it is; choose another name, or --force."
        )


def _lay_out(manifest: Manifest) -> _Layout:
    """Give each of the model's tensors its place, the widest types first."""
    entries = {entry.name: entry for entry in manifest.members["model"].tensors}
    if not entries:
        raise CheckpointMismatch(
            f"Step {manifest.step} of run {manifest.run_id} holds no tensor of a model: nothing to "
            "export."
        )
    for entry in entries.values():
        if entry.dtype not in WORDS:
            raise CheckpointMismatch(
                f"Tensor {entry.name} is {entry.dtype}, which safetensors has no word for; it has "
                f"one for {', '.join(WORDS)}."
            )
    offsets: dict[str, tuple[int, int]] = {}
    begin = 0
    for entry in sorted(entries.values(), key=lambda each: -_item_bits(each)):
        end = begin + _size_bytes(entry)
        offsets[entry.name] = (begin, end)
        begin = end
    return _Layout(entries=entries, offsets=offsets)


def _item_bits(entry: TensorEntry) -> int:
    """Return how wide a type is, as its word ends: 64 of F64; 8 of F8_E5M2 and of BOOL."""
    word = WORDS[entry.dtype].partition("_")[0]
    return int("".join(each for each in word if each.isdigit()) or 8)


def _size_bytes(entry: TensorEntry) -> int:
    return sum(piece.size_bytes for shard in entry.shards for piece in shard.pieces)


def _write(
    store: ObjectStore, manifest: Manifest, layout: _Layout, path: Path, metadata: dict[str, str]
) -> str:
    """Write beside `path`, make it durable, then give it its name: a crash leaves no half file.

    Returns the weights' digest, which replaces the one in `metadata` when all was read.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("xb") as file:
            begin = file.write(layout.header(metadata))
            tensors = read_tensors(store, manifest, "model")
            digest = digest_weights(_written(file, begin, layout, tensors))
            file.seek(0)
            file.write(layout.header({**metadata, "weights_sha256": digest}))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise InvalidInput(
            f"Cannot write {path}: {error}. No file was left; choose a folder that can be written "
            "and has room for the weights."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return digest


def _written(
    file: BinaryIO, begin: int, layout: _Layout, tensors: Iterator[tuple[TensorEntry, bytes]]
) -> Iterator[tuple[TensorEntry, bytes]]:
    """Write each tensor to its place and hand it on."""
    for entry, data in tensors:
        first, end = layout.offsets[entry.name]
        if len(data) != end - first:
            raise CheckpointCorrupt(
                f"Tensor {entry.name} has {len(data)} bytes; the manifest says {end - first}."
            )
        file.seek(begin + first)
        file.write(data)
        yield entry, data


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
