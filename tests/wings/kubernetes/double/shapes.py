"""The shapes that a pod's status takes, as they were recorded on Kubernetes 1.34.

Every function edits the pod it is given (a copy that nobody else has). Nothing here waits, runs or
decides. What the recordings teach, and these keep: the kubelet rewrites its five conditions in one
order with the generation it has seen, and puts the conditions of others before them; a phase follows
a container's end one update later, unless the pod is being deleted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.wings.kubernetes.double.answers import Json
from tests.wings.kubernetes.double.images import pull_error
from tests.wings.kubernetes.double.objects import now_text

ADDRESS = "127.0.0.1"
TRACKING = "batch.kubernetes.io/job-tracking"
OWN = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
PREEMPTION = (
    "PreemptionByScheduler",
    "default-scheduler: preempting to accommodate a higher priority pod",
)
EVICTION = ("EvictionByEvictionAPI", "Eviction API: evicting")
TAINT = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
COLLECTOR = ("DeletionByPodGC", "PodGC: node no longer exists")
KUBELET = "TerminationByKubelet"


def born(pod: Json) -> None:
    """Pending, and nobody has looked at it yet."""
    pod["status"] = {"phase": "Pending", "qosClass": _quality(pod)}


def scheduled(pod: Json, node: str) -> None:
    """The scheduler bound it to a node."""
    pod["spec"] = {**pod["spec"], "nodeName": node}
    pod["status"]["conditions"] = [_condition("PodScheduled", "True")]


def unschedulable(pod: Json, message: str) -> None:
    """No node fits; the scheduler says why."""
    _set(pod, _condition("PodScheduled", "False", "Unschedulable", message, generation=1))


def creating(pod: Json) -> None:
    """The kubelet has taken it up."""
    name = _container(pod)
    pod["status"]["startTime"] = now_text()
    why = ("ContainersNotReady", f"containers with unready status: [{name}]")
    _waits(pod, {"reason": "ContainerCreating"})
    _kubelet(pod, started="False", ready=("False", *why))


def image_missing(pod: Json, *, backs_off: bool) -> None:
    """The image cannot be pulled; first said as an error, then as a back-off."""
    name, image = _container(pod), pod["spec"]["containers"][0]["image"]
    error = pull_error(image)
    if backs_off:
        message = f'Back-off pulling image "{image}": ErrImagePull: {error}'
        _waits(pod, {"message": message, "reason": "ImagePullBackOff"})
    else:
        _waits(pod, {"message": error, "reason": "ErrImagePull"})
    why = ("ContainersNotReady", f"containers with unready status: [{name}]")
    _kubelet(pod, started="True", ready=("False", *why))


def running(pod: Json) -> None:
    """Its container runs."""
    state = {"running": {"startedAt": now_text()}}
    uid, image = pod["metadata"]["uid"], pod["spec"]["containers"][0]["image"]
    ids = {"containerID": f"containerd://{uid}", "imageID": f"{image}@sha256:{uid}"}
    _container_status(pod, ready=True, started=True, state=state, **ids)
    addresses = {"podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "hostIP": ADDRESS}
    pod["status"] |= {"phase": "Running", **addresses, "hostIPs": [{"ip": ADDRESS}]}
    _kubelet(pod, started="True", ready=("True",))


def refused(pod: Json, reason: str, message: str) -> None:
    """The kubelet cannot make the container, and says why."""
    _waits(pod, {"message": message, "reason": reason})


def ended(
    pod: Json,
    code: int,
    *,
    with_phase: bool,
    out_of_memory: bool = False,
    reason: str = "",
    message: str = "",
) -> None:
    """Its container ended. with_phase: in one update with the phase, as for pods being deleted."""
    state = pod["status"]["containerStatuses"][0]["state"]
    terminated = {
        "exitCode": code,
        "finishedAt": now_text(),
        "reason": reason or ("OOMKilled" if out_of_memory else "Error" if code else "Completed"),
        "startedAt": state.get("running", {}).get("startedAt"),
        **({"message": message} if message else {}),
    }
    _container_status(pod, ready=False, started=False, state={"terminated": terminated})
    why = "PodFailed" if code else "PodCompleted"
    initialized = ("True",) if code else ("True", why)
    started = "False" if with_phase else "True"
    _kubelet(pod, started=started, ready=("False", why), initialized=initialized)
    if with_phase:
        pod["status"]["phase"] = "Failed" if code else "Succeeded"


def closed(pod: Json) -> None:
    """The phase follows the container's end, and the sandbox is gone."""
    code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    pod["status"]["phase"] = "Failed" if code else "Succeeded"
    _set(pod, _condition("PodReadyToStartContainers", "False", generation=_generation(pod)))


def evicted(
    pod: Json, message: str, *, disrupted_too: bool, reason: str = "Evicted", code: int = 137
) -> None:
    """The kubelet ended it to save the node; for a volume's size it sets no condition."""
    if disrupted_too:
        disrupted(pod, (KUBELET, message), generation=1)
    if "containerStatuses" in pod["status"]:
        ended(pod, code, with_phase=True)
    pod["status"] |= {"phase": "Failed", "reason": reason, "message": message}


