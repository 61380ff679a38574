"""Files outside of any store, to be frozen as a snapshot or verified in place: a folder, or S3.

A source only reads. It names a file's state (its stamp) with every read, so that bytes of two moments
are never taken for one file. What the files mean is not a concern of this module.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.files_manifest import FILES_MAX

if TYPE_CHECKING:
    from tracks_dagster.stores.s3 import S3Store

NAMED_MAX = 5  # files in an error message
DEPTH_MAX = 100  # folders in folders
READ_BY_ALL = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
KIND_AND_READERS = stat.S_IFMT(0o777777) | READ_BY_ALL
SIZE = attrgetter("st_size")
STAMP = attrgetter("st_mtime_ns", "st_ctime_ns", "st_ino")
PLAIN = stat.S_IFREG | READ_BY_ALL  # what needs no second look: one would cost a call of the system


class SourceFile(NamedTuple):
    """A file as it was listed. stamp: changes whenever its bytes do, as far as its owner can tell:
    (mtime_ns, ctime_ns, inode) of a file, the ETag of an object. A tuple, since there may be a million
    of them, made and compared twice for a snapshot."""

    path: str  # below the source, with "/"
    size_bytes: int
    stamp: tuple[int | str, ...]


class Source(Protocol):
    """Files below one place. Safe from several threads."""

    @property
    def url(self) -> str:
        """The absolute folder, or s3://bucket/prefix."""
        ...

    def files(self) -> list[SourceFile]:
        """Return all files in the order of their paths.

        Raises InvalidInput naming what cannot be frozen: a file that cannot be read, a link that leads
        out, a pipe, a name that is not UTF-8.
        """
        ...

    def read(self, file: SourceFile, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the file's bytes from `offset` on.

        Raises InvalidInput when the file is no longer as it was listed.
        """
        ...

    def changes(self, files: Sequence[SourceFile], taken: Iterable[SourceFile]) -> list[str]:
        """Return the paths that came or went since `files` were listed, and of those in `taken` the
        ones that are no longer as they were listed."""
        ...


class Buffers(threading.local):
    """One buffer for each thread, kept for its next part: new memory costs more than a read.

    It begins at a page, so that a store in a folder can write it past the page cache.
    """

    def __init__(self) -> None:
        self._kept = memoryview(b"")

    def view(self, size_bytes: int) -> memoryview:
        """Return memory of that size. What the thread got before is overwritten."""
        if len(self._kept) < size_bytes:
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._kept = memoryview(mmap.mmap(-1, size_bytes, flags=private))
        return self._kept[:size_bytes]


def open_source(place: str) -> Source:
    """Return the source at a path or `s3://bucket/prefix`; raises InvalidInput for none."""
    if place.startswith("s3://"):
        from tracks_dagster.stores.s3 import S3Store

        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        if not bucket or "@" in bucket:
            raise InvalidInput(f"{place!r} names no bucket; write s3://bucket/prefix.")
        return S3Source(S3Store(bucket, prefix.strip("/")))
    path = Path(place).absolute()
    if not place or not os.path.lexists(path):
        raise InvalidInput(f"There is no file or folder {path}; name one, or s3://bucket/prefix.")
    if path.is_dir():
        return FolderSource(path)
    return FolderSource(path.parent, only=path.name)


class FolderSource:
    """The files below a folder; only: one file of it."""

    def __init__(self, root: Path, *, only: str | None = None) -> None:
        self._root = root.resolve()
        self._prefix = f"{self._root}/".replace("//", "/")
        self._only = only

    @property
    def url(self) -> str:
        """The absolute folder."""
        return str(self._root)

    def files(self) -> list[SourceFile]:
        """Return all files in the order of their paths."""
        problems: list[str] = []
        found: list[SourceFile] = []
        for below, entries in self._folders(problems):
            found += self._files_of(below, entries, problems)
            self._check_count(len(found))
        if problems:
            raise InvalidInput(
                f"Cannot freeze {self._root}: {named(problems, '; ')}. Nothing was written."
            )
        return sorted(found, key=itemgetter(0))

    def read(self, file: SourceFile, offset: int, buffer: memoryview) -> None:
        """Fill `buffer`; raises InvalidInput when the file is no longer as it was listed."""
        try:
            descriptor = os.open(self._prefix + file.path, os.O_RDONLY)
            try:
                rest, at = buffer, offset
                while rest and (count := os.preadv(descriptor, [rest], at)):
                    rest, at = rest[count:], at + count
                after = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise InvalidInput(
                f"Cannot read {self._root / file.path}: {error.strerror}. Nothing was recorded."
            ) from error
        if rest or (after.st_size, stamp_of(after)) != (file.size_bytes, file.stamp):
            raise changed(self.url, [file.path])

    def changes(self, files: Sequence[SourceFile], taken: Iterable[SourceFile]) -> list[str]:
        """Look at names, and at the states of `taken` alone: each state is a call of the system."""
        names = {below + entry.name for below, entries in self._folders([]) for entry in entries}
        came_or_went = names.symmetric_difference(map(itemgetter(0), files))
        return sorted(came_or_went.union(f.path for f in taken if not self._is_as_listed(f)))

    def _is_as_listed(self, file: SourceFile) -> bool:
        try:
            status = os.stat(self._prefix + file.path)  # noqa: PTH116  # there may be a million
        except OSError:
            return False
        return (status.st_size, stamp_of(status)) == (file.size_bytes, file.stamp)

    def _folders(self, problems: list[str]) -> Iterator[tuple[str, list[os.DirEntry[str]]]]:
        """Yield what is not a folder, by folder, with the folder's path below this one."""
        folders = [("", 0)]
        while folders:
            below, depth = folders.pop()
            try:
                # By its descriptor: the system finds a file sooner by its name in an open folder.
                descriptor = os.open(self._prefix + below, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                problems.append(f"{self._prefix}{below} cannot be listed ({error.strerror})")
                continue
            try:
                with os.scandir(descriptor) as listed:
                    wanted = (e for e in listed if e.name == self._only) if self._only else listed
                    entries = list(islice(wanted, FILES_MAX + 1))
                self._check_count(len(entries))
                inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                if inner:
                    entries = [e for e in entries if not e.is_dir(follow_symlinks=False)]
                if inner and depth == DEPTH_MAX:
                    path = f"{self._prefix}{below}{inner[0]}"
                    problems.append(f"{path} lies more than {DEPTH_MAX} folders deep")
                else:
                    folders += [(f"{below}{name}/", depth + 1) for name in inner]
                yield below, entries
            except OSError as error:
                problems.append(f"{self._prefix}{below} cannot be listed ({error.strerror})")
            finally:
                os.close(descriptor)

    def _check_count(self, count: int) -> None:
        if count > FILES_MAX:
            raise InvalidInput(
                f"{self._root} holds more than {FILES_MAX} files; pack them into shards (tar, "
                "parquet) and freeze those."
            )

    def _files_of(
        self, below: str, entries: list[os.DirEntry[str]], problems: list[str]
    ) -> list[SourceFile]:
        """Return the files of one folder. There may be a million: little is done for each by itself."""
        try:
            statuses = list(map(os.DirEntry.stat, entries))  # of what a link leads to
        except OSError:
            entries = [entry for entry in entries if self._is_there(below, entry, problems)]
            statuses = list(map(os.DirEntry.stat, entries))  # an entry holds what it found
        paths = [below + entry.name for entry in entries]
        for path, entry, status in zip(paths, entries, statuses, strict=True):
            mode = status.st_mode
            if mode & KIND_AND_READERS == PLAIN and path.isascii() and not entry.is_symlink():
                continue
            if problem := self._problem(path, entry, mode):
                problems.append(problem)
        columns = zip(paths, map(SIZE, statuses), map(STAMP, statuses), strict=True)
        return list(map(tuple.__new__, repeat(SourceFile), columns))

    def _is_there(self, below: str, entry: os.DirEntry[str], problems: list[str]) -> bool:
        try:
            entry.stat()
        except OSError as error:
            problems.append(f"{below}{entry.name} cannot be read ({error.strerror})")
            return False
        return True

    def _problem(self, path: str, entry: os.DirEntry[str], mode: int) -> str | None:
        """Return why this cannot be frozen, None where it can. mode: of what a link leads to."""
        try:
            path.encode()
        except UnicodeEncodeError:
            return f"the name {path!r} is not UTF-8; rename it"
        if entry.is_symlink():
            target = (self._root / path).resolve()
            if not target.is_relative_to(self._root):
                return f"{path} is a link out of the folder, to {target}; copy what it means (`cp -rL`)"
        if stat.S_ISDIR(mode):
            return f"{path} is a link to a folder; copy what it means (`cp -rL`)"
        if not stat.S_ISREG(mode):
            return f"{path} is not a file but a pipe, socket or device; remove it"
        if not os.access(self._prefix + path, os.R_OK):
            return f"{path} cannot be read (permission denied)"
        return None


class S3Source:
    """The objects below a prefix of a bucket, as if it were a folder."""

    def __init__(self, objects: S3Store) -> None:
        self._objects = objects

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return self._objects.url

    def files(self) -> list[SourceFile]:
        """Return all objects in the order of their names, "folders" of consoles left out."""
        found: list[SourceFile] = []
        problems: list[str] = []
        for name, size_bytes, etag in self._objects.objects():
            if name.endswith("/") and size_bytes == 0:
                continue
            if {"", ".", ".."} & set(name.split("/")):
                problems.append(f"{name!r} cannot be the path of a file; rename the object")
            found.append(SourceFile(name, size_bytes, (etag,)))
            if len(found) > FILES_MAX:
                raise InvalidInput(f"{self.url} holds more than {FILES_MAX} objects; pack them.")
        if problems:
            raise InvalidInput(f"Cannot freeze {self.url}: {named(problems, '; ')}.")
        return sorted(found, key=lambda file: file.path)

    def read(self, file: SourceFile, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes of the version that was listed."""
        data = self._objects.read_range(file.path, str(file.stamp[0]), offset, len(buffer))
        if data is None or len(data) != len(buffer):
            raise changed(self.url, [file.path])
        buffer[:] = data

    def changes(self, files: Sequence[SourceFile], taken: Iterable[SourceFile]) -> list[str]:
        """List the objects once more: names and states come in the same answers."""
        return sorted({file.path for file in {*self.files()} ^ {*files}})


def stamp_of(status: os.stat_result) -> tuple[int, int, int]:
    """Return what changes with a file's bytes; ctime is nobody's to set."""
    stamp: tuple[int, int, int] = STAMP(status)
    return stamp


def changed(place: str, paths: Sequence[str]) -> InvalidInput:
    """Return the error for files that were written while they were being frozen."""
    return InvalidInput(
        f"Files of {place} changed while they were being frozen: {named(paths)}. Nothing was "
        "recorded; stop what writes there and freeze it again."
    )


def named(names: Sequence[str], between: str = ", ") -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - NAMED_MAX
    return between.join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
