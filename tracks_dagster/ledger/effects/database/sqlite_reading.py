"""How the ledger's SQLite file is opened by whoever only reads, also where nothing can be written.

A file in WAL mode is read with the help of two files beside it, which SQLite makes and removes. On a
read-only mount, or as another user, it cannot, and refuses. What is done then, by what lies there:

- no WAL, or an empty one: the file is whole, and is read as `immutable`. SQLite then takes no notice of
  a writer elsewhere (the home's owner, or another host), so the file's times and sizes are compared
  before and after; `check_unchanged` refuses what was read while it changed. No copy: a ledger of a
  million attempts has 7 GB.
- a WAL and its index: a writer lives, or was killed; SQLite reads along with it.
- a WAL without an index, as a copy of a home may have: both are copied to a folder of this process's
  own, where SQLite can recover them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tracks_dagster.track.errors import LedgerError

Seen = tuple[tuple[int, int] | None, ...]  # (modified at in ns, bytes) of the file and of its WAL


@dataclass(frozen=True, slots=True)
class Reading:
    """The URI to open, and what the file looked like where a writer would go unnoticed, else None."""

    path: Path
    uri: str
    seen: Seen | None = None

    def check_unchanged(self) -> None:
        """Raise LedgerError when the file was written since it was opened."""
        if self.seen is not None and _look(self.path) != self.seen:
            raise LedgerError(
                f"The ledger at {self.path} was written while it was read, where this user cannot take "
                "part in its locks; ask again."
            )


def to_read(path: Path) -> Reading:
    """Return how the file is read from here; raises LedgerError when it cannot be copied."""
    wal, index = _beside(path, "-wal"), _beside(path, "-shm")
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return Reading(path, _uri(path, "rw"))
    seen = _look(path)
    if seen[1] is None or seen[1][1] == 0:
        return Reading(path, _uri(path, "ro&immutable=1"), seen)
    if os.access(index, os.R_OK):
        return Reading(path, _uri(path, "ro"))
    folder = Path(tempfile.mkdtemp(prefix="tracks-ledger-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        for each in (path, wal):
            shutil.copyfile(each, folder / each.name)
    except OSError as error:
        raise LedgerError(
            f"Cannot read the ledger at {path}: it has records in {wal.name}, and cannot be copied to "
            f"{folder} ({error.strerror or error})."
        ) from error
    return Reading(path, _uri(folder / path.name, "rw"), seen)


def _look(path: Path) -> Seen:
    return tuple(_size_and_time(each) for each in (path, _beside(path, "-wal")))


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.absolute()))}?mode={mode}"
