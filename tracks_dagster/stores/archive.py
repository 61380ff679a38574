"""An exported run: one tar.gz of objects of the store, byte for byte, written, and read as a store.

    README.txt        how to read it, for people
    store/<key>       every object, under its own key
    MANIFEST.json     what is in it and what is not, and the sha256 of every other member

The manifest comes last, so that an archive is written in one pass.

A tar.gz cannot be read from the middle, so opening one unpacks it into a temporary file, once, and
remembers where each member lies. An archive may come from anybody: nothing is written under a name in
it, what is not a plain file is refused, and its use of disk and memory is bounded before a byte is
copied. What is written keeps to the same bounds. The file goes with the process, or at once on a
refusal.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import threading
import weakref
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO

from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import (
    ArchiveNewer,
    InvalidInput,
    StoreUnavailable,
    StoreUnsuitable,
    TrackBroken,
)
from tracks_dagster.track.json_text import MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.ports import LEFTOVER_AGE_S
from tracks_dagster.track.records import canonical_json

ARCHIVE_FORMAT = 1
SUFFIX = ".tar.gz"
README = "README.txt"
MANIFEST = "MANIFEST.json"
STORE = "store/"  # before the key of every object

MEMBERS_MAX = 1_000_000  # files of one archive
NAME_CHARACTERS_MAX = 1024  # of one of them: a key has 900, below `store/`
NAMES_CHARACTERS_MAX = 128 * 1024**2  # of all of them, which are kept in memory
MEMBER_BYTES_MAX = 1024**3  # of one of them: a chunk has 8 MiB, a large manifest 100
TOTAL_BYTES_MAX = 64 * 1024**3  # of all of them, unpacked
Add = Callable[[str, bytes], None]  # (name of a member, its bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Objects that are not in the archive. what: keys or a kind of them; why: in words."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveManifest:
    """What an archive holds.

    run_ids: the exported run, then those that it branched from. head_seqs: track → seq of the last
    record in it. chunks_of: runs whose checkpoints are in it whole. policy_versions: of the decisions.
    members: name → sha256 of its bytes.
    """

    format: int
    run_ids: tuple[str, ...]
    head_seqs: Mapping[str, int]
    chunks_of: tuple[str, ...]
    policy_versions: tuple[str, ...]
    package_version: str
    left_out: tuple[LeftOut, ...]
    members: Mapping[str, str]


def manifest_bytes(manifest: ArchiveManifest) -> bytes:
    """Return the bytes of `MANIFEST.json`: equal for equal archives."""
    return canonical_json(to_json(manifest)) + b"\n"


def parse_manifest(data: bytes) -> ArchiveManifest:
    """Return the manifest; raises StoreUnsuitable for other data, ArchiveNewer for a later format."""
    try:
        stored = parse_json(data, bytes_max=MANIFEST_BYTES_MAX)
        found = stored["format"]
        if isinstance(found, int) and found > ARCHIVE_FORMAT:
            raise ArchiveNewer(
                f"tracks-dagster {str(stored.get('package_version'))[:40]!r} wrote it in format "
                f"{found}, and this version reads {ARCHIVE_FORMAT}. Update this checkout to that "
                "version."
            )
        manifest = from_json(ArchiveManifest, stored)
        if found != ARCHIVE_FORMAT or not isinstance(manifest.members, dict):
            raise ValueError(f"its format is {found!r}")
    except (ValueError, KeyError, TypeError, TrackBroken) as error:
        raise StoreUnsuitable(f"Its {MANIFEST} cannot be read ({error}).") from error
    return manifest


def readme(run_id: str, *, package_version: str) -> str:
    """Return what a person reads who has only the archive."""
    return f"""\
The training run {run_id}, exported by tracks-dagster {package_version}.

