"""A verified local path of a snapshot of files: fetched once a machine, or where it lies in place.

The cache has a folder for each snapshot, read-only, which appears whole by one rename. Nothing in it is
a hard link into a store: ranks often run as root, to whom read-only says nothing, and one memmap opened
for writing would change the stored truth. So a copy costs its bytes once a machine; data in place costs
none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tracks_dagster.stores.hashes import Hashes, digest, find_changed, thread_count
from tracks_dagster.stores.sources import Buffers, FolderSource, Source, named, open_source
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import DataRejected, InvalidInput, ObjectLost, StoreUnavailable
from tracks_dagster.track.map_in_order import map_in_order
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.dataset_state import manifest_key
from tracks_dagster.track.states.files_manifest import (
    FilesManifest,
    FrozenFile,
    Part,
    files_shard_key,
    is_files_manifest,
    parse_files_manifest,
)

LOCK_S_MAX = 6 * 3600.0  # another process of this machine fetches or verifies the same snapshot
LOCK_POLL_S = 0.2
HASHES = "hashes"
GB = 1e9

Waits = Callable[[], object]  # called again and again while it takes long


def read_verified(store: ObjectStore, key: str, sha256: str) -> bytes:
    """Return an object that is named by its sha256; raises DataRejected when it is not what it was."""
    try:
        return read_addressed(store, key, sha256)
    except ObjectLost as error:
        raise DataRejected(
            f"Cannot load the snapshot: {error}. Make the snapshot again; nothing was trained on these "
            "bytes."
        ) from error


def read_files_manifest(store: ObjectStore, snapshot: SnapshotRef) -> FilesManifest:
    """Return the manifest of a snapshot of files, verified; raises DataRejected."""
    key = manifest_key(snapshot.dataset, snapshot.snapshot_id)
    data = read_verified(store, key, snapshot.snapshot_id)
    if not is_files_manifest(data):
        raise InvalidInput(
            f"{snapshot.dataset} is a dataset of rows, which has no folder of files; a.snapshot() "
            "gives its rows."
        )
    return parse_files_manifest(data)


def local_files(
    store: ObjectStore, snapshot: SnapshotRef, cache: Path, *, waits: Waits = lambda: None
) -> Path:
    """Return the folder that holds exactly the bytes that the snapshot names.

    Safe from several processes: one fetches or verifies, the others wait for it. Raises DataRejected
    naming the files that were changed, OSError (ENOSPC) before a byte is fetched when there is no
    room, StoreUnavailable when the others take too long.
    """
    manifest = read_files_manifest(store, snapshot)
    with _locked(cache / "data", snapshot.snapshot_id, waits):
        if manifest.in_place is not None and not manifest.in_place.startswith("s3://"):
            return _in_place(manifest, Path(manifest.in_place), cache, waits)
        folder = cache / "data" / snapshot.snapshot_id
        if folder.is_dir():
            wrong = _verify(FolderSource(folder), manifest, cache, waits)
            if not wrong:
                return folder
            print(
                f"{folder} was changed ({named(wrong)}) and is fetched again.",
                file=sys.stderr,
                flush=True,
            )
            _remove(folder)
        _fetch(store, manifest, folder, waits)
        _learn(folder, manifest, cache)
        return folder


def _in_place(manifest: FilesManifest, folder: Path, cache: Path, waits: Waits) -> Path:
    if not folder.is_dir():
        raise DataRejected(
            f"The snapshot of {manifest.dataset} lies in {folder}, by reference, and that folder is "
            "not on this machine. Mount it there, or make a snapshot that is copied into the store "
            f"(`tracks snapshots add {manifest.dataset} PATH`)."
        )
    wrong = _verify(FolderSource(folder), manifest, cache, waits)
    if wrong:
        raise DataRejected(
            f"{len(wrong)} files of {folder} are not what the snapshot of {manifest.dataset} names, "
            f"changed, gone or added: {named(wrong)}. Nothing was trained on them; bring the "
            "folder back to what it was, or freeze it as it is now with `tracks snapshots add "
            f"{manifest.dataset} {folder} --in-place`."
        )
    return folder


def _verify(source: Source, manifest: FilesManifest, cache: Path, waits: Waits) -> list[str]:
    hashes = Hashes(cache / HASHES, source.url)
    try:
        return find_changed(source, manifest, hashes, progress=lambda done: waits())
    except InvalidInput as error:
        raise DataRejected(str(error)) from error


def _learn(folder: Path, manifest: FilesManifest, cache: Path) -> None:
    """Remember what was verified while it was written: nobody has seen the folder yet."""
    source = FolderSource(folder)
    hashes = Hashes(cache / HASHES, source.url)
    there = {file.path: file for file in source.files()}
    hashes.learn({there[file.path]: file.digests for file in manifest.files}, are_trusted=True)
    hashes.save()


def _fetch(store: ObjectStore, manifest: FilesManifest, folder: Path, waits: Waits) -> None:
    """Write all files below `folder`, verified part by part; it appears when it is whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():  # of a process that was killed: the lock is ours
        _remove(partial)
    free = shutil.disk_usage(folder.parent).free
    if manifest.total_bytes > free:
        raise OSError(
            errno.ENOSPC,
            f"No space left on device for the snapshot of {manifest.dataset}: it has "
            f"{manifest.total_bytes / GB:.1f} GB and {folder.parent} has {free / GB:.1f} GB free; free "
            "some space, or remove snapshots there that nobody trains on",
        )
    print(
        f"fetching {len(manifest.files)} files of {manifest.dataset}, "
        f"{manifest.total_bytes / GB:.3f} GB, to {folder}",
        file=sys.stderr,
        flush=True,
    )
    try:
        for file in manifest.files:
            path = partial / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as made:
                made.truncate(file.size_bytes)
        fetch, at_once = _fetcher(store, manifest, partial), 2 * thread_count()
        with ThreadPoolExecutor(thread_count()) as pool:
            for _ in map_in_order(pool, fetch, _portions(manifest), at_once=at_once):
                waits()
        for path in partial.rglob("*"):
            if path.is_file():
                path.chmod(0o444)
        partial.rename(folder)
        for path in (folder, *folder.rglob("*")):
            if path.is_dir():
                path.chmod(0o555)
    finally:
        if partial.exists():
            _remove(partial)


