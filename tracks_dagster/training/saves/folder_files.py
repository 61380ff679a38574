"""The files of a checkpoint's folder: listed, cut into chunks, read, and written back verified.

Nothing here imports torch, so that a command can export a folder on any machine. `folders` commits
what is listed here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISLNK, S_ISREG

from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointWriteFailed, InvalidInput
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.training.saves.layout import Extent, Layout, lay_out
from tracks_dagster.training.saves.manifest import (
    CHUNK_BYTES_MAX,
    FILES,
    FOLDER,
    Manifest,
    check_kind,
    read_chunk_into,
    read_manifest,
)

FILES_MAX = 100_000  # of one folder; a manifest names each
PATH_BYTES_MAX = 1024
READERS = 8  # chunks read and hashed at once
NAMED_MAX = 5  # files that a message names


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSeen:
    """One file as it was listed. identity: changes whenever its bytes are written."""

    path: str
    size_bytes: int
    identity: tuple[int, ...]


def list_folder(folder: Path) -> tuple[FileSeen, ...]:
    """Return every file below `folder`, by path.

    A link to a file inside the folder counts as that file. Raises InvalidInput for what is not a
    folder, and for what could not be restored elsewhere: a link that leads out of it, a link to a
    folder, a socket or a pipe, a name that is not UTF-8, more than 100 000 files.
    """
    if not folder.is_dir():
        raise InvalidInput(
            f"Cannot commit {folder}: it is not a folder; name the one that has the checkpoint."
        )
    root = folder.resolve()
    try:
        found = sorted(_walk(root, root, ""), key=lambda file: file.path)
    except OSError as error:  # it went or changed while it was listed
        raise CheckpointWriteFailed(f"Cannot list {folder}: {error}.") from error
    if len(found) > FILES_MAX:
        raise InvalidInput(
            f"Cannot commit {folder}: it holds {len(found)} files and the limit is {FILES_MAX}; pack "
            "them into fewer."
        )
    return tuple(found)


def _walk(root: Path, folder: Path, prefix: str) -> Iterator[FileSeen]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = prefix + entry.name
            problem = problem_of(path)
            if problem:
                raise InvalidInput(f"Cannot commit {root}: {path!r} {problem}.")
            status = entry.stat(follow_symlinks=False)
            if S_ISLNK(status.st_mode):
                target = Path(entry.path).resolve()
                if not target.is_relative_to(root) or not target.is_file():
                    raise InvalidInput(
                        f"Cannot commit {root}: {path} is a link to {target}, which is not a file "
                        "of the folder; put the file itself there."
                    )
                status = target.stat()
            if S_ISDIR(status.st_mode):
                yield from _walk(root, Path(entry.path), f"{path}/")
            elif S_ISREG(status.st_mode):
                identity = (status.st_ino, status.st_mtime_ns, status.st_size)
                yield FileSeen(path=path, size_bytes=status.st_size, identity=identity)
            else:
                raise InvalidInput(f"Cannot commit {root}: {path} is neither a file nor a folder.")


def problem_of(path: str) -> str | None:
    """Return why a path cannot be one of a checkpoint's files, or None."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    if size > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX} bytes"
    if "\0" in path or PurePosixPath(path).is_absolute():
        return "is not a path in a folder"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "is not a path in a folder"
    return None


def changes(before: Sequence[FileSeen], after: Sequence[FileSeen]) -> list[str]:
    """Return the paths that are new, gone or other than they were."""
    return sorted({file.path for file in set(before) ^ set(after)})


def name_some(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - NAMED_MAX} more" if len(paths) > NAMED_MAX else ""
    return ", ".join(paths[:NAMED_MAX]) + more


# --- files and chunks -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file, and where in a chunk they lie."""

    path: str
    offset_bytes: int
    extent: Extent


def layout_of(sizes: Sequence[int]) -> Layout:
    """Return how files of these sizes are cut into chunks; the same sizes give the same."""
    return lay_out([("", size) for size in sizes])


def ranges_of(
    files: Sequence[tuple[str, Sequence[tuple[int, Extent]]]],
) -> dict[int, list[FileRange]]:
    """Return which bytes of which files each chunk holds; files: (path, its pieces in order)."""
    found: dict[int, list[FileRange]] = {}
    for path, pieces in files:
        offset = 0
        for index, extent in pieces:
            found.setdefault(index, []).append(FileRange(path, offset, extent))
            offset += extent.size_bytes
    return found


