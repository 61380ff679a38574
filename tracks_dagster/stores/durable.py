"""Files and folders that are on the medium when a call returns: all that `LocalStore` syncs with.

A file's bytes and its name are durable apart: the name only once its folder was synced as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

# On macOS fsync(2) leaves the bytes in the drive's cache; only this flushes it.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NO_FULL_SYNC = frozenset({errno.ENOTSUP, errno.EINVAL, errno.ENOTTY})  # network file systems


def write_new(path: Path, data: bytes | memoryview, *, mode: int = 0o666) -> None:
    """Create the file `path` with `data`, durable but for its name; raises OSError.

    mode: of the file; the umask takes away from it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        _sync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, whoever gave them; raises OSError."""
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
