"""Taints of a cluster's nodes, as they should be. Pure; homes may share a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, runtime_checkable

from tracks_dagster.track.records import Json

KEEPS_OFF = ("NoSchedule", "NoExecute")  # effects; PreferNoSchedule keeps nobody off
TAINT_KEY = "tracks/quarantine"
TAINT_EFFECT = "NoSchedule"  # what runs there continues

# Taints are read as the scheduler does:
# https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
# Affinity keeps our own gangs off a node in quarantine, whatever its taints are. The taint is for
# the pods of others: `taint_quarantined_nodes` in the settings.


def repelling(
    taints: Iterable[Mapping[str, Json]], tolerations: Sequence[Mapping[str, Json]]
) -> list[str]:
    """Return the taints that keep a pod with these tolerations off, each as `key=value:effect`."""
    return [
        _format(taint)
        for taint in taints
        if taint.get("effect") in KEEPS_OFF
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]


def _tolerates(toleration: Mapping[str, Json], taint: Mapping[str, Json]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (
        taint.get("value") or ""
    )


def _format(taint: Mapping[str, Json]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


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
    taints: Sequence[Mapping[str, Json]], *, owner: str, is_quarantined: bool
) -> list[Mapping[str, Json]] | None:
    """Return the taints that a node should have; None where they are right.

    owner: this home's mark, the taint's value. A node has one taint of a key and effect, so where
    another home's taint is there, it does for both.
    """
    ours = [taint for taint in taints if _is_quarantine(taint)]
    if is_quarantined and not ours:
        return [*taints, {"key": TAINT_KEY, "value": owner, "effect": TAINT_EFFECT}]
    if not is_quarantined and any(taint.get("value") == owner for taint in ours):
        return [t for t in taints if not (_is_quarantine(t) and t.get("value") == owner)]
    return None


def _is_quarantine(taint: Mapping[str, Json]) -> bool:
    return taint.get("key") == TAINT_KEY and taint.get("effect") == TAINT_EFFECT