class Buffers(threading.local):
    """One buffer of a chunk's size for each thread, used again and again."""

    def __init__(self) -> None:
        self.bytes = memoryview(bytearray(CHUNK_BYTES_MAX))


def read_ranges(
    root: Path, ranges: Sequence[FileRange], size_bytes: int, buffers: Buffers
) -> memoryview:
    """Return the bytes of a chunk, in this thread's buffer.

    Read and not mapped: a file that is cut short meanwhile would end the process.
    """
    chunk = buffers.bytes[:size_bytes]
    if sum(each.extent.size_bytes for each in ranges) != size_bytes:
        chunk[:] = bytes(size_bytes)  # the gaps: equal files give equal chunks
    for each in ranges:
        _read_range(root / each.path, each, chunk)
    return chunk


def _read_range(path: Path, wanted: FileRange, chunk: memoryview) -> None:
    part = chunk[wanted.extent.offset_bytes : wanted.extent.end_bytes]
    done = 0
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while done < len(part):
                count = os.preadv(descriptor, [part[done:]], wanted.offset_bytes + done)
                if count == 0:
                    break
                done += count
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CheckpointWriteFailed(f"Cannot read {path}: {error}.") from error
    if done < len(part):
        raise CheckpointWriteFailed(
            f"{path} ends at byte {wanted.offset_bytes + done} and was longer when it was listed: "
            "something still writes to the folder."
        )


# --- and back -------------------------------------------------------------------------------------


def read_folder(store: ObjectStore, ref: CheckpointRef) -> tuple[Manifest, str]:
    """Return the manifest of a folder's checkpoint, and the name that the folder had.

    Raises as `read_manifest` does; CheckpointMismatch for a checkpoint of tensors; CheckpointCorrupt
    for files that would lie elsewhere than in their folder.
    """
    manifest = read_manifest(store, ref)
    check_kind(manifest, FILES)
    for entry in manifest.members[FOLDER].tensors:
        problem = problem_of(entry.name)
        if problem:
            raise CheckpointCorrupt(
                f"The manifest {ref.manifest_sha256} has a file {entry.name!r}, which {problem}."
            )
    name = str((manifest.members[FOLDER].values or {}).get("name", ""))
    return manifest, "checkpoint" if "/" in name or problem_of(name) else name


def write_files(
    store: ObjectStore, manifest: Manifest, path: Path, *, share: int = 0, share_count: int = 1
) -> None:
    """Write a share of a checkpoint's files below `path`, every chunk verified before it is written.

    share, share_count: which of the processes that write there together this is; the files are whole
    once all of them have returned. Raises CheckpointCorrupt and OSError.
    """
    entries = manifest.members[FOLDER].tensors
    path.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        file = path / entry.name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()  # an empty one has no chunk
    ranges = ranges_of(
        [
            (
                entry.name,
                [
                    (piece.chunk_index, Extent(piece.offset_bytes, piece.size_bytes))
                    for shard in entry.shards
                    for piece in shard.pieces
                ],
            )
            for entry in entries
        ]
    )
    buffers = Buffers()

    def write(index: int) -> None:
        chunk = manifest.chunks[index]
        if chunk.size_bytes > CHUNK_BYTES_MAX:
            raise CheckpointCorrupt(f"{chunk.key} is said to have {chunk.size_bytes} bytes.")
        part = buffers.bytes[: chunk.size_bytes]
        read_chunk_into(store, chunk, part)
        for each in ranges[index]:
            _write_range(path / each.path, each, part)

    own = sorted(ranges)[share::share_count]
    with ThreadPoolExecutor(READERS, thread_name_prefix="chunk reader") as pool:
        for _ in pool.map(write, own):
            pass


def _write_range(path: Path, wanted: FileRange, chunk: memoryview) -> None:
    part = chunk[wanted.extent.offset_bytes : wanted.extent.end_bytes]
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(part):
            done += os.pwrite(descriptor, part[done:], wanted.offset_bytes + done)
    finally:
        os.close(descriptor)
