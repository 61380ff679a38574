"""Why pods do not start: pods and events in the shapes of Kubernetes 1.34, written for these tests."""

from __future__ import annotations

from typing import Any

import pytest

from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.pod_starts import why_not_started

POD = {"name": "gang-0", "uid": "u-1"}
NO_SUCH_TAG = (
    'failed to pull and unpack image "reg.example/train:9": failed to resolve reference '
    '"reg.example/train:9": reg.example/train:9: not found'
)
NO_REGISTRY = (
    'Head "https://reg.example/v2/train/manifests/9": dial tcp 10.0.0.9:443: connect: refused'
)
NO_NODE = (
    "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available: "
    "2 No preemption victims found for incoming pod."
)
OVER_QUOTA = (
    'Error creating: pods "gang-0-x" is forbidden: exceeded quota: small, requested: pods=1, '
    "used: pods=1, limited: pods=1"
)


def pod(*states: Json, scheduled: Json = "True", **more: Any) -> dict[str, Any]:
    """Return a pending pod whose containers are in these states."""
    statuses = [{"name": f"c{n}", "state": state} for n, state in enumerate(states)]
    conditions = [{"type": "PodScheduled", "status": scheduled}] if scheduled else []
    status = {"phase": "Pending", "conditions": conditions, "containerStatuses": statuses}
    return {"metadata": POD, "spec": {"nodeName": "node1"}, "status": {**status, **more}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def unscheduled(reason: str, message: str) -> dict[str, Any]:
    result = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"metadata": POD, "spec": {}, "status": {"phase": "Pending", "conditions": [result]}}


def event(
    reason: str, message: str, second: int = 0, *, uid: str = "u-1", kind: str = "Pod"
) -> Json:
    return {
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-01-31T02:00:{second:02d}Z",
        "involvedObject": {"kind": kind, "uid": uid},
    }


