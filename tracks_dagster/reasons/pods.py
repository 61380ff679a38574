"""What Kubernetes showed of one pod, as evidence: conditions, and how its rank ended.

Takes a pod's history (its watch events, or one snapshot) as plain JSON, in the API's own field names,
and no field is required: what is missing or of another shape is not known. Nothing is judged here.
Facts that it rests on, seen on a real cluster: a pod object may be gone within a second, so every
event counts; a condition may be in an early event only; the last container status shows the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tracks_dagster.reasons.evidence import Condition, RankEnd
from tracks_dagster.reasons.kube_json import mapping, mappings, text, time_text
from tracks_dagster.track.records import Json

EVENTS_MAX = 1000  # of one pod that are read
OOM_KILLED = "OOMKilled"

# Conditions that say how a pod comes up; only the first matters, and only while it is False.
_PROGRESS = frozenset(
    {"PodScheduled", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"}
)
_TRUE = (True, "True", "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvidence:
    """What one pod's history shows. end: None when no container ever had a status."""

    end: RankEnd | None
    conditions: tuple[Condition, ...]


def read_pod(history: Iterable[Json], rank: int) -> PodEvidence:
    """Return what the pod of `rank` shows; `history`: watch events, pods or bare statuses, in order."""
    statuses = [_status(event) for _, event in zip(range(EVENTS_MAX), history, strict=False)]
    once = {(c.type, c.reason): c for status in statuses for c in _conditions(status, rank)}
    end: RankEnd | None = None
    for status in statuses:
        end = _end(status, rank, end)
    last = statuses[-1] if statuses else {}
    has_run = end is not None and (end.has_ended or end.started_at is not None)
    waits = () if has_run else tuple(_waits(last, rank))
    return PodEvidence(end=end, conditions=(*once.values(), *waits))


def _status(event: Json) -> Mapping[str, Json]:
    """Return the status of a watch event, of a pod, or the status itself."""
    if not isinstance(event, Mapping):
        return {}
    for key in ("object", "status"):
        inner = event.get(key)
        if isinstance(inner, Mapping):
            return _status(inner) if key == "object" else inner
    return event


def _conditions(status: Mapping[str, Json], rank: int) -> Iterable[Condition]:
    """Yield the conditions of the pod that are true, and the reason in its own status."""
    for each in mappings(status.get("conditions")):
        kind = text(each.get("type"))
        if kind not in _PROGRESS and each.get("status", "True") in _TRUE:
            yield _condition(kind, each, each.get("lastTransitionTime"), rank)
    if status.get("reason") or status.get("message"):
        yield _condition("Pod", status, None, rank)


def _waits(status: Mapping[str, Json], rank: int) -> Iterable[Condition]:
    """Yield what a pod that never ran waits for: a node, or its containers' images."""
    for each in _container_statuses(status):
        waiting = mapping(mapping(each.get("state")).get("waiting"))
        if waiting.get("reason"):
            yield _condition("ContainerWaiting", waiting, None, rank)
    for each in mappings(status.get("conditions")):
        if each.get("type") == "PodScheduled" and each.get("status") not in _TRUE:
            reason = text(each.get("reason")) or "Unschedulable"
            yield _condition("PodScheduled", {**each, "reason": reason}, None, rank)


def _condition(kind: str, entry: Mapping[str, Json], at: Json, rank: int) -> Condition:
    return Condition(
        type=kind,
        reason=text(entry.get("reason")),
        message=text(entry.get("message")),
        at=time_text(at),
        source="kubernetes",
        rank=rank,
    )


def _end(status: Mapping[str, Json], rank: int, before: RankEnd | None) -> RankEnd | None:
    """Return the end of the container that failed first, else the last known one."""
    inits = [_states(each) for each in mappings(status.get("initContainerStatuses"))]
    mains = [_states(each) for each in mappings(status.get("containerStatuses"))]
    running = [running for _, running in mains if running]
    # What an init container did well is over; a sidecar's good end is not the trainer's.
    dead = [terminated for terminated, _ in (*inits, *mains) if _has_failed(terminated)]
    if not dead and running:
        return RankEnd(rank=rank, started_at=time_text(running[0].get("startedAt")))
    dead = dead or [terminated for terminated, _ in mains if terminated]
    if not dead:
        return before
    # Sidecars end after the container that matters, and mostly well.
    ended = min(dead, key=lambda t: (t.get("exitCode") == 0, text(t.get("finishedAt")) or "~"))
    oom_killed = any(t.get("reason") == OOM_KILLED for t in dead)
    code = ended.get("exitCode")
    return RankEnd(
        rank=rank,
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        started_at=time_text(ended.get("startedAt")),
        ended_at=time_text(ended.get("finishedAt")),
        oom_killed=oom_killed,
    )


def _has_failed(terminated: Mapping[str, Json]) -> bool:
    """Whether a container ended, and not well; one with exit code 0 may be OOM-killed anyway."""
    well = terminated.get("exitCode") == 0 and terminated.get("reason") != OOM_KILLED
    return bool(terminated) and not well


def _states(container: Mapping[str, Json]) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
    """Return (terminated, running) of a container; a restarted one counts by its last end."""
    state, last = mapping(container.get("state")), mapping(container.get("lastState"))
    terminated = mapping(state.get("terminated")) or mapping(last.get("terminated"))
    return terminated, mapping(state.get("running"))


def _container_statuses(status: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    return [
        *mappings(status.get("initContainerStatuses")),
        *mappings(status.get("containerStatuses")),
    ]
