"""Keeps the taints of a cluster's nodes as the pools' tracks say, where its settings ask for taints.

Nothing reacts to a single decision: whatever put a node into quarantine, released it, or let its time
run out, the next round finds the difference. So a taint follows within a minute, and a lost write is
made good.
"""

from __future__ import annotations

from tracks_dagster.kubernetes.settings.node_taints import NodeTaints
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import TracksError


def keep_taints(tracks: Tracks, ledger: Ledger, cluster: NodeTaints) -> tuple[str, ...]:
    """Make the taints right; return what was changed and what could not be, in words.

    A pool's track that cannot be read leaves all taints as they are: nothing is let in by mistake.
    """
    if not cluster.taints_nodes:
        return ()
    now = tracks.now()
    held: set[str] = set()
    try:
        for row in ledger.query("select distinct pool from node_quarantines order by pool"):
            state = tracks.find_pool(row["pool"])
            if state is not None:
                held |= {quarantine.body.node for quarantine in state.quarantined_at(now)}
        return tuple(cluster.taint(held))
    except TracksError as error:
        return (f"the nodes' taints were left as they are: {error}",)