CREATING = pod(waiting("ContainerCreating"))
PROBLEMS: dict[str, tuple[Json, list[Json], tuple[str, str, str, bool]]] = {
    "a tag that the registry does not have": (
        pod(waiting("ErrImagePull", NO_SUCH_TAG)),
        [],
        ("image", "ErrImagePull", NO_SUCH_TAG, True),
    ),
    "a registry that cannot be reached": (
        pod(waiting("ImagePullBackOff", f"Back-off pulling image: {NO_REGISTRY}")),
        [],
        ("image", "ImagePullBackOff", f"Back-off pulling image: {NO_REGISTRY}", False),
    ),
    "a back-off that says little: the event says it": (
        pod(waiting("ImagePullBackOff", 'Back-off pulling image "reg.example/train:9"')),
        [
            event("Failed", f"Failed to pull image: {NO_SUCH_TAG}", 1),
            event("BackOff", 'Back-off pulling image "reg.example/train:9"', 2),
        ],
        ("image", "ImagePullBackOff", f"Failed to pull image: {NO_SUCH_TAG}", True),
    ),
    "an image's name that is not one": (
        pod(waiting("InvalidImageName", 'Failed to apply default image tag "Reg//x"')),
        [],
        ("image", "InvalidImageName", 'Failed to apply default image tag "Reg//x"', True),
    ),
    "an init container's image": (
        pod(
            waiting("PodInitializing"),
            initContainerStatuses=[{"name": "i", "state": waiting("ErrImagePull", NO_REGISTRY)}],
        ),
        [],
        ("image", "ErrImagePull", NO_REGISTRY, False),
    ),
    "no node can take it": (
        unscheduled("Unschedulable", NO_NODE),
        [],
        ("unschedulable", "Unschedulable", NO_NODE, False),
    ),
    "no node can take it, and only the event says so": (
        {"metadata": POD, "spec": {}, "status": {"phase": "Pending"}},
        [event("FailedScheduling", NO_NODE)],
        ("unschedulable", "FailedScheduling", NO_NODE, False),
    ),
    "a secret that is not there": (
        pod(waiting("CreateContainerConfigError", 'secret "object-store" not found')),
        [],
        ("config", "CreateContainerConfigError", 'secret "object-store" not found', False),
    ),
    "a container that the runtime refuses": (
        pod(waiting("CreateContainerError", "context deadline exceeded")),
        [],
        ("config", "CreateContainerError", "context deadline exceeded", False),
    ),
    "a volume that cannot be mounted": (
        CREATING,
        [event("Scheduled", "assigned", 1), event("FailedMount", 'configmap "x" not found', 2)],
        ("mount", "FailedMount", 'configmap "x" not found', False),
    ),
    "a Job without a pod: quota": (
        {},
        [event("FailedCreate", OVER_QUOTA, kind="Job", uid="j-1")],
        ("quota", "FailedCreate", OVER_QUOTA, False),
    ),
    "a Job without a pod: pod security": (
        None,
        [event("FailedCreate", 'pods "g" is forbidden: violates PodSecurity "x"', kind="Job")],
        ("config", "FailedCreate", 'pods "g" is forbidden: violates PodSecurity "x"', True),
    ),
    "a Job without a pod: an account that is not there": (
        {},
        [event("FailedCreate", "error looking up service account t/x: not found", kind="Job")],
        ("config", "FailedCreate", "error looking up service account t/x: not found", False),
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_what_keeps_a_pod_from_starting_is_reported_in_its_own_words(case: str) -> None:
    seen, events, expected = PROBLEMS[case]
    found = why_not_started(seen, events)
    assert found is not None
    assert (found.reason, found.api_reason, found.message, found.is_final) == expected


RUNNING = {"running": {"startedAt": "2026-01-31T02:00:00Z"}}
WAITS: dict[str, tuple[Json, list[Json]]] = {
    "nothing is known yet": ({}, []),
    "a Job that Kueue keeps suspended": ({}, [event("Suspended", "Job suspended", kind="Job")]),
    "a quota that was raised": (
        {},
        [
            event("SuccessfulCreate", "Created pod: gang-0", 9, kind="Job"),
            event("FailedCreate", OVER_QUOTA, 1, kind="Job"),
        ],
    ),
    "a scheduling gate, seen in the condition": (unscheduled("SchedulingGated", "gated"), []),
    "a scheduling gate, seen in the spec": (
        {
            **unscheduled("Unschedulable", NO_NODE),
            "spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        },
        [],
    ),
    "an image that is being pulled": (
        CREATING,
        [event("FailedMount", "timed out", 1), event("Pulling", 'Pulling image "x"', 2)],
    ),
    "a container that is being created": (CREATING, []),
    "a pod that runs": (pod(RUNNING, phase="Running"), [event("FailedMount", "timed out")]),
    "a pod that has ended": (pod(phase="Failed"), [event("FailedScheduling", NO_NODE)]),
    "a sidecar that waits beside a container that runs": (
        pod(RUNNING, waiting("ImagePullBackOff", NO_REGISTRY)),
        [],
    ),
    "another pod's events": (CREATING, [event("FailedMount", "timed out", uid="u-2")]),
    "a pod of another shape": ({"status": {"containerStatuses": "?", "conditions": {}}}, ["?"]),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_starts_ends_or_waits_on_purpose_is_not_a_problem(case: str) -> None:
    seen, events = WAITS[case]
    assert why_not_started(seen, events) is None


def test_events_of_the_newer_api_are_put_in_order_by_their_own_times() -> None:
    early = {"reason": "FailedMount", "message": "m", "eventTime": "2026-01-31T02:00:01.5Z"}
    late = {
        "reason": "Pulling",
        "series": {"lastObservedTime": "2026-01-31T02:00:02.000001Z"},
        "eventTime": "2026-01-31T02:00:00.000000Z",
    }
    assert why_not_started(CREATING, [late, early]) is None
    assert why_not_started(CREATING, [early]) is not None
