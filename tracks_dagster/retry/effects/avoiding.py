"""Read the quarantines of a pool for an attempt that is about to be opened into it."""

from __future__ import annotations

from dataclasses import replace

from tracks_dagster.holds.effects.quarantines import Quarantines
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.avoidance import Avoidance, avoid, avoid_sources
from tracks_dagster.retry.decision import Decision, Retry
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.placement import pool_of

WORDS_CHARACTERS_MAX = 300  # of what is wrong with a pool's track, in a decision


def avoid_now(tracks: Tracks, compute: ComputeRequest) -> Avoidance:
    """Return what an attempt asks for that is opened now; `compute`: with its own exclusions alone.

    A pool's track that is damaged keeps no run waiting: its quarantines are not known then, which is
    said, and `tracks fsck` tells what to do.
    """
    if compute.launcher == LOCAL:
        return Avoidance(compute=compute)
    try:
        state = tracks.find_pool(pool_of(compute))
    except TrackBroken as error:
        words = f"No quarantine was looked at: {str(error)[:WORDS_CHARACTERS_MAX]}"
        return Avoidance(compute=compute, words=words)
    return avoid_sources(avoid(compute, state, tracks.now()), Quarantines(tracks).held_nodes())


def avoid_quarantined(tracks: Tracks, decision: Decision) -> Decision:
    """Return a retry with the nodes in quarantine excluded and the words for it; others unchanged."""
    if not isinstance(decision, Retry):
        return decision
    avoidance = avoid_now(tracks, decision.compute)
    return replace(
        decision,
        decision=f"{decision.decision} {avoidance.words}".rstrip(),
        compute=avoidance.compute,
        avoided_nodes=avoidance.nodes,
    )
