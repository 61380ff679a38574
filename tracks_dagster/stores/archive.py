"""An exported run as an object store that can only be read, and the file that it is written to.

A tar.gz cannot be read from the middle, so opening one unpacks it into a temporary file, once, and
remembers where each member lies. What is written keeps to the bounds that `unpacking` reads by.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from itertools import islice
from pathlib import Path

from tracks_dagster.stores.unpacking import unpack
from tracks_dagster.track.archives import (
    MANIFEST,
    MEMBER_BYTES_MAX,
    MEMBERS_MAX,
    NAMES_CHARACTERS_MAX,
    STORE,
    TOTAL_BYTES_MAX,
    ArchiveManifest,
    parse_manifest,
)
from tracks_dagster.track.errors import InvalidInput, StoreUnsuitable
from tracks_dagster.track.ports import LEFTOVER_AGE_S

Add = Callable[[str, bytes], None]  # (name of a member, its bytes)


class ArchiveStore:
    """The port `ObjectStore` over one archive: every write is refused. Safe from several threads."""

    def __init__(self, path: Path) -> None:
        """Unpack `path`; raises as `unpack`."""
        self._path = path
        self._lock = threading.Lock()
        self._file, self._places = unpack(path)
        weakref.finalize(self, self._file.close)
        self._names = sorted(self._places)

    @property
    def url(self) -> str:
        """The archive's path."""
        return str(self._path)

    def names(self) -> list[str]:
        """Return the name of every member, sorted; objects are those below `store/`."""
        return list(self._names)

    def member(self, name: str) -> bytes | None:
        """Return the bytes of a member, or None when there is none."""
        place = self._places.get(name)
        if place is None:
            return None
        offset, size = place
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size)

    def manifest(self) -> ArchiveManifest:
        """Return what it says of itself; raises StoreUnsuitable when that cannot be read."""
        data = self.member(MANIFEST)
        if data is None:
            raise StoreUnsuitable(
                f"{self._path} has no {MANIFEST}: it is no export of ours, or cut."
            )
        try:
            return parse_manifest(data)
        except StoreUnsuitable as error:
            raise type(error)(f"Cannot read the archive {self._path}. {error}") from error

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None when there is none."""
        return self.member(STORE + key)

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        """Read the object into the start of `buffer`; return its size in bytes."""
        data = self.get(key)
        if data is None:
            return None
        fitting = min(len(data), len(buffer))
        buffer[:fitting] = data[:fitting]
        return len(data)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`, in ascending order."""
        whole = STORE + prefix
        for name in islice(self._names, bisect_left(self._names, whole), None):
            if not name.startswith(whole):
                return
            yield name.removeprefix(STORE)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield what follows `prefix` up to the next "/", once each."""
        rests = (key.removeprefix(prefix) for key in self.list(prefix))
        return iter(dict.fromkeys(rest.partition("/")[0] for rest in rests if "/" in rest))

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Refuse: raises StoreUnsuitable."""
        raise self._refused(f"create {key}")

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Refuse: raises StoreUnsuitable."""
        raise self._refused(f"write {key}")

    def delete(self, key: str) -> None:
        """Refuse: raises StoreUnsuitable."""
        raise self._refused(f"delete {key}")

    def sweep(self, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
        """Nobody was killed while writing here."""
        return 0

    def _refused(self, what: str) -> StoreUnsuitable:
        return StoreUnsuitable(
            f"Cannot {what}: {self._path} is an exported run, which can only be read. Set "
            "TRACKS_STORE to a store to write to."
        )


def is_archive(path: Path) -> bool:
    """Tell whether `path` names an exported run: any other store is a folder."""
    return os.access(path, os.F_OK) and path.is_file()


@contextmanager
def write_archive(path: Path, *, overwrite: bool = False) -> Iterator[Add]:
    """Give what adds members to a new archive at `path`; on an error nothing is left there.

    The same members in the same order make the same bytes: no times, users or file names are in it.
    Raises InvalidInput when the file is there and may not be replaced, cannot be written, or would be
    larger than what can be read again.
    """
    if os.access(path, os.F_OK) and not overwrite:
        raise InvalidInput(f"{path} exists; give --force to replace it, or another name.")
    if path.name in ("", ".."):
        raise InvalidInput(f"Cannot write {path}: it names a folder, no file.")
    scratch = path.with_name(f".{path.name}.partial")
    try:
        with (
            scratch.open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
            tarfile.open(mode="w|", fileobj=packed, format=tarfile.PAX_FORMAT) as tar,
        ):
            yield _Members(tar).add
        scratch.replace(path)
    except OSError as error:
        raise InvalidInput(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # a name that no file can have
            scratch.unlink(missing_ok=True)


class _Members:
    """Adds members to an archive, up to the bounds by which it is read."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._count = self._names_characters = 0
        self._total_bytes = 0

    def add(self, name: str, data: bytes) -> None:
        """Add one; raises InvalidInput when it or all of them are too large."""
        self._count += 1
        self._total_bytes += len(data)
        self._names_characters += len(name)
        if self._names_characters > NAMES_CHARACTERS_MAX:
            raise InvalidInput(
                f"Cannot export: the names in an archive have at most {NAMES_CHARACTERS_MAX} "
                "characters in all. Leave out --with-chunks, or copy the store."
            )
        if self._count > MEMBERS_MAX or self._total_bytes > TOTAL_BYTES_MAX:
            raise InvalidInput(
                f"Cannot export: an archive holds at most {MEMBERS_MAX} files and {TOTAL_BYTES_MAX} "
                "bytes. Leave out --with-chunks, or copy the store."
            )
        if len(data) > MEMBER_BYTES_MAX:
            raise InvalidInput(
                f"Cannot export: {name} has {len(data)} bytes, and an archive holds none of more than "
                f"{MEMBER_BYTES_MAX}. Copy the store instead."
            )
        self._tar.addfile(_header(name, len(data)), BytesIO(data))
        self._tar.members = []  # type: ignore[attr-defined]  # it would remember them all


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o644
    return header
