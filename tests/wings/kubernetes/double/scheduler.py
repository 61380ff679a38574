"""Which node takes a pod, and the scheduler's own words when none does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.objects import Change, Objects

SCORED_MAX = 100  # nodes that are compared for every pod

_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: object) -> float:
    """Return a quantity as a number: "500m" is 0.5, "1Gi" is 2**30."""
    value = str(text)
    for unit in sorted(_UNITS, key=len, reverse=True):
        if value.endswith(unit):
            return float(value.removesuffix(unit)) * _UNITS[unit]
    return float(value)


def requests(pod: Json) -> dict[str, float]:
    """Return what the pod asks for: its requests, else its limits."""
    resources = pod["spec"]["containers"][0].get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(value) for name, value in asked.items()}


class Usage:
    """What the pods of each node take, followed change by change."""

    def __init__(self, objects: Objects) -> None:
        self.used: dict[str, Counter[str]] = defaultdict(Counter)
        self._counted: dict[str, tuple[str, dict[str, float]]] = {}  # pod uid -> node, requests
        self._free: dict[str, tuple[str, dict[str, float]]] = {}  # node -> version, allocatable
        self._next = 0
        objects.listeners.append(self._see)

    def choose(self, pod: Json, nodes: Sequence[Json]) -> tuple[str | None, str]:
        """Return a node that fits, or None and why there is none.

        Of few nodes the one with the fewest pods; of many the next one, as a scheduler that scores
        a sample of them.
        """
        wanted, refusals = requests(pod), Counter[str]()
        many, best = len(nodes) > SCORED_MAX, None
        for step in range(len(nodes)):
            node = nodes[(self._next + step) % len(nodes)] if many else nodes[step]
            name = node["metadata"]["name"]
            why = _refusal(pod, wanted, node, self._room(node), self.used[name])
            if why is not None:
                refusals[why] += 1
            elif many:
                self._next = (self._next + step) % len(nodes)
                return name, ""
            elif best is None or self.used[name]["pods"] < self.used[best]["pods"]:
                best = name
        return best, "" if best is not None else _words(len(nodes), refusals)

    def _room(self, node: Json) -> dict[str, float]:
        name, version = node["metadata"]["name"], node["metadata"]["resourceVersion"]
        if self._free.get(name, ("",))[0] != version:
            room = {k: quantity(v) for k, v in node["status"]["allocatable"].items()}
            self._free[name] = (version, room)
        return self._free[name][1]

    def _see(self, change: Change) -> None:
        if change.resource != "pods":
            return
        pod = change.new
        node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
        over = change.type == "DELETED" or pod["status"]["phase"] in ("Succeeded", "Failed")
        if node and not over and uid not in self._counted:
            taken = {**requests(pod), "pods": 1.0}
            self._counted[uid] = (node, taken)
            self.used[node].update(taken)  # type: ignore[arg-type]
        elif over and uid in self._counted:
            node, taken = self._counted.pop(uid)
            self.used[node].subtract(taken)  # type: ignore[arg-type]


def _words(count: int, refusals: Mapping[str, int]) -> str:
    if not count:
        return "no nodes available to schedule pods"
    why = ", ".join(f"{number} {reason}" for reason, number in sorted(refusals.items()))
    return (
        f"0/{count} nodes are available: {why}. no new claims to deallocate, preemption: "
        f"0/{count} nodes are available: {count} Preemption is not helpful for scheduling."
    )


def untolerated(pod: Json, taints: Sequence[Json]) -> Json | None:
    """Return the first of the taints that the pod does not tolerate."""
    tolerations = pod["spec"].get("tolerations") or ()
    return next((t for t in taints if not any(_tolerates(o, t) for o in tolerations)), None)


def _refusal(
    pod: Json,
    wanted: Mapping[str, float],
    node: Json,
    free: Mapping[str, float],
    used: Mapping[str, float],
) -> str | None:
    spec = node.get("spec", {})
    if spec.get("unschedulable"):
        return "node(s) were unschedulable"
    hard = [t for t in spec.get("taints") or () if t["effect"] in ("NoSchedule", "NoExecute")]
    if (taint := untolerated(pod, hard)) is not None:
        return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    if not _selected(pod, node):
        return "node(s) didn't match Pod's node affinity/selector"
    for name, amount in wanted.items():
        if amount > free.get(name, 0.0) - used.get(name, 0.0):
            return f"Insufficient {name}"
    if used.get("pods", 0) >= free.get("pods", 110):
        return "Too many pods"
    return None


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    same = toleration.get("value", "") == taint.get("value", "")
    return toleration.get("key") == taint["key"] and same


def _selected(pod: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels", {})
    if any(labels.get(k) != v for k, v in (pod["spec"].get("nodeSelector") or {}).items()):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_matches(e, labels) for e in term.get("matchExpressions") or ())
        and all(_matches(e, fields) for e in term.get("matchFields") or ())
        for term in required["nodeSelectorTerms"]
    )


def _matches(expression: Json, values: Mapping[str, str]) -> bool:
    key, wanted = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return values.get(key) in wanted
        case "NotIn":
            return values.get(key) not in wanted
        case "Exists":
            return key in values
        case "DoesNotExist":
            return key not in values
        case "Gt":
            return key in values and int(values[key]) > int(wanted[0])
        case "Lt":
            return key in values and int(values[key]) < int(wanted[0])
    raise AssertionError(f"The double does not know the operator {expression['operator']}.")
