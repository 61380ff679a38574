"""Followers, on a postcard: what does something elsewhere with each record that it has not had yet.

Adding one (a chat, a tracker) is one file with a class as below. The driver is
`ledger.effects.following`; who decides about a run is a `ledger.deciding.Decider`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.track.records import Record


class Follower(Protocol):
    """Does something elsewhere with each record of a track: shows it, or sends a message."""

    @property
    def name(self) -> str:
        """Names its cursors."""
        ...

    def take(self, state: TrackState, new: Sequence[Record]) -> None:
        """Take in the records after the cursor, in order; raises a TracksError to have them again.

        Idempotent: the same records come again where the cursor was not moved any more. state: of the
        track, with these records and perhaps with later ones.
        """
        ...


class Cursors(Protocol):
    """How far each follower has come in each track."""

    def get(self, follower: str, track: str) -> int:
        """Return the seq of the newest record that it has taken in, -1 before the first."""
        ...

    def move(self, follower: str, track: str, seq: int) -> None:
        """Remember that it has taken in the records up to `seq`."""
        ...
