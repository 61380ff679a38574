"""Checkpoints of files that a script wrote itself: a folder into chunks, and back.

Each rank names the folder it sees. Ranks that see the same files share the storing out; what other
ranks see, on other machines or under other paths, is added. The chunks, the manifest and the
commit are those of tensors: a file is a tensor of bytes, named by its path.

A folder that changes while it is stored is refused: what is committed was whole at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from blake3 import blake3

from tracks_dagster.track.errors import CheckpointWriteFailed, InvalidInput
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves.chunk_writer import WRITERS, KnownChunks, store_chunks
from tracks_dagster.training.saves.folder_files import (
    Buffers,
    FileSeen,
    changes,
    layout_of,
    list_folder,
    name_some,
    ranges_of,
    read_folder,
    read_ranges,
    write_files,
)
from tracks_dagster.training.saves.layout import Extent
from tracks_dagster.training.saves.manifest import (
    FILES,
    FOLDER,
    Chunk,
    Manifest,
    Member,
    Piece,
    Shard,
    TensorEntry,
)
from tracks_dagster.training.saves.saving import StagedSave
from tracks_dagster.training.saves.storage_writer import Moment, WrittenCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderView:
    """What one rank sees: the files, and which of the ranks that see the same it is.

    is_shared: every rank sees these files, so that no name can clash. changed: what changed while the
    files were listed, so that they cannot be committed now; empty: nothing.
    """

    name: str
    root: Path
    files: tuple[FileSeen, ...]
    digest: str
    share: int
    share_count: int
    is_shared: bool
    changed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPart:
    """What one rank stored of its view. chunks: by their index in the view's layout.

    files: (path, size), from one rank of each view. contents: of each chunk, the digests of its
    ranges, where names may clash.
    """

    view: str
    files: tuple[tuple[str, int], ...]
    chunks: Mapping[int, Chunk]
    contents: Mapping[int, tuple[str, ...]]


def look(ranks: Ranks, folder: Path) -> FolderView:
    """List `folder` on every rank and return this one's view. Collective.

    Raises InvalidInput on every rank for what one of them cannot commit, and for folders that
    are empty on all.
    """
    ranks.sum([0.0])  # every rank has written its files by now
    files: tuple[FileSeen, ...] = ()
    refused = changed = ""
    try:
        files = list_folder(folder)
    except InvalidInput as error:
        refused = str(error)
    except CheckpointWriteFailed as error:
        changed = str(error)
    listed = [[file.path, *file.identity] for file in files]
    digest = sha256_hex(canonical_json([listed, changed]))
    is_empty = not (files or changed)
    views = ranks.gather({"digest": digest, "is_empty": is_empty, "refused": refused})
    if refused:
        raise InvalidInput(refused)
    for rank, view in enumerate(views):
        if view["refused"]:
            raise InvalidInput(f"Rank {rank}: {view['refused']}")
    if all(view["is_empty"] for view in views):
        raise InvalidInput(f"Cannot commit {folder}: it is empty on every rank.")
    alike = [rank for rank, view in enumerate(views) if view["digest"] == digest]
    return FolderView(
        name=folder.resolve().name,
        root=folder.resolve(),
        files=files,
        digest=digest,
        share=alike.index(ranks.rank),
        share_count=len(alike),
        is_shared=len(alike) == ranks.world_size,
        changed=changed,
    )


class FolderStager:
    """Implements `saving.Stager`: nothing is copied, so training waits for the commit."""

    def __init__(self, launch: Launch, known: KnownChunks) -> None:
        self._launch = launch
        self._known = known
        self._folder = Path()

    def take(self, folder: Path) -> None:
        """Save this folder next."""
        self._folder = folder

    def stage(self, moment: Moment) -> StagedSave:
        """List the folder. Raises as `look` does."""
        view = look(self._launch.ranks, self._folder)
        own = 0 if view.share else sum(file.size_bytes for file in view.files)
        (total_bytes,) = self._launch.ranks.sum([float(own)])
        writer = FolderWriter(self._launch.store, moment, view, self._known)
        return StagedSave(writer=writer, total_bytes=int(total_bytes), is_copied=False)


class FolderWriter:
    """Implements `committing.SaveWriter` for a folder."""

    def __init__(
        self, store: ObjectStore, moment: Moment, view: FolderView, known: KnownChunks
    ) -> None:
        self.moment = moment
        self.chunks: list[Chunk] = []
        self.written_bytes = 0
        self._store = store
        self._view = view
        self._known = known

    def store(self) -> FolderPart:
        """Store this rank's share of the chunks; durable when this returns.

        Raises StoreError; CheckpointWriteFailed when the folder changed meanwhile.
        """
        view = self._view
        if view.changed:
            raise CheckpointWriteFailed(view.changed)
        layout = layout_of([file.size_bytes for file in view.files])
        ranges = ranges_of(
            [(file.path, pieces) for file, pieces in zip(view.files, layout.pieces, strict=True)]
        )
        own = range(view.share, len(layout.chunks), view.share_count)
        contents: dict[int, tuple[str, ...]] = {}
        buffers = Buffers()

        def read(index: int) -> memoryview:
            chunk = read_ranges(view.root, ranges[index], layout.chunks[index].size_bytes, buffers)
            if not view.is_shared:
                parts = [each.extent for each in ranges[index]]
                contents[index] = tuple(
                    blake3(chunk[part.offset_bytes : part.end_bytes]).hexdigest() for part in parts
                )
            return chunk

        reads: list[Callable[[], memoryview]] = [partial(read, index) for index in own]
        self.chunks, self.written_bytes = store_chunks(
            self._store,
            self.moment.prefix,
            reads,
            self._known,
            writers=max(2, WRITERS // view.share_count),
        )
        self._check_unchanged()
        first = view.share == 0
        return FolderPart(
            view=view.digest,
            files=tuple((file.path, file.size_bytes) for file in view.files) if first else (),
            chunks=dict(zip(own, self.chunks, strict=True)),
            contents=contents,
        )

    def encode(self, part: FolderPart) -> Json:
        """Return a part as JSON."""
        return {
            "view": part.view,
            "files": [list(file) for file in part.files],
            "chunks": [[i, c.key, c.blake3, c.size_bytes] for i, c in part.chunks.items()],
            "contents": [[i, list(digests)] for i, digests in part.contents.items()],
        }

    def decode(self, stored: Json) -> FolderPart:
        """Return the part that another rank encoded."""
        return FolderPart(
            view=stored["view"],
            files=tuple((path, size) for path, size in stored["files"]),
            chunks={
                i: Chunk(key=key, blake3=digest, size_bytes=size)
                for i, key, digest, size in stored["chunks"]
            },
            contents={i: tuple(digests) for i, digests in stored["contents"]},
        )

    def finish(self, parts: Sequence[FolderPart]) -> WrittenCheckpoint:
        """Store the manifest of all ranks' parts; raises InvalidInput for names that clash."""
        manifest = make_folder_manifest(self.moment, self._view.name, parts)
        data = manifest.to_bytes()
        moment = self.moment
        ref = CheckpointRef(
            moment.run_id, moment.attempt_id, moment.step, moment.prefix, sha256_hex(data)
        )
        self._store.put(manifest_key(ref), data)
        return WrittenCheckpoint(ref=ref, manifest=manifest, total_bytes=manifest.total_bytes)

    def _check_unchanged(self) -> None:
        changed = changes(self._view.files, list_folder(self._view.root))
        if changed:
            raise CheckpointWriteFailed(
                f"{self._view.root} changed while it was committed: {name_some(changed)}. Commit a "
                "folder once nothing writes to it any more."
            )


