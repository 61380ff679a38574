"""Resource quotas: how much of what a namespace may hold, and the refusal's own words."""

from __future__ import annotations

from dataclasses import dataclass

from tests.wings.kubernetes.double import shapes
from tests.wings.kubernetes.double.answers import Json, forbidden
from tests.wings.kubernetes.double.objects import Objects
from tests.wings.kubernetes.double.scheduler import quantity, requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """hard: as in a manifest: "pods", "count/jobs.batch", "requests.nvidia.com/gpu"."""

    name: str
    hard: dict[str, str]


def check(quotas: list[Quota], objects: Objects, resource: str, new: Json) -> None:
    """Raise 403 when the object would exceed a quota."""
    namespace = new["metadata"].get("namespace")
    if not quotas or not namespace:
        return
    held = [o for o in objects.all(resource)[0] if o["metadata"].get("namespace") == namespace]
    if resource == "pods":
        held = [pod for pod in held if not shapes.is_terminal(pod)]
    for quota in quotas:
        for item, hard in quota.hard.items():
            asked = _amount(item, resource, new)
            used = sum(_amount(item, resource, o) for o in held)
            if asked and used + asked > quantity(hard):
                why = (
                    f"exceeded quota: {quota.name}, requested: {item}={asked:g}, "
                    f"used: {item}={used:g}, limited: {item}={hard}"
                )
                name = new["metadata"].get("name") or f"{new['metadata']['generateName']}xxxxx"
                raise forbidden(resource, name, why)


def _amount(item: str, resource: str, found: Json) -> float:
    if item in (f"count/{resource}", resource):
        return 1.0
    if resource == "pods" and item.startswith("requests."):
        return requests(found).get(item.removeprefix("requests."), 0.0)
    return 0.0
