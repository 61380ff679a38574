"""A store on top of another that keeps every change to itself: for a dry run of the real thing.

A dry run is then done by the very code that does the real thing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracks_dagster.track.ports import ObjectStore


class OverlayStore:
    """Implements `ports.ObjectStore`: reads through, writes and deletes only in memory.

    For one thread. Holds everything that was written: small objects only.
    """

    def __init__(self, below: ObjectStore) -> None:
        self._below = below
        self._changed: dict[str, bytes | None] = {}  # None: deleted

    @property
    def url(self) -> str:
        return self._below.url

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        return self._changed[key] if key in self._changed else self._below.get(key, bytes_max)

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        if key not in self._changed:
            return self._below.read_into(key, buffer)
        data = self._changed[key]
        if data is None:
            return None
        fitting = min(len(data), len(buffer))
        buffer[:fitting] = data[:fitting]
        return len(data)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        if self.get(key) is not None:
            return False
        self._changed[key] = bytes(data)
        return True

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._changed[key] = bytes(data)

    def list(self, prefix: str) -> Iterator[str]:
        changed = self._changed.items()
        added = {key for key, data in changed if data is not None and key.startswith(prefix)}
        there = {key for key in self._below.list(prefix) if key not in self._changed}
        return iter(sorted(added | there))

    def folders(self, prefix: str) -> Iterator[str]:
        added = (key.removeprefix(prefix) for key in self._changed if key.startswith(prefix))
        new = {name.split("/")[0] for name in added if "/" in name}
        return iter(sorted(new | set(self._below.folders(prefix))))

    def delete(self, key: str) -> None:
        self._changed[key] = None
