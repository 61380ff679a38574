"""An exported run as an object store that can only be read, and the file that it is written to.

A tar.gz cannot be read from the middle, so opening one unpacks it into a temporary file without a
name, once, and remembers where each member lies. Memory is bounded by the largest object, disk is not:
the temporary folder has to hold the unpacked archive.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO

from tracks_dagster.core.archives import MANIFEST, STORE, ArchiveManifest, parse_manifest
from tracks_dagster.core.errors import InvalidInput, StoreUnavailable, StoreUnsuitable
from tracks_dagster.core.ports import LEFTOVER_AGE_S

COPY_BYTES = 1024 * 1024  # at a time, while it is unpacked
MEMBERS_MAX = 5_000_000  # of one archive

Add = Callable[[str, bytes], None]  # (name of a member, its bytes)


class ArchiveStore:
    """The port `ObjectStore` over one archive: every write is refused. Safe from several threads."""

    def __init__(self, path: Path) -> None:
        """Unpack `path`; raises StoreUnsuitable for what is no archive or was cut short."""
        self._path = path
        self._lock = threading.Lock()
        self._file, self._places = _unpacked(path)
        weakref.finalize(self, self._file.close)
        self._keys = sorted(
            name.removeprefix(STORE) for name in self._places if name.startswith(STORE)
        )

    @property
    def url(self) -> str:
        """The archive's path."""
        return str(self._path)

    def names(self) -> list[str]:
        """Return the name of every member, sorted; objects are those below `store/`."""
        return sorted(self._places)

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
            raise StoreUnsuitable(f"Cannot read the archive {self._path}. {error}") from error

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
        return (key for key in self._keys if key.startswith(prefix))

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
    return path.is_file()


@contextmanager
def write_archive(path: Path, *, overwrite: bool = False) -> Iterator[Add]:
    """Give what adds members to a new archive at `path`; on an error nothing is left there.

    The same members in the same order make the same bytes: no times, users or file names are in it.
    Raises InvalidInput when the file is there and may not be replaced, or cannot be written.
    """
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path} exists; give --force to replace it, or another name.")
    scratch = path.with_name(f".{path.name}.partial")
    try:
        with (
            scratch.open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed,
            tarfile.open(mode="w|", fileobj=packed, format=tarfile.PAX_FORMAT) as tar,
        ):
            yield lambda name, data: tar.addfile(_header(name, len(data)), BytesIO(data))
        scratch.replace(path)
    except OSError as error:
        raise InvalidInput(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        scratch.unlink(missing_ok=True)


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o644
    return header


def _unpacked(path: Path) -> tuple[IO[bytes], dict[str, tuple[int, int]]]:
    """Return a temporary file of every member's bytes, and name → (offset, size in bytes)."""
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the store
    places: dict[str, tuple[int, int]] = {}
    try:
        with gzip.open(path) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            for header in tar:
                source = tar.extractfile(header) if header.isreg() else None
                if source is None or header.name in places or len(places) >= MEMBERS_MAX:
                    raise StoreUnsuitable(
                        f"{path} holds {header.name!r} twice or as no plain file: it is no export."
                    )
                places[header.name] = (unpacked.tell(), header.size)
                shutil.copyfileobj(source, unpacked, COPY_BYTES)
            while packed.read(COPY_BYTES):  # to the end, where its own checksum stands
                pass
    except FileNotFoundError as error:
        unpacked.close()
        raise InvalidInput(
            f"There is no archive {path}; `tracks export RUN` writes one."
        ) from error
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        unpacked.close()
        raise StoreUnsuitable(
            f"{path} cannot be unpacked ({error}): it was cut short or changed on its way. Compare "
            "its sha256 with that of the sender, and fetch it again."
        ) from error
    except OSError as error:
        unpacked.close()
        raise StoreUnavailable(f"Cannot read {path}: {error.strerror or error}.") from error
    return unpacked, places
