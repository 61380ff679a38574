"""The driver of followers: each has what it has not had yet of each track, and its cursor moves.

Safe from several threads and processes at once, and may be killed anywhere: what a follower does may be
done again. The projector follows too, with the ledger's own cursor: it moves in the transaction that
writes the rows.
"""

from __future__ import annotations

from functools import partial, reduce

from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.following import Cursors, Follower
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.names import RUNS
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Record, canonical_json


def follow(tracks: Tracks, cursors: Cursors, follower: Follower, track: str) -> int:
    """Hand the follower the records of `track` that it has not had; return how many those were."""
    records = tracks.records(track)
    new = records[cursors.get(follower.name, track) + 1 :]
    if new:
        follower.take(_state(tracks, track, records), new)
        cursors.move(follower.name, track, new[-1].seq)
    return len(new)


def _state(tracks: Tracks, track: str, records: list[Record]) -> TrackState:
    if track.startswith(RUNS):
        return tracks.run(track.removeprefix(RUNS))  # folded from where it was last
    first: TrackState | None = None
    state = reduce(partial(track_states.apply, track), records, first)
    assert state is not None, "there are records"
    return state


class ProcessCursors:
    """Cursors that live as long as this process, where the effect itself says what was done."""

    def __init__(self) -> None:
        self._seqs: dict[tuple[str, str], int] = {}

    def get(self, follower: str, track: str) -> int:
        """Implements `Cursors`."""
        return self._seqs.get((follower, track), -1)

    def move(self, follower: str, track: str, seq: int) -> None:
        """Implements `Cursors`."""
        self._seqs[follower, track] = seq


class StoredCursors:
    """Cursors in the object store, an object for each follower and track.

    Moved after the effect: a follower that is killed in between does it again. A new follower begins at
    the first record of each track: what is too old to report it leaves out by the record's time.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known = ProcessCursors()  # another process may be further; then records come again

    def get(self, follower: str, track: str) -> int:
        """Implements `Cursors`; raises StoreUnavailable."""
        seq = self._known.get(follower, track)
        if seq < 0:
            stored = self._store.get(_key(follower, track), SMALL_BYTES_MAX)
            seq = -1 if stored is None else int(parse_json(stored)["seq"])
            self._known.move(follower, track, seq)
        return seq

    def move(self, follower: str, track: str, seq: int) -> None:
        """Implements `Cursors`; raises StoreUnavailable."""
        self._store.put(_key(follower, track), canonical_json({"seq": seq}))
        self._known.move(follower, track, seq)


def _key(follower: str, track: str) -> str:
    return f"followers/{follower}/{track}.json"
