"""The taint that keeps everything off a node in quarantine, for clusters that ask for it. Pure.

Our own gangs are kept off by their affinity, whatever a node's taints say. This one is for the pods of
others: `taint_quarantined_nodes` in the settings. One home never takes off what another one put on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, runtime_checkable

from tracks_dagster.track.records import Json

TAINT_KEY = "tracks/quarantine"
TAINT_EFFECT = "NoSchedule"  # what runs there goes on


@runtime_checkable
class NodeTaints(Protocol):
    """The nodes of a cluster, as far as their taints go."""

    @property
    def taints_nodes(self) -> bool:
        """Whether the settings ask for taints at all."""
        ...

    def taint(self, nodes: AbstractSet[str]) -> Sequence[str]:
        """Let these nodes, and no others, have this home's taint; return what was changed, in words.

        Idempotent: what another writer changed meanwhile is seen to by the next call. Names that no
        node has are passed over. Raises GangError.
        """
        ...


def taints_instead(
    taints: Sequence[Mapping[str, Json]], *, owner: str, is_held: bool
) -> list[Mapping[str, Json]] | None:
    """Return the taints that a node should have; None where they are right.

    owner: this home's mark, the taint's value. A node has one taint of a key and effect, so where
    another home's stands, it does for both.
    """
    ours = [taint for taint in taints if _is_quarantine(taint)]
    if is_held and not ours:
        return [*taints, {"key": TAINT_KEY, "value": owner, "effect": TAINT_EFFECT}]
    if not is_held and any(taint.get("value") == owner for taint in ours):
        return [t for t in taints if not (_is_quarantine(t) and t.get("value") == owner)]
    return None


def _is_quarantine(taint: Mapping[str, Json]) -> bool:
    return taint.get("key") == TAINT_KEY and taint.get("effect") == TAINT_EFFECT
