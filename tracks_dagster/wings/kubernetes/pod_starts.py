"""Why a pod does not start, by its scheduler, kubelet or quota. Pure.

From the pod as it is now and from events, both as the API's JSON; no field is required. A wait that
is meant (a scheduling gate, as Kueue sets one, a suspended Job, an image that is being pulled) is not
a problem. How long a problem may last before it counts is for the caller: schedulers, kubelets and Job
controllers try for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tracks_dagster.reasons.kube_json import mapping, mappings, text, time_text
from tracks_dagster.track.records import Json

IMAGE, UNSCHEDULABLE, QUOTA, CONFIG, MOUNT = "image", "unschedulable", "quota", "config", "mount"

EVENTS_MAX = 1000  # that are read
MESSAGE_CHARACTERS_MAX = 2000

# What the kubelet writes into a container's `waiting.reason`: pkg/kubelet/images/types.go and
# pkg/kubelet/container/sync_result.go of Kubernetes 1.34. ContainerCreating and PodInitializing wait.
_WAITING = {
    "ErrImagePull": IMAGE,
    "ImagePullBackOff": IMAGE,
    "InvalidImageName": IMAGE,
    "ErrImageNeverPull": IMAGE,
    "ImageInspectError": IMAGE,
    "RegistryUnavailable": IMAGE,
    "SignatureValidationFailed": IMAGE,
    "CreateContainerConfigError": CONFIG,
    "CreateContainerError": CONFIG,
    "RunContainerError": CONFIG,
    "PreCreateHookError": CONFIG,
    "PreStartHookError": CONFIG,
}
_FINAL_WAITS = frozenset({"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"})
# An image that the registry does not have; a registry that cannot be reached may come back, and a
# refused login may be one that is being renewed.
_NO_SUCH_IMAGE = re.compile(
    r"[\w\"]: not found\b|manifest unknown|repository does not exist|name unknown"
    r"|invalid reference format|no match for platform|couldn't parse image",
    re.IGNORECASE,
)
_SAYS_LITTLE = re.compile(r'^Back-off pulling image "[^"]*"$|^$')

_MOUNT_EVENTS = {
    "FailedMount": MOUNT,
    "FailedAttachVolume": MOUNT,
    "FailedMapVolume": MOUNT,
    "FailedCreatePodSandBox": CONFIG,
    "FailedCreatePodContainer": CONFIG,
}
_PROGRESS = frozenset({"Pulling", "Pulled", "Created", "Started"})

_QUOTA = re.compile(r"exceeded quota|insufficient quota", re.IGNORECASE)
# The same pod is refused again however often it is created.
_NEVER_ADMITTED = re.compile(r"violates PodSecurity|is invalid:", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProblem:
    """What keeps a pod from starting.

    reason: IMAGE, UNSCHEDULABLE, QUOTA, CONFIG or MOUNT. api_reason: the API's own reason, as
    "ImagePullBackOff". message: the scheduler's, the kubelet's or the Job controller's own.
    is_final: no time will cure it.
    """

    reason: str
    api_reason: str
    message: str
    is_final: bool = False


def why_not_started(pod: Json, events: Sequence[Json]) -> StartProblem | None:
    """Return what keeps `pod` from starting now; None when it has started, ended or just waits.

    pod: {} or None while its Job has none. events: of the pod, and of its Job, in any order; those
    of other pods are passed over.
    """
    found = mapping(pod)
    ordered = _in_order(events, found)
    if not found:
        return _not_created(ordered)
    status = mapping(found.get("status"))
    if status.get("phase") not in (None, "", "Pending") or _has_started(status):
        return None
    return _container(status, ordered) or _scheduling(found, status, ordered) or _mounting(ordered)


def _in_order(events: Sequence[Json], pod: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """Return the events that may concern the pod, the newest last."""
    uid = text(mapping(pod.get("metadata")).get("uid"))
    known = [each for each in events[-EVENTS_MAX:] if isinstance(each, Mapping)]
    return sorted((each for each in known if _concerns(each, uid)), key=_at)


def _concerns(event: Mapping[str, Json], pod_uid: str) -> bool:
    involved = mapping(event.get("involvedObject"))
    if text(involved.get("kind")) != "Pod":
        return True
    uid = text(involved.get("uid"))
    return not pod_uid or not uid or uid == pod_uid


def _at(event: Mapping[str, Json]) -> str:
    """Return when an event was last seen; old and new event APIs fill different fields."""
    series = mapping(event.get("series"))
    times: Iterable[Json] = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        mapping(event.get("metadata")).get("creationTimestamp"),
    )
    return next((at for each in times if (at := time_text(each))), "")


def _has_started(status: Mapping[str, Json]) -> bool:
    """Whether a container of its own, not one that prepares it, runs or has run."""
    return any(
        mapping(each.get(field)).get(state)
        for each in mappings(status.get("containerStatuses"))
        for field in ("state", "lastState")
        for state in ("running", "terminated")
    )


def _container(
    status: Mapping[str, Json], events: Sequence[Mapping[str, Json]]
) -> StartProblem | None:
    """Return the kubelet's problem with a container that it cannot start."""
    statuses = (
        *mappings(status.get("initContainerStatuses")),
        *mappings(status.get("containerStatuses")),
    )
    for each in statuses:
        waiting = mapping(mapping(each.get("state")).get("waiting"))
        word = text(waiting.get("reason"))
        if word not in _WAITING:
            continue
        message = text(waiting.get("message"))
        if _SAYS_LITTLE.match(message):
            message = _newest(events, "Failed") or message
        reason = _WAITING[word]
        is_final = word in _FINAL_WAITS or (
            reason == IMAGE and _NO_SUCH_IMAGE.search(message) is not None
        )
        return _problem(reason, word, message, is_final=is_final)
    return None


