"""The manifest of a snapshot of files (format 2): which bytes every file has, and where they lie.

A file is a list of parts. A large one is cut into chunks, each an object (a shard) of its own; small
ones lie behind one another in a pack. What is in a pack follows from the files' content alone, so the
same files give the same id in any home, and one changed file changes one pack. A snapshot in place has
no shards: its parts lie in the files where they are. `data.effects.freezing` writes what this names,
and `stores.local_files` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import NamedTuple

from tracks_dagster.track.errors import DataRejected
from tracks_dagster.track.json_text import SNAPSHOT_BYTES_MAX, parse_json
from tracks_dagster.track.records import Json, canonical_json, sha256_hex

FILES_FORMAT = 2
FILES = "files"  # the kind of such a dataset
CHUNK_BYTES = 32 * 1024 * 1024  # hashed by a thread each; S3 takes it in one request
SMALL_BYTES = 1024 * 1024  # a smaller file goes into a pack
PACK_BYTES_MIN = 2 * 1024 * 1024
PACK_BYTES_MORE = 2 * 1024 * 1024  # that a pack takes in after the least, on average
PACK_BYTES_MAX = 16 * 1024 * 1024
FILES_MAX = 1_000_000  # of one snapshot: its manifest is read whole

_as_json = json.JSONEncoder(ensure_ascii=False).encode  # as canonical_json has a string


class Part(NamedTuple):
    """Some bytes of a file. offset: where they begin in the shard, or in the file itself in place.

    A tuple, as `FrozenFile` is: a snapshot may have a million of them.
    """

    shard: str  # its name; "" in place
    offset: int
    size_bytes: int
    blake3: str


class FrozenFile(NamedTuple):
    """A file of a snapshot. path: below the snapshot's folder, with "/"."""

    path: str
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def digests(self) -> tuple[str, ...]:
        """The blake3 of its parts."""
        return tuple(part.blake3 for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class FilesManifest:
    """Files of a snapshot in the order of their paths. in_place: the folder or s3:// prefix that holds
    them, None when the store does."""

    dataset: str
    in_place: str | None
    files: tuple[FrozenFile, ...]

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(part.size_bytes for file in self.files for part in file.parts)

    @cached_property
    def shards(self) -> dict[str, tuple[Part, ...]]:
        """The parts of every shard, by the shard's name, in the order of their offsets."""
        found: dict[str, dict[int, Part]] = {}
        for file in self.files:
            for part in file.parts:
                if part.shard:
                    found.setdefault(part.shard, {})[part.offset] = part
        return {name: tuple(at[o] for o in sorted(at)) for name, at in found.items()}


class EncodedFiles(NamedTuple):
    """Consecutive files as a manifest has them: bytes that are joined with those of other files.

    Kept beside a pack's hashes, they save what is most of the work of adding the same files again.
    """

    file_count: int
    total_bytes: int
    shards: tuple[str, ...]  # in the order of the files
    text: bytes  # the index in `shards` lies between two NULs, which JSON never has
    logical: bytes  # paths and hashes alone


@dataclass(frozen=True, kw_only=True)
class EncodedManifest:
    """A manifest as it is stored. logical_sha256: of paths and bytes alone, the same for a copy and for
    the files in place."""

    data: bytes  # their sha256 is the snapshot's id
    in_place: str | None
    file_count: int
    shard_count: int
    total_bytes: int
    logical_sha256: str


def encode_files(files: Iterable[FrozenFile]) -> EncodedFiles:
    """Return `files` as `join_files` takes them."""
    shards: dict[str, str] = {"": "-1"}  # in place
    texts, logicals, total_bytes = [], [], 0
    for path, parts in files:
        name = _as_json(path)
        found, bytes_alone = [], []
        for shard, offset, size_bytes, blake3 in parts:
            number = shards.setdefault(shard, f"\0{len(shards) - 1}\0")
            found.append(f'[{number},{offset},{size_bytes},"{blake3}"]')
            bytes_alone.append(f'[{size_bytes},"{blake3}"]')
            total_bytes += size_bytes
        texts.append(f"[{name},[{','.join(found)}]]")
        logicals.append(f"[{name},[{','.join(bytes_alone)}]]")
    return EncodedFiles(
        file_count=len(texts),
        total_bytes=total_bytes,
        shards=tuple(shards)[1:],
        text=",".join(texts).encode(),
        logical=",".join(logicals).encode(),
    )


def join_files(
    dataset: str, in_place: str | None, encoded: Sequence[EncodedFiles]
) -> EncodedManifest:
    """Return the manifest of files that were encoded in turn, none of them without a file."""
    numbers: dict[str, int] = {}
    texts = []
    for files in encoded:
        here = {
            b"%d" % index: b"%d" % numbers.setdefault(shard, len(numbers))
            for index, shard in enumerate(files.shards)
        }
        pieces = files.text.split(b"\0")
        pieces[1::2] = [here[index] for index in pieces[1::2]]
        texts.append(b"".join(pieces))
    logical_sha256 = sha256_hex(b"[%b]" % b",".join(files.logical for files in encoded))
    total_bytes = sum(files.total_bytes for files in encoded)
    around = canonical_json(
        {
            "format": FILES_FORMAT,
            "kind": FILES,
            "dataset": dataset,
            "in_place": in_place,
            "shards": list(numbers),
            "files": [],
            "logical_sha256": logical_sha256,
            "total_bytes": total_bytes,
        }
    )
    before, begin, after = around.partition(b'"files":[')  # in a string its quotes are escaped
    return EncodedManifest(
        data=b"".join((before, begin, b",".join(texts), after)),
        in_place=in_place,
        file_count=sum(files.file_count for files in encoded),
        shard_count=len(numbers),
        total_bytes=total_bytes,
        logical_sha256=logical_sha256,
    )


def is_files_manifest(data: bytes) -> bool:
    """Whether these bytes are a manifest of files; other manifests are of rows."""
    try:
        return bool(parse_json(data, bytes_max=SNAPSHOT_BYTES_MAX)["format"] == FILES_FORMAT)
    except (ValueError, KeyError, TypeError):
        return False


def parse_files_manifest(data: bytes) -> FilesManifest:
    """Return the manifest; raises DataRejected for other data, or where it leads out of its folder."""
    try:
        value: Json = parse_json(data, bytes_max=SNAPSHOT_BYTES_MAX)
        if value["format"] != FILES_FORMAT or value["kind"] != FILES:
            raise ValueError(f"it has format {value['format']!r} and kind {value['kind']!r}")
        names: list[str] = [*map(str, value["shards"]), ""]  # -1 is in place
        files = tuple(
            FrozenFile(
                path=_checked_path(path),
                parts=tuple(Part(names[n], int(o), int(s), str(h)) for n, o, s, h in parts),
            )
            for path, parts in value["files"]
        )
        return FilesManifest(dataset=str(value["dataset"]), in_place=value["in_place"], files=files)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataRejected(
            f"The snapshot's manifest cannot be used: {error}. A newer version may have written it; "
            "`tracks fsck` says whether its bytes are whole."
        ) from error


def files_shard_key(dataset: str, name: str) -> str:
    """Return the key of a shard of files."""
    return f"datasets/{dataset}/shards/{name}"


def shard_name(digests: Sequence[str]) -> str:
    """Return the name of the shard of parts with these blake3: known before any byte is read again."""
    return sha256_hex("".join(digests).encode())


def cut(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, bytes) of the parts of a file; none of an empty one."""
    for offset in range(0, size_bytes, CHUNK_BYTES):
        yield offset, min(CHUNK_BYTES, size_bytes - offset)


def part_count(size_bytes: int) -> int:
    """Return how many parts `cut` yields."""
    return -(-size_bytes // CHUNK_BYTES)


def ends_pack(digest: str, size_bytes: int, pack_bytes: int) -> bool:
    """Whether a pack ends after this file of `size_bytes`, which made it `pack_bytes` large.

    The digest decides, by chance as it were: once a pack has the least bytes, each further byte ends
    it as likely as any other. So packs are about as large whatever the files' size is.
    """
    if pack_bytes < PACK_BYTES_MIN:
        return False
    drawn = int(digest[:8], 16) / 2**32
    return drawn * PACK_BYTES_MORE < size_bytes or pack_bytes >= PACK_BYTES_MAX


def _checked_path(path: str) -> str:
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise ValueError(f"{path!r} is not a path below a folder")
    return path
