"""The logs of a gang's ranks on this machine: found, and read in whole lines while they grow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

BLOCK_BYTES = 64 * 1024  # read at once; a longer line comes in pieces of this size

_NAME = re.compile(r"rank-(?P<rank>[0-9]+)\.log")


def find_logs(folder: Path) -> dict[int, Path]:
    """Return the log of each rank of a gang's work folder, by rank; empty where there are none."""
    try:
        found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return dict(sorted((int(match["rank"]), path) for match, path in found if match))


class GrowingLog:
    """One log, read from its beginning; every call goes on where the last one stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, *, is_complete: bool) -> Iterator[str]:
        """Yield what is new, blocks of whole lines with their ends, and only text that is valid.

        Whole lines, so that a secret and what it is called are cleaned together. is_complete: nothing
        more will come, so a last line without its end counts too.
        """
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while block := file.read(BLOCK_BYTES):
                end = block.rfind(b"\n") + 1
                if not end and (is_complete or len(block) == BLOCK_BYTES):
                    end = len(block)
                if not end:
                    return
                self._offset = file.seek(self._offset + end)
                yield block[:end].decode("utf-8", errors="replace")