Target = tuple[FrozenFile, int, Part]  # a part, and where in the file it goes


def _portions(manifest: FilesManifest) -> Iterator[list[Target]]:
    """Yield what one thread fetches at once: the parts of one shard, or one part in place."""
    by_shard: dict[str, list[Target]] = {}
    for file in manifest.files:
        offset = 0
        for part in file.parts:
            target = (file, offset, part)
            offset += part.size_bytes
            if part.shard:
                by_shard.setdefault(part.shard, []).append(target)
            else:
                yield [target]
    yield from by_shard.values()


def _fetcher(
    store: ObjectStore, manifest: FilesManifest, folder: Path
) -> Callable[[list[Target]], None]:
    source = None if manifest.in_place is None else open_source(manifest.in_place)
    listed = {} if source is None else {file.path: file for file in source.files()}

    buffers = Buffers()

    def read_in_place(file: FrozenFile, part: Part) -> memoryview:
        if source is None or file.path not in listed:
            raise _lost(manifest, [file], f"it is no longer in {manifest.in_place}")
        buffer = buffers.view(part.size_bytes)
        try:
            source.read(listed[file.path], part.offset, buffer)
        except InvalidInput as error:
            raise _lost(manifest, [file], "it was changed") from error
        return buffer

    def fetch(targets: list[Target]) -> None:
        files = [file for file, _, _ in targets]
        shard: memoryview | None = None
        if source is None:
            key = files_shard_key(manifest.dataset, targets[0][2].shard)
            buffer = buffers.view(max(part.offset + part.size_bytes for _, _, part in targets))
            size_bytes = store.read_into(key, buffer)
            if size_bytes is None:
                raise _lost(manifest, files, f"{key} is missing")
            shard = buffer[:size_bytes]
        for file, offset, part in targets:
            if shard is not None:
                data = shard[part.offset : part.offset + part.size_bytes]
            else:
                data = read_in_place(file, part)
            if len(data) != part.size_bytes or digest(data) != part.blake3:
                raise _lost(manifest, [file], f"its bytes at {offset} have another hash")
            _write_at(folder / file.path, offset, data)

    return fetch


def _lost(manifest: FilesManifest, files: list[FrozenFile], why: str) -> DataRejected:
    return DataRejected(
        f"Cannot load {named([file.path for file in files])} of the snapshot of "
        f"{manifest.dataset}: {why}. Nothing was trained on these bytes; `tracks fsck` says what else "
        "is wrong, and the same files added again bring back what the store lacks."
    )


def _write_at(path: Path, offset: int, data: memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        while data:
            count = os.pwrite(descriptor, data, offset)
            data, offset = data[count:], offset + count
    finally:
        os.close(descriptor)


def _remove(folder: Path) -> None:
    """Remove a folder of ours, its read-only folders too."""
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path, name: str, waits: Waits) -> Iterator[None]:
    """Hold the machine's lock of one snapshot; the kernel lets it go with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        until = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise StoreUnavailable(
                        f"Another process has been fetching or verifying {folder / name} for "
                        f"{LOCK_S_MAX / 3600:g} h; see what it does."
                    ) from None
                waits()
                time.sleep(LOCK_POLL_S)
        yield
