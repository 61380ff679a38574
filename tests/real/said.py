"""What processes said before they were killed: what they were to save, and what a store answered.

It stands in a file beside the store, a JSON line each, which a kill does not touch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex


@dataclass(frozen=True, slots=True)
class Said:
    """What was written down.

    states: (attempt, step) → tensor's name → sha256 of what a save of that step must hold, in the
    order in which the saves were begun. stands: key → sha256 of what the store said that it keeps.
    """

    states: Mapping[tuple[int, int], Mapping[str, str]]
    stands: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Said:
        """Return what stands in the file, the half of a last line excepted."""
        states: dict[tuple[int, int], Mapping[str, str]] = {}
        stands: dict[str, str] = {}
        for line in path.read_bytes().split(b"\n")[:-1]:
            match json.loads(line):
                case ["saves", attempt_id, step, digests]:
                    states[attempt_id, step] = digests
                case ["stands", key, sha256]:
                    stands[key] = sha256
                case ["goes", key]:
                    stands.pop(key, None)
        return cls(states, stands)


class SayingStore:
    """A store that writes down what its caller may rely on from then on."""

    def __init__(self, store: ObjectStore, path: Path) -> None:
        self._store = store
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._write = os.write  # the real one: what is written down is not a call of the store
        self.url, self.get, self.read_into = store.url, store.get, store.read_into
        self.list, self.folders = store.list, store.folders

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create."""
        created = self._store.create(key, data)
        if created:
            self.say("stands", key, sha256_hex(bytes(data)))
        return created

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write; while it goes on, nothing is known of what stood there before."""
        self.say("goes", key)
        self._store.put(key, data)
        self.say("stands", key, sha256_hex(bytes(data)))

    def delete(self, key: str) -> None:
        """Remove; it may be gone from the first moment."""
        self.say("goes", key)
        self._store.delete(key)

    def say(self, *words: object) -> None:
        """Write a line down; it outlives a kill."""
        self._write(self._file, json.dumps(words).encode() + b"\n")
