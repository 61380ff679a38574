"""Whether the processes of a pod can still live where somebody would see them end. Pure.

A pod that somebody deleted stays as an object until its kubelet says that its processes are gone. The
kubelet of a lost node is silent: the processes may run on, and nobody can end them. Such a pod is
unreachable. The next attempt need not wait for it, because the track fences what it would write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.reasons.kube_json import mapping, mappings, text, time_of
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wings.kubernetes.sightings import FINAL_PHASES, PodStory

OVERDUE_S = 30.0  # beyond the end of a deletion's grace, which the API server's own time names
POD_UNREACHABLE = "PodUnreachable"  # the type of the condition, and its reasons
NODE_LOST, DELETION_OVERDUE = "NodeLost", "DeletionOverdue"
_FENCED = "its processes may run on; whatever they would still commit is fenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLife:
    """What shows whether a pod lives. leaves_at: the end of the longest grace that its deletion may
    have had, None while nobody deleted it."""

    name: str
    node: str
    is_over: bool
    leaves_at: datetime | None
    status: Mapping[str, Json]


def life_of(pod: Mapping[str, Json], grace_s: float = 0.0) -> PodLife:
    """Return the life of a pod as the API shows it. grace_s: the longest that a deletion gives; one
    that was cut short is shown as if it never had been longer."""
    meta, status = mapping(pod.get("metadata")), mapping(pod.get("status"))
    given_s = meta.get("deletionGracePeriodSeconds")
    cut_s = max(0.0, grace_s - given_s) if isinstance(given_s, int) else 0.0
    leaves_at = time_of(meta.get("deletionTimestamp"))
    return PodLife(
        name=text(meta.get("name")),
        node=text(mapping(pod.get("spec")).get("nodeName")),
        is_over=status.get("phase") in FINAL_PHASES,
        leaves_at=None if leaves_at is None else leaves_at + timedelta(seconds=cut_s),
        status=status,
    )


def life_in(story: PodStory) -> PodLife:
    """Return the life of a pod as a watcher has seen it; leaves_at is when it was deleted."""
    return PodLife(
        name=story.name,
        node=story.node or "",
        is_over=story.is_over,
        leaves_at=time_of(story.leaves_at),
        status=story.status,
    )


def unreachable(
    pod: PodLife, now: datetime, *, node_is_lost: bool = False, is_overdue: bool | None = None
) -> Condition | None:
    """Return why nobody can end or see the end of the pod; None while it lives or ends as it should,
    and when it is over.

    node_is_lost: by the node's own status, where it was read. is_overdue: whether its deletion
    is, where somebody measured that; else the API server's time is compared with `now`.
    """
    if pod.is_over or pod.leaves_at is None:
        return None
    where = f"Pod {pod.name} on {pod.node or 'no node'}"
    if node_is_lost or _left_with_its_node(pod.status):
        message = f"{where} was deleted, and its node does not answer: {_FENCED}."
        return _condition(NODE_LOST, message, now)
    if is_overdue is None:
        is_overdue = (now - pod.leaves_at).total_seconds() > OVERDUE_S
    if is_overdue:
        late = f"is still there more than {OVERDUE_S:g} s after its time to end was up"
        return _condition(DELETION_OVERDUE, f"{where} {late}: {_FENCED}.", now)
    return None


def is_lost(node: Mapping[str, Json] | None) -> bool:
    """Whether a node does not answer, or is no more."""
    if node is None:
        return True
    conditions = mappings(mapping(node.get("status")).get("conditions"))
    return not any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def boot_id_of(node: Mapping[str, Json]) -> str:
    """Return the identity of a node's boot, as its ranks read it too; empty where it is unknown."""
    return text(mapping(mapping(node.get("status")).get("nodeInfo")).get("bootID"))


def _left_with_its_node(status: Mapping[str, Json]) -> bool:
    """Whether it was deleted because its node stopped answering.

    A taint that a person sets deletes pods too, and these end as they should. Of a node that stopped
    answering the control plane writes Ready False without a reason; a kubelet always gives one.
    """
    conditions = {text(c.get("type")): c for c in mappings(status.get("conditions"))}
    why = mapping(conditions.get("DisruptionTarget"))
    if why.get("reason") != "DeletionByTaintManager" or why.get("status") != "True":
        return False
    ready = mapping(conditions.get("Ready"))
    return ready.get("status") in ("False", "Unknown") and not ready.get("reason")


def _condition(reason: str, message: str, now: datetime) -> Condition:
    return Condition(
        type=POD_UNREACHABLE,
        reason=reason,
        message=message,
        at=format_time(now),
        source="supervisor",
    )
