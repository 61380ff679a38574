"""An object store in a folder: one file an object, durable when a call returns.

A new object is written whole under `~partial`, fsynced, and then given its name: by link(2), which
fails when the name is taken, or by rename(2), which replaces. So a reader never sees half an object,
and what a killed writer left behind has no key. Nothing created or deleted outlives a power loss
without all that this store object had read before. Meant for one machine, or for a shared file
system with working link(2). A key cannot be both an object and the folder of others.

Below a folder that other users may not enter, as TRACKS_HOME is, objects are their writer's alone, so
that they stay so when they are copied or the folder is opened. Elsewhere a store may be shared on
purpose, and the umask decides.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO
from itertools import islice
from pathlib import Path

from tracks_dagster.track.errors import StoreUnavailable, StoreUnsuitable
from tracks_dagster.track.ports import LEFTOVER_AGE_S, check_key, is_key, is_part
from tracks_dagster.track.text.private_files import file_mode

PARTIAL_FOLDER = "~partial"  # "~" is in no key, so nothing in it is ever listed
FOLDERS_MAX = 10_000  # remembered by one store object, about 2 MB
BLOCK_BYTES = 4096  # what a disk takes at least past the page cache
DIRECT_BYTES_MIN = 1024 * 1024  # less is written sooner by a copy
SWEPT_MAX = 10_000  # files looked at by one sweep; the next one continues

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_WHAT_TO_DO = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EROFS: "the file system is read-only; mount it writable or name another folder",
    errno.ESTALE: "the file server has another folder there now; mount it again",
    errno.EACCES: "this user may not do that; change its permissions or name another folder",
    errno.EPERM: "this user may not do that; change its permissions or name another folder",
    errno.ENOENT: "its folder is gone: it was moved, removed or unmounted",
    errno.ENOTDIR: "there is a file where a folder has to be; name another folder",
    errno.EEXIST: "there is a file where a folder has to be; name another folder",
}


class LocalStore:
    """The port `ObjectStore` over a folder that exists. Safe from several threads and processes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._partial = root / PARTIAL_FOLDER
        self._durable: set[Path] = {root}
        self._read: set[Path] = set()  # folders of objects whose names may not be durable yet
        self._settling = threading.Lock()
        self._mode: int | None = None  # of an object's file, looked up at the first write

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return str(self._root)

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """Return the object's bytes, or None when there is none."""
        with self._opened(key) as file:
            if file is None:
                return None
            return file.readall() if bytes_max is None else _first(file, bytes_max + 1)

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        """Read the object into the start of `buffer`; return its size in bytes."""
        with self._opened(key) as file:
            if file is None:
                return None
            filled = 0
            while count := file.readinto(buffer[filled:]):  # ends: `buffer` is full or the file is
                filled += count
            return os.fstat(file.fileno()).st_size

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create the object if there is none; True when this call created it."""
        path = self._path(key)
        with _translated(f"create {key} in {self.url}"), self._written(data) as partial:
            self._make_folder(path.parent)
            self._settle()
            created = self._link(partial, path)
            # Also when it was taken: what the caller reads next is then durable as well.
            sync_folder(path.parent)
            return created

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object, replacing what was there."""
        path = self._path(key)
        with _translated(f"write {key} in {self.url}"), self._written(data) as partial:
            self._make_folder(path.parent)
            partial.replace(path)
            sync_folder(path.parent)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`, in ascending order."""
        with _translated(f"list {prefix}* in {self.url}"):
            self._root.stat()
            folder = prefix[: prefix.rfind("/") + 1]  # beside it there may be thousands of runs
            if all(is_part(part) for part in folder.split("/")[:-1]):
                yield from _keys(self._root / folder, folder, prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield what follows `prefix` up to the next "/", once each."""
        with _translated(f"list the folders of {prefix} in {self.url}"):
            self._root.stat()
            if all(is_part(part) for part in prefix.split("/")[:-1]):
                names = _names(self._root / prefix)
                yield from (name.removesuffix("/") for name in names if name.endswith("/"))

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none. Its folder stays.

        Not synced, which would double the cost of a deletion: after a power loss some of what was
        removed may be there again, in any order. What a collector removed it then finds again, by
        the manifest or among the leftovers of an ended attempt.
        """
        if not is_key(key):
            return
        path = self._path(key)
        with _translated(f"delete {key} in {self.url}"):
            self._settle()
            try:
                path.unlink(missing_ok=True)
            except NotADirectoryError:
                return

    def sweep(self, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
        """Remove what killed writers left in `~partial`; a writer renews its file's age at every
        write, and one that was stopped for longer than that gets an error for its write."""
        swept = 0
        with _translated(f"sweep {self._partial}"):
            before = time.time() - older_than_s
            for path in _files(self._partial):
                with suppress(FileNotFoundError):  # its writer, or another sweep, was faster
                    if path.stat().st_mtime < before:
                        path.unlink()
                        swept += 1
        return swept

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextmanager
    def _opened(self, key: str) -> Iterator[FileIO | None]:
        """Give the object's file, read without a buffer in between; None when there is none."""
        if not is_key(key):
            yield None
            return
        path = self._root / key
        with _translated(f"read {key} in {self.url}"):
            try:
                file = FileIO(path)
            except (IsADirectoryError, NotADirectoryError):
                file = None
            except FileNotFoundError:
                # An unmounted store must not look like an empty one.
                self._root.stat()
                file = None
            if file is not None:
                if len(self._read) >= FOLDERS_MAX:
                    self._settle()
                self._read.add(path.parent)
            with file or nullcontext():
                yield file

    def _settle(self) -> None:
        """Make durable what was read so far.

        Its writer may be between giving the name and syncing it. What this caller creates or deletes
        on the strength of it must not outlive it: no record without the one before it, no chunk
        gone without the decision to delete it.
        """
        with self._settling:  # anyone who comes meanwhile waits for what is being synced
            for folder in tuple(self._read):
                self._read.discard(folder)
                try:
                    sync_folder(folder)
                except FileNotFoundError:
                    continue  # a person removed it, and what was read with it
                except OSError:
                    self._read.add(folder)
                    raise

    @contextmanager
    def _written(self, data: bytes | memoryview) -> Iterator[Path]:
        """Give a durable file of `data` without a key; it is gone afterwards."""
        self._partial.mkdir(exist_ok=True)
        path = self._partial / secrets.token_hex(16)
        try:
            self._mode = self._mode or file_mode(_modes(self._root))
            write_new(path, data, mode=self._mode)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _link(self, partial: Path, path: Path) -> bool:
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise StoreUnsuitable(
                    f"The file system of {self.url} cannot make hard links ({error.strerror}), so "
                    "two writers could both win there; keep the store on another one, or on S3."
                ) from error
            raise
        return True

    def _make_folder(self, folder: Path) -> None:
        """Make `folder` durable; its parent is synced even when another process made it."""
        if folder in self._durable:
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
        if len(self._durable) >= FOLDERS_MAX:
            self._durable = {self._root}
        self._durable.add(folder)


def _first(file: FileIO, count: int) -> bytes:
    """Return at most so many bytes; one read may give fewer than there are."""
    found = b""
    while len(found) < count and (data := file.read(count - len(found))):
        found += data
    return found


def make_root(root: Path) -> None:
    """Make the folder of a store, durably; raises StoreUnavailable."""
    with _translated(f"make the folder {root}"):
        missing = [folder for folder in (root, *root.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)
        if not root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))


def _modes(root: Path) -> Iterator[int]:
    return (folder.stat().st_mode for folder in (root, *root.absolute().parents))


def _keys(folder: Path, parent: str, prefix: str) -> Iterator[str]:
    """Yield the keys under `folder`, whose own key is `parent`, ending with "/" unless it is empty.

    A folder sorts as its name with "/", which is where its keys stand among all keys.
    """
    for name in _names(folder):
        key = parent + name
        if name.endswith("/"):
            if key.startswith(prefix) or prefix.startswith(key):
                yield from _keys(folder / name, key, prefix)
        elif key.startswith(prefix):
            yield key


def _files(folder: Path) -> list[Path]:
    """Return at most 10 000 files of `folder`, in no order; none when there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            files = (Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False))
            return list(islice(files, SWEPT_MAX))
    except FileNotFoundError:
        return []


def _names(folder: Path) -> list[str]:
    """Return what lies in `folder` in the order of keys; a folder's name ends with "/"."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name + "/" if _is_folder(entry) else entry.name
                for entry in entries
                if is_part(entry.name)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []  # removed meanwhile, or never there


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder; a link to itself is none: it is listed, and reading it fails."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def _without_inodes(error: OSError) -> str | None:
    """Say that the files are too many, where that and not their size is why none can be made."""
    if error.filename is None:
        return None  # not by making a file: there was no room for its bytes
    folder = next(each for each in Path(error.filename).absolute().parents if each.is_dir())
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    if found.f_files == 0 or found.f_favail > 0 or found.f_bavail == 0:
        return None
    return (
        f"No space left on device for another file: all {found.f_files} inodes are in use (`df -i`), "
        f"while {100 * found.f_bavail // found.f_blocks} % of its bytes are free; remove files and try "
        "again"
    )


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _WHAT_TO_DO.get(error.errno or 0, error.strerror or str(error))
        if error.errno == errno.ENOSPC:
            reason = _without_inodes(error) or reason
        raise StoreUnavailable(f"Cannot {what}: {reason}.") from error


# --- durable --------------------------------------------------------------------------------------
#
# Files and folders that are on the medium when a call returns: all that `LocalStore` syncs with.
#
# A file's bytes and its name are durable apart: the name only once its folder was synced as well.

# On macOS fsync(2) leaves the bytes in the drive's cache; only this flushes it.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_DIRECT: int = getattr(os, "O_DIRECT", 0)  # macOS has none
_NO_FULL_SYNC = frozenset({errno.ENOTSUP, errno.EINVAL, errno.ENOTTY})  # network file systems


def write_new(path: Path, data: bytes | memoryview, *, mode: int = 0o666) -> None:
    """Create the file `path` with `data`, durable but for its name; raises OSError.

    mode: of the file; the umask takes away from it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        rest = memoryview(data)
        rest = rest[_write_past_the_cache(descriptor, rest) :]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _write_past_the_cache(descriptor: int, data: memoryview) -> int:
    """Write the whole blocks of memory that `mmap` gave, as the disk takes them; return their bytes.

    Data that is stored once and may be larger than memory: copied into the page cache it costs thirty
    times the processor time (2026-11, ext4), and what others need is pushed out. 0 for other memory,
    and where the file system cannot do it.
    """
    whole = len(data) - len(data) % BLOCK_BYTES
    if whole < DIRECT_BYTES_MIN or not isinstance(data.obj, mmap.mmap) or _DIRECT == 0:
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _DIRECT)
        return os.write(descriptor, data[:whole])
    except OSError as error:
        if error.errno != errno.EINVAL:  # tmpfs, some network file systems, memory within a page
            raise
        return 0
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, no matter who gave them; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    if _FULL_SYNC is None:
        os.fsync(descriptor)
        return
    try:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    except OSError as error:
        if error.errno not in _NO_FULL_SYNC:
            raise
        os.fsync(descriptor)
