"""From generated tracks to the ledger's rows, by the projector itself: what `reindex` would write.

The projector reads each track from a store that holds that track alone, and applies to a ledger that
gathers rows. Nothing here knows what a row holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from benchmarks.history_written import Written
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Cursor, Ledger, Row
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.track import log_key

CURSORS = "track_cursors"


class GatheredRows:
    """The part of the port `Ledger` that a first projection needs; `rows` by table, as they came."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = defaultdict(list)

    def cursor(self, track: str) -> Cursor | None:
        """No track was projected before: every one comes once."""
        return None

    def apply(
        self,
        track: str,
        *,
        expected: Cursor | None,
        advanced: Cursor,
        rows: Mapping[str, Sequence[Row]],
    ) -> bool:
        """Keep the rows, and the cursor as a row of its own."""
        for name, of_table in rows.items():
            self.rows[name] += of_table
        cursor = {"track": track, "seq": advanced.seq, "sha256": advanced.sha256}
        self.rows[CURSORS].append(cursor)
        return True


class OneTrack:
    """The part of the port `ObjectStore` that reading one track needs."""

    def __init__(self, track: Written) -> None:
        self._prefix = log_key(track.name, 0).removesuffix("000000000000.json")
        self._stored = track.stored

    def get(self, key: str) -> bytes | None:
        """Return the record that the key names, None after the last one."""
        seq = int(key.removeprefix(self._prefix).removesuffix(".json"))
        return self._stored[seq] if seq < len(self._stored) else None


def rows_of(tracks: Iterable[Written]) -> dict[str, list[Row]]:
    """Return the rows of these tracks by table, in the order of the tracks."""
    gathered = GatheredRows()
    for track in tracks:
        store = cast("ObjectStore", OneTrack(track))
        Projector(store, cast("Ledger", gathered)).project(track.name)
    return gathered.rows
