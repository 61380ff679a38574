"""A checkpoint as a folder that is read without this package: by torch, or by what wrote its files.

Of tensors, `torch.load("weights.pt", weights_only=True)` gives the model's state, name → tensor. The
file is written here: torch's own writer wants all of it in memory, and torch, which no command loads.
It is a zip without compression: `data.pkl`, a pickle of the names with types and shapes, and each
tensor's bytes in `data/<number>`, aligned to 64 bytes as torch does it, so that a reader may map them.

Of a folder that a script wrote itself, `files/` has every file as it was committed.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tracks_dagster.track.errors import CheckpointMismatch
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves.folder_files import read_folder, write_files
from tracks_dagster.training.saves.manifest import (
    FILES,
    FOLDER,
    Manifest,
    TensorEntry,
    clean_name,
    digest_parts,
    digest_weights,
    read_manifest,
    read_tensors,
)

WEIGHTS, CONFIG, CHECKPOINT = "weights.pt", "config.json", "checkpoint.json"
OWN_FILES = "files"  # below it the files of a checkpoint that is a folder: their names are free
ALIGNMENT_BYTES = 64
BLOCK_BYTES = 8 * 1024 * 1024  # of a file, while its digest is taken
_ZIP_HEADER_BYTES = 30  # of an entry, before its name
_INT_END = 1 << 31


def write_checkpoint(
    store: ObjectStore, ref: CheckpointRef, folder: Path, *, config: Mapping[str, Json]
) -> str:
    """Make `folder` with what `ref` holds, its config and origin; return the digest of the weights, or
    of the files.

    Every chunk is verified as it is read; one tensor is in memory at a time. Raises CheckpointCorrupt,
    and CheckpointMismatch for a checkpoint without a model's tensors.
    """
    manifest = read_manifest(store, ref)
    folder.mkdir(parents=True)
    write = _write_files if manifest.kind == FILES else _write_model
    digest, name = write(store, ref, manifest, folder)
    origin = {
        "run_id": ref.run_id,
        "attempt_id": ref.attempt_id,
        "step": ref.step,
        "manifest_sha256": ref.manifest_sha256,
        "weights_sha256": digest,
        "metrics": dict(manifest.metrics),
        "folder": name,
    }
    write_json(folder / CONFIG, dict(config))
    write_json(folder / CHECKPOINT, origin)
    return digest


def write_json(path: Path, value: Json) -> None:
    """Write a value for people to read too."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_model(
    store: ObjectStore, ref: CheckpointRef, manifest: Manifest, folder: Path
) -> tuple[str, None]:
    model = manifest.members.get("model")
    entries = () if model is None else model.tensors
    if not entries:
        raise CheckpointMismatch(
            f"Step {ref.step} of run {ref.run_id} holds no tensor of a model: nothing to hand over."
        )
    tensors = read_tensors(store, manifest, "model")
    return digest_weights(_write_weights(folder / WEIGHTS, entries, tensors)), None


def _write_files(
    store: ObjectStore, ref: CheckpointRef, manifest: Manifest, folder: Path
) -> tuple[str, str]:
    """Write the files; return their digest, as `weights_sha256` takes it, and the folder's name."""
    _, name = read_folder(store, ref)
    write_files(store, manifest, folder / OWN_FILES)
    files = manifest.members[FOLDER].tensors
    return digest_parts((each, _blocks(folder / OWN_FILES / each.name)) for each in files), name


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _write_weights(
    path: Path, entries: Iterable[TensorEntry], tensors: Iterator[tuple[TensorEntry, bytes]]
) -> Iterator[tuple[TensorEntry, bytes]]:
    """Write each tensor and hand it on; the file is whole when all were taken."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "data.pkl", _pickled(entries))
        _add(archive, "byteorder", b"little")
        for number, (entry, data) in enumerate(tensors):
            _add(archive, f"data/{number}", data)
            yield entry, data
        _add(archive, "version", b"3\n")


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(f"weights/{name}")  # dated 1980: the same weights are the same bytes
    assert archive.fp is not None
    begin = archive.fp.tell() + _ZIP_HEADER_BYTES + len(info.filename) + 4
    padding = -begin % ALIGNMENT_BYTES
    info.extra = b"FB" + padding.to_bytes(2, "little") + b"Z" * padding
    archive.writestr(info, data)


# --- a pickle of names, types and shapes: torch's rebuilding function by name, nothing else -------


def _pickled(entries: Iterable[TensorEntry]) -> bytes:
    """Return {name: tensor} as a pickle of protocol 2; each tensor's bytes are in `data/<number>`."""
    items = (
        _text(clean_name(entry.name)) + _tensor(entry, number)
        for number, entry in enumerate(entries)
    )
    return b"\x80\x02}(" + b"".join(items) + b"u."


def _tensor(entry: TensorEntry, number: int) -> bytes:
    size_bytes = sum(piece.size_bytes for shard in entry.shards for piece in shard.pieces)
    stored = (
        _text("storage"),
        _name("torch.storage", "UntypedStorage"),
        _text(str(number)),
        _text("cpu"),
        _integer(size_bytes),
    )
    arguments = (
        _tuple(stored) + b"Q",  # what a reader finds by that identity
        _integer(0),
        _tuple(map(_integer, entry.shape)),
        _tuple(map(_integer, _strides(entry.shape))),
        b"\x89",  # no gradient
        _name("collections", "OrderedDict") + b")R",  # no hooks
        _name("torch", entry.dtype),
    )
    return _name("torch._utils", "_rebuild_tensor_v3") + _tuple(arguments) + b"R"


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor, in elements: of (2, 3, 4) it is (12, 4, 1)."""
    found: list[int] = []
    step = 1
    for size in reversed(shape):
        found.insert(0, step)
        step *= max(1, size)
    return tuple(found)


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _tuple(items: Iterable[bytes]) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def _integer(value: int) -> bytes:
    if value < _INT_END:
        return b"J" + value.to_bytes(4, "little")
    data = value.to_bytes(9, "little")
    return b"\x8a" + len(data).to_bytes(1, "little") + data
