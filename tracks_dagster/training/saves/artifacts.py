"""Stores what a script leaves beside its checkpoints (`track.artifacts`), and writes it out again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.artifacts import (
    BYTES_MAX,
    FILES_MAX,
    PART_BYTES,
    ArtifactFile,
    files_of,
    list_key,
    list_of,
    part_key,
)
from tracks_dagster.track.errors import CheckpointCorrupt, InvalidInput, ObjectLost
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex


def find_files(path: Path) -> list[Path]:
    """Return the files of an artifact: `path` itself, or what lies below it, links apart.

    Raises InvalidInput where there is nothing, or too much.
    """
    files = [path] if path.is_file() else [each for each in path.rglob("*") if _is_own(each)]
    total = sum(each.stat().st_size for each in files)
    if not files:
        raise InvalidInput(f"There is no file at {path}, so it is not an artifact.")
    if len(files) > FILES_MAX or total > BYTES_MAX:
        raise InvalidInput(
            f"{path} has {len(files)} files with {total} bytes; an artifact has at most {FILES_MAX} "
            f"files and {BYTES_MAX} bytes. Name what of it is to stay."
        )
    return sorted(files)


def store_files(store: ObjectStore, run_id: str, path: Path) -> tuple[ArtifactFile, ...]:
    """Store the files at `path`, then their list; idempotent. Raises StoreError and InvalidInput."""
    root = path.parent if path.is_file() else path
    stored = []
    for file in find_files(path):
        sizes, parts = [], []
        for part in _parts(file):
            parts.append(sha256_hex(part))
            sizes.append(len(part))
            store.create(part_key(run_id, parts[-1]), part)
        inside = file.relative_to(root).as_posix()
        stored.append(ArtifactFile(path=inside, size_bytes=sum(sizes), parts=tuple(parts)))
    data = list_of(stored)
    store.create(list_key(run_id, sha256_hex(data)), data)
    return tuple(stored)


def write_out(store: ObjectStore, run_id: str, sha256: str, folder: Path) -> None:
    """Write the files of an artifact below `folder`, every part verified. Raises CheckpointCorrupt."""
    data = _read(store, list_key(run_id, sha256), sha256)
    for each in files_of(parse_json(data, bytes_max=MANIFEST_BYTES_MAX)):
        path = folder / each.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise CheckpointCorrupt(f"The list of artifact {sha256[:12]} names {each.path!r}.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for part in each.parts:
                file.write(_read(store, part_key(run_id, part), part))


def _read(store: ObjectStore, key: str, sha256: str) -> bytes:
    try:
        return read_addressed(store, key, sha256)
    except ObjectLost as error:
        raise CheckpointCorrupt(f"{error}.") from error


def _parts(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while part := opened.read(PART_BYTES):
            yield part


def _is_own(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