def make_folder_manifest(moment: Moment, name: str, parts: Sequence[FolderPart]) -> Manifest:
    """Return the manifest of what all ranks stored. Pure; raises InvalidInput for names that clash."""
    entries, chunks = _entries(moment.step, parts)
    values: dict[str, Json] = {
        "rng": None,
        "data": dict(moment.data),
        "progress": dict(moment.progress),
    }
    members = {key: Member(step=moment.step, values=value) for key, value in values.items()}
    members[FOLDER] = Member(
        step=moment.step,
        kind=FILES,
        values={"name": name},
        tensors=tuple(sorted(entries.values(), key=lambda entry: entry.name)),
    )
    return moment.manifest(chunks, members, is_named=True)


def _entries(
    step: int, parts: Sequence[FolderPart]
) -> tuple[dict[str, TensorEntry], dict[Chunk, int]]:
    """Return the files of all ranks by path, and the number of each chunk that they lie in.

    A file of the same bytes may be several ranks'. Raises InvalidInput.
    """
    indices: dict[Chunk, int] = {}
    entries: dict[str, TensorEntry] = {}
    contents: dict[str, object] = {}
    clashes: list[str] = []
    for view in dict.fromkeys(part.view for part in parts):
        own = [part for part in parts if part.view == view]
        chunks = {index: chunk for part in own for index, chunk in part.chunks.items()}
        digests = {index: each for part in own for index, each in part.contents.items()}
        files = next(part.files for part in own if part.files or part is own[-1])
        layout = layout_of([size for _, size in files])
        ranges = ranges_of(
            [(path, pieces) for (path, _), pieces in zip(files, layout.pieces, strict=True)]
        )
        by_path: dict[str, list[str]] = {path: [] for path, _ in files}
        for index in sorted(digests):
            for each, digest in zip(ranges[index], digests[index], strict=True):
                by_path[each.path].append(digest)
        for (path, size), pieces in zip(files, layout.pieces, strict=True):
            content = (size, by_path[path])
            if path in entries:
                if contents[path] != content:
                    clashes.append(path)
                continue
            contents[path] = content
            placed = [(indices.setdefault(chunks[i], len(indices)), extent) for i, extent in pieces]
            entries[path] = _entry(path, size, placed)
    folders = {
        "/".join(path.split("/")[:n]) for path in entries for n in range(1, path.count("/") + 1)
    }
    clashes += [path for path in entries if path in folders]
    if clashes:
        raise InvalidInput(
            f"Cannot commit step {step}: ranks have different files of one name: "
            f"{name_some(sorted(clashes))}. Give each rank's files names of their own."
        )
    return entries, indices


def _entry(path: str, size: int, pieces: Sequence[tuple[int, Extent]]) -> TensorEntry:
    found = tuple(
        Piece(chunk_index=index, offset_bytes=extent.offset_bytes, size_bytes=extent.size_bytes)
        for index, extent in pieces
    )
    shard = Shard(offsets=(0,), shape=(size,), pieces=found)
    return TensorEntry(name=path, dtype="uint8", shape=(size,), shards=(shard,))


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFolder:
    """A checkpoint's files, written back and verified as far as this rank's share goes."""

    ref: CheckpointRef
    manifest: Manifest
    path: Path


def fetch_folder(
    store: ObjectStore, ref: CheckpointRef, root: Path, *, share: int = 0, share_count: int = 1
) -> FetchedFolder:
    """Write a share of a checkpoint's files below `root`, under the name that their folder had.

    Raises as `read_folder` and `write_files` do.
    """
    manifest, name = read_folder(store, ref)
    path = root / ref.manifest_sha256[:16] / name
    write_files(store, manifest, path, share=share, share_count=share_count)
    return FetchedFolder(ref=ref, manifest=manifest, path=path)
