"""Unpack an exported run into one temporary file without a name.

An archive may come from anybody. So nothing is written under a name that stands in it, what is no plain
file is refused, and what it may take of disk and memory is bounded before a byte of it is copied. The
file goes with the process, or at once when the archive is refused.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from tracks_dagster.track.archives import (
    MEMBER_BYTES_MAX,
    MEMBERS_MAX,
    NAME_CHARACTERS_MAX,
    NAMES_CHARACTERS_MAX,
    TOTAL_BYTES_MAX,
)
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable, StoreUnsuitable

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
    """Why an archive is no export of ours, in a sentence."""


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
            f"{path} is refused: {why} `tracks export` writes no such file; ask whoever sent it. "
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
    """Read to the end, where gzip's own checksum stands."""
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
