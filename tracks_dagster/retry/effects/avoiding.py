"""Read the holds on nodes for an attempt that is about to be opened."""

from __future__ import annotations

from dataclasses import replace

from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.avoidance import Opening, avoid
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.placement import pool_of

WORDS_CHARACTERS_MAX = 300  # of what is wrong with a pool's track, in a decision


def avoid_now(tracks: Tracks, opening: Opening) -> Opening:
    """Return `opening` with the nodes excluded that are on hold now.

    A pool's track that is damaged keeps no run waiting: its quarantines are not known then, which the
    decision says, and `tracks fsck` tells what to do.
    """
    if opening.compute.launcher == LOCAL:
        return opening
    holds = Holds(tracks)
    try:
        in_pool = holds.on_pool_nodes(pool_of(opening.compute), tracks.now())
    except TrackBroken as error:
        words = f"No quarantine was looked at: {str(error)[:WORDS_CHARACTERS_MAX]}"
        return replace(opening, decision=f"{opening.decision} {words}")
    return avoid(opening, (*in_pool, *holds.on_nodes()))
