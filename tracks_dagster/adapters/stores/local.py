"""An object store in a folder: one file an object, durable when a call returns.

A new object is written whole under `~partial`, fsynced, and then given its name: by link(2), which
fails when the name is taken, or by rename(2), which replaces. So a reader never sees half an object,
and what a killed writer left behind has no key. Meant for one machine, or for a shared file system
with working link(2). A key cannot be both an object and the folder of others.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracks_dagster.adapters.stores.keys import check_key, is_part
from tracks_dagster.core.errors import StoreUnavailable, StoreUnsuitable

PARTIAL_FOLDER = "~partial"  # "~" is in no key, so nothing in it is ever listed
DURABLE_FOLDERS_MAX = 10_000  # remembered by one store object, about 2 MB

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_WHAT_TO_DO = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EROFS: "the file system is read-only; mount it writable or name another folder",
    errno.EACCES: "this user may not do that; change its permissions or name another folder",
    errno.EPERM: "this user may not do that; change its permissions or name another folder",
    errno.ENOENT: "its folder is gone; was it moved, removed or unmounted?",
    errno.ENOTDIR: "a file stands where a folder has to be; name another folder",
    errno.EEXIST: "a file stands where a folder has to be; name another folder",
}


class LocalStore:
    """The port `ObjectStore` over a folder that exists. Safe from several threads and processes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._partial = root / PARTIAL_FOLDER
        self._durable: set[Path] = {root}

    @property
    def url(self) -> str:
        """The folder's absolute path."""
        return str(self._root)

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None when there is none."""
        path = self._path(key)
        with _translated(f"read {key} in {self.url}"):
            try:
                return path.read_bytes()
            except (IsADirectoryError, NotADirectoryError):
                return None
            except FileNotFoundError:
                # An unmounted store must not look like an empty one.
                self._root.stat()
                return None

    def create(self, key: str, data: bytes) -> bool:
        """Create the object if there is none; True when this call created it."""
        path = self._path(key)
        with _translated(f"create {key} in {self.url}"), self._written(data) as partial:
            self._make_folder(path.parent)
            created = self._link(partial, path)
            # Also when it was taken: what the caller reads next is then durable as well.
            _sync_folder(path.parent)
            return created

    def put(self, key: str, data: bytes) -> None:
        """Write the object, replacing what was there."""
        path = self._path(key)
        with _translated(f"write {key} in {self.url}"), self._written(data) as partial:
            self._make_folder(path.parent)
            partial.replace(path)
            _sync_folder(path.parent)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`, in ascending order."""
        with _translated(f"list {prefix}* in {self.url}"):
            self._root.stat()
            yield from _keys(self._root, "", prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield what follows `prefix` up to the next "/", once each."""
        with _translated(f"list the folders of {prefix} in {self.url}"):
            self._root.stat()
            names = _names(self._root / prefix)
            yield from (name.removesuffix("/") for name in names if name.endswith("/"))

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none. Its folder stays."""
        path = self._path(key)
        with _translated(f"delete {key} in {self.url}"):
            try:
                path.unlink(missing_ok=True)
            except NotADirectoryError:
                return

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextmanager
    def _written(self, data: bytes) -> Iterator[Path]:
        """Give a durable file of `data` without a key; it is gone afterwards."""
        self._partial.mkdir(exist_ok=True)
        path = self._partial / secrets.token_hex(16)
        try:
            with path.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
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
        _sync_folder(folder.parent)
        if len(self._durable) >= DURABLE_FOLDERS_MAX:
            self._durable = {self._root}
        self._durable.add(folder)


def make_root(root: Path) -> None:
    """Make the folder of a store, durably; raises StoreUnavailable."""
    with _translated(f"make the folder {root}"):
        missing = [folder for folder in (root, *root.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            _sync_folder(folder.parent)
        if not root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _names(folder: Path) -> list[str]:
    """Return what lies in `folder` in the order of keys; a folder's name ends with "/"."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                entry.name + "/" if entry.is_dir() else entry.name
                for entry in entries
                if is_part(entry.name)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []  # removed meanwhile, or never there


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = _WHAT_TO_DO.get(error.errno or 0, error.strerror or str(error))
        raise StoreUnavailable(f"Cannot {what}: {reason}.") from error