def _scheduling(
    pod: Mapping[str, Json], status: Mapping[str, Json], events: Sequence[Mapping[str, Json]]
) -> StartProblem | None:
    """Return the scheduler's problem with a pod without a node; a gate is a decision to wait."""
    spec = mapping(pod.get("spec"))
    if spec.get("nodeName") or mappings(spec.get("schedulingGates")):
        return None
    for each in mappings(status.get("conditions")):
        if each.get("type") != "PodScheduled":
            continue
        if each.get("status") not in (False, "False") or each.get("reason") == "SchedulingGated":
            return None
        word = text(each.get("reason")) or "Unschedulable"
        message = text(each.get("message")) or _newest(events, "FailedScheduling")
        return _problem(UNSCHEDULABLE, word, message)
    message = _newest(events, "FailedScheduling")
    return _problem(UNSCHEDULABLE, "FailedScheduling", message) if message else None


def _mounting(events: Sequence[Mapping[str, Json]]) -> StartProblem | None:
    """Return the kubelet's newest problem with volumes and sandbox, unless it was solved since."""
    for each in reversed(events):
        word = text(each.get("reason"))
        if word in _PROGRESS:
            return None
        if word in _MOUNT_EVENTS:
            return _problem(_MOUNT_EVENTS[word], word, text(each.get("message")))
    return None


def _not_created(events: Sequence[Mapping[str, Json]]) -> StartProblem | None:
    """Return why the Job's controller gets no pod, unless it got one since."""
    for each in reversed(events):
        word, message = text(each.get("reason")), text(each.get("message"))
        if word in ("SuccessfulCreate", "Suspended", "Completed", "SuccessfulDelete"):
            return None
        if word == "FailedCreate":
            if _QUOTA.search(message):
                return _problem(QUOTA, word, message)
            is_final = _NEVER_ADMITTED.search(message) is not None
            return _problem(CONFIG, word, message, is_final=is_final)
    return None


def _newest(events: Sequence[Mapping[str, Json]], word: str) -> str:
    """Return the newest message with reason `word`, "" when there is none."""
    messages = (
        text(each.get("message")) for each in reversed(events) if each.get("reason") == word
    )
    return next((message for message in messages if message), "")


def _problem(reason: str, api_reason: str, message: str, *, is_final: bool = False) -> StartProblem:
    shown = message.strip()[:MESSAGE_CHARACTERS_MAX]
    return StartProblem(reason=reason, api_reason=api_reason, message=shown, is_final=is_final)
