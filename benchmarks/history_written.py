"""A generated track as it grows: records are sealed and chained as a store would hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tracks_dagster.track.records import Draft, Json, Kind, seal, sha256_hex


@dataclass(slots=True)
class Written:
    """One track. stored: the bytes of its records; objects: what they name, by key, where
    `with_objects` asks for it."""

    name: str
    with_objects: bool = False
    stored: list[bytes] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    _head: str | None = None

    def add(
        self, kind: Kind, body: Mapping[str, Json], at: datetime, attempt_id: int | None = None
    ) -> None:
        """Append one record."""
        seq = len(self.stored)
        uid = sha256_hex(f"{self.name} {seq}".encode())[:32]
        draft = Draft(uid=uid, kind=kind, body=body, attempt_id=attempt_id)
        data = seal(draft, seq=seq, at=at, prev_sha256=self._head)
        self._head = sha256_hex(data)
        self.stored.append(data)