def disrupted(
    pod: Json,
    why: tuple[str, str],
    *,
    generation: int | None = None,
    kind: str = "DisruptionTarget",
) -> None:
    """Somebody announces why the pod will go. generation: not every announcer writes one."""
    _set(pod, _condition(kind, "True", *why, generation=generation))


def orphaned(pod: Json) -> None:
    """Its node's object is gone: the collector of pods fails it before it removes it."""
    disrupted(pod, COLLECTOR, generation=_generation(pod))
    pod["status"]["phase"] = "Failed"


def not_ready(pod: Json) -> None:
    """The node controller writes this when the node does not answer: of all, only Ready changes."""
    _set(pod, _condition("Ready", "False", generation=_generation(pod)))


def deleted(pod: Json, grace_s: int) -> None:
    """Somebody deleted it: the object stays until the kubelet has ended it."""
    until = datetime.now(UTC) + timedelta(seconds=grace_s)
    pod["metadata"]["deletionTimestamp"] = now_text(until)
    pod["metadata"]["deletionGracePeriodSeconds"] = grace_s
    pod["metadata"]["generation"] += 1


def deletion_seen(pod: Json) -> None:
    """The kubelet writes the generation that it acts on, and reorders the conditions."""
    _kubelet(pod)


def over(pod: Json) -> None:
    """The kubelet confirms the end: nothing of it runs."""
    pod["metadata"]["deletionTimestamp"] = now_text()
    pod["metadata"]["deletionGracePeriodSeconds"] = 0


def is_terminal(pod: Json) -> bool:
    """Whether the pod's phase is final."""
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def is_going(pod: Json) -> bool:
    """Whether somebody deleted it."""
    return "deletionTimestamp" in pod["metadata"]


def _kubelet(
    pod: Json,
    *,
    started: str | None = None,
    ready: tuple[str, ...] | None = None,
    initialized: tuple[str, ...] | None = None,
) -> None:
    """Rewrite the kubelet's conditions (None: as they are), those of others first."""
    old = {c["type"]: c for c in pod["status"].get("conditions", ())}
    result = {"PodReadyToStartContainers": started and (started,), "Ready": ready}
    result |= {"ContainersReady": ready, "Initialized": initialized}
    own = []
    for kind in OWN:
        before = old.pop(kind, None)
        same = ("True",) if before is None else _values(before)
        new = _condition(kind, *(result.get(kind) or same), generation=_generation(pod))
        own.append(_keep_time(before, new))
    pod["status"]["conditions"] = [*old.values(), *own]
    pod["status"]["observedGeneration"] = _generation(pod)


def _condition(
    kind: str,
    status: str,
    reason: str | None = None,
    message: str | None = None,
    *,
    generation: int | None = None,
) -> Json:
    made = {
        "lastProbeTime": None,
        "lastTransitionTime": now_text(),
        "message": message,
        "observedGeneration": generation,
        "reason": reason,
        "status": status,
        "type": kind,
    }
    return {k: v for k, v in made.items() if v is not None or k == "lastProbeTime"}


def _values(condition: Json) -> tuple[str | None, ...]:
    return condition["status"], condition.get("reason"), condition.get("message")


def _set(pod: Json, new: Json) -> None:
    """Put one condition in the place of the one of its type, or at the end."""
    found = pod["status"].setdefault("conditions", [])
    for index, old in enumerate(found):
        if old["type"] == new["type"]:
            found[index] = _keep_time(old, new)
            return
    found.append(new)


def _keep_time(old: Json | None, new: Json) -> Json:
    """A transition is a change of status; anything else keeps the time."""
    if old is not None and old["status"] == new["status"]:
        return {**new, "lastTransitionTime": old["lastTransitionTime"]}
    return new


def _waits(pod: Json, waiting: Json) -> None:
    _container_status(pod, ready=False, started=False, state={"waiting": waiting})


def _container_status(pod: Json, **changed: object) -> None:
    spec = pod["spec"]["containers"][0]
    old = (pod["status"].get("containerStatuses") or [{}])[0]
    fresh = {"lastState": {}, "name": spec["name"], "restartCount": 0}
    image = {"image": spec["image"], "imageID": ""}
    pod["status"]["containerStatuses"] = [{**fresh, **image, **old, **changed}]


def _container(pod: Json) -> str:
    return pod["spec"]["containers"][0]["name"]


def _generation(pod: Json) -> int:
    return pod["metadata"].get("generation", 1)


def _quality(pod: Json) -> str:
    resources = pod["spec"]["containers"][0].get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    if not requests and not limits:
        return "BestEffort"
    whole = {"cpu", "memory"} <= set(limits) and {**limits, **requests} == limits
    return "Guaranteed" if whole else "Burstable"
