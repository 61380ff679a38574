"""Which taints of a node a pod does not put up with, by its tolerations. Pure.

As the scheduler reads them: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracks_dagster.track.records import Json

KEEPS_OFF = ("NoSchedule", "NoExecute")  # effects; PreferNoSchedule keeps nobody off


def repelling(
    taints: Iterable[Mapping[str, Json]], tolerations: Sequence[Mapping[str, Json]]
) -> list[str]:
    """Return the taints that keep a pod with these tolerations off, each as `key=value:effect`."""
    return [
        _told(taint)
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


def _told(taint: Mapping[str, Json]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"