Read it with tracks-dagster, on any machine, without a network, a store or a ledger:

    tracks explain --archive THIS_FILE {run_id}        what was tried, why it ended, what to do
    tracks explain --archive THIS_FILE {run_id}/a01    one attempt
    tracks diff --archive THIS_FILE {run_id}/a01 {run_id}/a02
    tracks fsck --archive THIS_FILE                    whether anything in it was changed

Every other command that only reads takes TRACKS_STORE=THIS_FILE.

Without it: store/ holds objects under the keys that they had. store/runs/{run_id}/log/ is the run's
track, one JSON record a file, in order; each names the sha256 of the one before it. An attempt's
evidence (how its processes ended, the tails of their logs) and its journal (a line a step) lie under
store/runs/{run_id}/attempts/<number>/. store/datasets/ holds the tracks of the data and what each
snapshot consists of, without the rows.

{MANIFEST} lists every file with its sha256, and what was left out. `tracks export` makes the same bytes
again from the same records; the one who made this file can tell you its sha256.
"""


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

    def member(self, name: str, bytes_max: int | None = None) -> bytes | None:
        """Return the bytes of a member, or None when there is none; bytes_max: as of `get`."""
        place = self._places.get(name)
        if place is None:
            return None
        offset, size = place
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size if bytes_max is None else min(size, bytes_max + 1))

    def manifest(self) -> ArchiveManifest:
        """Return its manifest; raises StoreUnsuitable when that cannot be read."""
        data = self.member(MANIFEST, MANIFEST_BYTES_MAX)
        if data is None:
            raise StoreUnsuitable(
                f"{self._path} has no {MANIFEST}: it is not an export of ours, or cut."
            )
        try:
            return parse_manifest(data)
        except StoreUnsuitable as error:
            raise type(error)(f"Cannot read the archive {self._path}. {error}") from error

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """Return the object's bytes, or None when there is none."""
        return self.member(STORE + key, bytes_max)

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
    """Whether `path` names an exported run: any other store is a folder."""
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


COPY_BYTES = 1024 * 1024  # at a time
HEADER_BYTES_MAX = 8 * 1024  # of what tar says of one file beside its bytes: a long name
TAIL_BYTES_MAX = 1024 * 1024  # behind the last file: tar fills up to 10 KiB
DISK_SHARE_MAX = 0.5  # of what is free where temporary files lie

Place = tuple[int, int]  # offset, size in bytes


def unpack(path: Path) -> tuple[IO[bytes], dict[str, Place]]:
    """Return a temporary file of every member's bytes, and where in it each lies, by name.

    Raises StoreUnsuitable for what `tracks export` does not write or was cut short, StoreUnavailable
    where the file cannot be read or the disk has no room, InvalidInput where there is no such file.
    """
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the store
    try:
        return unpacked, _unpack(path, unpacked)
    except BaseException:
        unpacked.close()
        raise


class _Refused(Exception):
    """Why an archive is not an export of ours, in a sentence."""


