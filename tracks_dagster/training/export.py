"""Export a checkpoint's weights as one safetensors file, every chunk verified as it is read.

For other programs: nothing here resumes from such a file, which has no hashes inside and loads with a
flipped bit without a word. Needs no torch, so a command can use it on any machine.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, TensorSpec, serialize_file

from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.errors import CheckpointCorrupt, CheckpointMismatch, InvalidInput
from tracks_dagster.core.ports import ObjectStore
from tracks_dagster.training.manifest import (
    TensorEntry,
    read_manifest,
    read_tensors,
    weights_sha256,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. total_bytes: of the tensors; metadata: as it stands in the file."""

    path: str
    tensor_count: int
    total_bytes: int
    metadata: dict[str, str]


def export_weights(
    store: ObjectStore, ref: CheckpointRef, path: Path, *, overwrite: bool = False
) -> Exported:
    """Write the model's tensors of `ref` to `path`, in full or not at all.

    Holds all of them in memory, and reads them twice: the file's header, which comes first, has
    their digest. Raises InvalidInput for a path that cannot be written or is taken,
    CheckpointCorrupt naming object, expected and found, CheckpointMismatch for tensors that
    safetensors has no word for.
    """
    _check_path(path, overwrite=overwrite)
    try:
        metadata = _metadata(store, ref)
        tensors = list(read_tensors(store, read_manifest(store, ref), "model"))
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(
            f"Cannot export step {ref.step} of run {ref.run_id}: {error} No file was written."
        ) from error
    if not tensors:
        raise CheckpointMismatch(
            f"Step {ref.step} of run {ref.run_id} holds no tensor of a model: nothing to export."
        )
    _write(tensors, path, metadata)
    return Exported(
        path=str(path),
        tensor_count=len(tensors),
        total_bytes=sum(len(data) for _, data in tensors),
        metadata=metadata,
    )


def _metadata(store: ObjectStore, ref: CheckpointRef) -> dict[str, str]:
    return {
        "format": "pt",  # some loaders refuse a file that does not name the framework of its tensors
        "run_id": ref.run_id,
        "attempt_id": str(ref.attempt_id),
        "step": str(ref.step),
        "manifest_sha256": ref.manifest_sha256,
        "weights_sha256": weights_sha256(store, ref),
    }


def _check_path(path: Path, *, overwrite: bool) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidInput(
            f"Cannot export to {path}: name a file in a folder that exists, for example "
            "weights.safetensors."
        )
    if path.exists() and not overwrite:
        raise InvalidInput(
            f"{path} is there already and was left as it is; choose another name, or --force."
        )


def _write(tensors: list[tuple[TensorEntry, bytes]], path: Path, metadata: dict[str, str]) -> None:
    """Write beside `path`, make it durable, then give it its name: a crash leaves no half file."""
    # The library takes addresses: these arrays are views that keep the bytes alive until it is done.
    arrays = [np.frombuffer(data, dtype=np.uint8) for _, data in tensors]
    specs = {
        entry.name: _spec(entry, array) for (entry, _), array in zip(tensors, arrays, strict=True)
    }
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        serialize_file(specs, partial, metadata=metadata)
        _sync(partial)
        partial.replace(path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise InvalidInput(
            f"Cannot write {path}: {error}. No file was left; choose a folder that can be written "
            "and has room for the weights."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _spec(entry: TensorEntry, array: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> TensorSpec:
    try:
        return TensorSpec(
            dtype=entry.dtype,
            shape=entry.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
    except SafetensorError as error:
        raise CheckpointMismatch(
            f"Tensor {entry.name} is {entry.dtype}, which safetensors has no word for: {error}"
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
