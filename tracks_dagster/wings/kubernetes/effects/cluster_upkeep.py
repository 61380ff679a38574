"""Keeps the taints of nodes as their quarantines are.

No single decision moves a taint: the next round finds the difference, whether a node was quarantined,
released or its time ran out. So a taint follows within a minute, and a lost write is made good.
"""

from __future__ import annotations

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.errors import TracksError
from tracks_dagster.wings.kubernetes.upkeep import NodeTaints


def keep_taints(tracks: Tracks, ledger: Ledger, cluster: NodeTaints) -> tuple[str, ...]:
    """Make the taints right; return what was changed and what could not be, in words.

    A pool's track that cannot be read leaves all taints as they are: nothing is let in by mistake.
    """
    if not cluster.taints_nodes:
        return ()
    now = tracks.now()
    quarantined: set[str] = set()
    try:
        for row in ledger.query("select distinct pool from node_quarantines order by pool"):
            state = tracks.find_pool(row["pool"])
            if state is not None:
                quarantined |= {quarantine.body.node for quarantine in state.quarantined_at(now)}
        return tuple(cluster.taint(quarantined))
    except TracksError as error:
        return (f"the nodes' taints were left as they are: {error}",)