class _Header(tarfile.TarInfo):
    """Refuses, before tarfile reads them into memory, descriptions of files that are too long."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type in (tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE):
            raise _Refused("It describes all of its files at once.")
        if header.type in _DESCRIPTIONS and not 0 <= header.size <= HEADER_BYTES_MAX:
            raise _Refused(f"It describes a file in {header.size} bytes.")
        return header


_DESCRIPTIONS = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def _unpack(path: Path, unpacked: IO[bytes]) -> dict[str, Place]:
    try:
        with gzip.open(path) as packed:
            places = _copy_members(path, packed, unpacked)
            _check_tail(packed)
    except _Refused as why:
        raise StoreUnsuitable(
            f"{path} is refused: {why} `tracks export` writes no such file; ask the one who sent it. "
            "Nothing of it was kept."
        ) from why
    except FileNotFoundError as error:
        raise InvalidInput(
            f"There is no archive {path}; `tracks export RUN` writes one."
        ) from error
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, RecursionError) as error:
        raise StoreUnsuitable(
            f"{path} cannot be unpacked ({error}): it was cut short or changed on its way. Compare "
            "its sha256 with that of the sender, and fetch it again."
        ) from error
    except OSError as error:
        raise StoreUnavailable(f"Cannot read {path}: {error.strerror or error}.") from error
    return places


def _copy_members(path: Path, packed: gzip.GzipFile, unpacked: IO[bytes]) -> dict[str, Place]:
    places: dict[str, Place] = {}
    room_bytes = int(shutil.disk_usage(tempfile.gettempdir()).free * DISK_SHARE_MAX)
    total_bytes = names_characters = 0
    with tarfile.open(fileobj=packed, mode="r|", tarinfo=_Header) as tar:
        for header in _headers(tar):
            names_characters += len(header.name)
            _check(header, places, total_bytes, names_characters)
            if total_bytes + header.size > room_bytes:
                raise _no_room(path, f"it takes more than half of what is free, {room_bytes} bytes")
            places[header.name] = (total_bytes, header.size)
            total_bytes += header.size
            source = tar.extractfile(header)
            assert source is not None  # it is a plain file
            _copy(path, source, unpacked)
    return places


def _headers(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members as they come; tarfile would remember them all."""
    while (header := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]
        yield header


def _check(
    header: tarfile.TarInfo, places: Mapping[str, Place], total_bytes: int, names_characters: int
) -> None:
    """Raise _Refused for a member that no export has; the other two are the sums up to it."""
    name, shown = header.name, repr(header.name[:200])
    if len(name) > NAME_CHARACTERS_MAX:
        raise _Refused(f"The name {shown}… in it has more than {NAME_CHARACTERS_MAX} characters.")
    if names_characters > NAMES_CHARACTERS_MAX:
        raise _Refused(f"Its names have more than {NAMES_CHARACTERS_MAX} characters in all.")
    if not header.isreg() or header.issparse():
        raise _Refused(f"{shown} in it is {_kind(header)}, no plain file.")
    if name.startswith("/") or ".." in PurePosixPath(name).parts or not name.isprintable():
        raise _Refused(f"The name {shown} in it leads out of the archive, or cannot be printed.")
    if name in places:
        raise _Refused(f"It holds {shown} twice.")
    if len(places) >= MEMBERS_MAX:
        raise _Refused(f"It holds more than {MEMBERS_MAX} files.")
    if not 0 <= header.size <= MEMBER_BYTES_MAX:
        raise _Refused(
            f"{shown} in it has {header.size} bytes; none has more than {MEMBER_BYTES_MAX}."
        )
    if total_bytes + header.size > TOTAL_BYTES_MAX:
        raise _Refused(f"Its files have more than {TOTAL_BYTES_MAX} bytes in all.")


def _kind(header: tarfile.TarInfo) -> str:
    if header.issym() or header.islnk():
        return f"a link to {header.linkname[:200]!r}"
    if header.isdir():
        return "a folder"
    return "a device or pipe" if header.isdev() else "a file with holes or of an unknown kind"


def _copy(path: Path, source: IO[bytes], unpacked: IO[bytes]) -> None:
    while block := source.read(COPY_BYTES):
        try:
            unpacked.write(block)
            unpacked.flush()
        except OSError as error:
            raise _no_room(path, error.strerror or str(error)) from error


def _check_tail(packed: gzip.GzipFile) -> None:
    """Read to the end, where gzip's own checksum is."""
    tail_bytes = 0
    while block := packed.read(COPY_BYTES):
        tail_bytes += len(block)
        if tail_bytes > TAIL_BYTES_MAX:
            raise _Refused(f"More than {TAIL_BYTES_MAX} bytes follow its last file.")


def _no_room(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"Cannot unpack {path} into {tempfile.gettempdir()}: {why}. Make room there, or set TMPDIR to "
        "a folder on a larger disk. Nothing of it was kept."
    )
