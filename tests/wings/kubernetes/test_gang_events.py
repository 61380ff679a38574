"""Which events tell of a gang what no status did."""

from __future__ import annotations

import pytest

from tests.gang_lines import (
    PREEMPTION,
    disrupted,
    ended,
    event,
    fold,
    job,
    pod,
    reason,
    running,
    status,
    text_at,
)
from tracks_dagster.reasons.evidence import Condition
from tracks_dagster.wings.kubernetes.report import conditions
from tracks_dagster.wings.kubernetes.sightings import GangSeen, gone_line


def alone(seen: GangSeen) -> list[Condition]:
    return [c for c in conditions(seen, pods=1, ranks_per_pod=1) if c.type == "Event"]


@pytest.mark.parametrize(
    ("why", "message", "expected"),
    [
        ("Preempted", "Preempted by pod 1 on node node0", "preempted"),
        ("Evicted", "The node was low on resource: memory.", "host_oom"),
        ("TaintManagerEviction", "Marking for deletion Pod tracks/gang-0-abcde", "node_failure"),
        ("NodeNotReady", "Node is not ready", "node_failure"),
    ],
)
def test_an_event_tells_why_a_pod_went_that_nobody_saw_go(
    why: str, message: str, expected: str
) -> None:
    seen = fold(
        pod(0, 1001, status(running())),
        gone_line("uid-0", at=text_at(40)),
        event("uid-0", why, message),
    )
    assert reason(seen) == expected


@pytest.mark.parametrize(
    ("why", "message"),
    [
        ("TaintManagerEviction", "Cancelling deletion of Pod tracks/gang-0-abcde"),
        ("NodeNotReady", "Node is not ready"),
        ("FailedMount", "MountVolume.SetUp failed for volume"),
        ("FailedScheduling", "0/2 nodes are available"),
        ("Unhealthy", "whatever"),
    ],
)
def test_what_passed_by_says_nothing_of_a_pod_that_ran_and_ended_itself(
    why: str, message: str
) -> None:
    seen = fold(pod(0, 1001, status(ended(1, 30), phase="Failed")), event("uid-0", why, message))
    assert alone(seen) == []
    assert reason(seen) == "unknown"


def test_an_event_adds_nothing_to_the_condition_that_a_status_had() -> None:
    gone = status(ended(143, 30), phase="Failed", conditions=[disrupted(PREEMPTION, 25)])
    seen = fold(pod(0, 1001, gone), event("uid-0", "Preempted", "Preempted by pod 1"))
    assert alone(seen) == []
    assert reason(seen) == "preempted"


@pytest.mark.parametrize(
    ("why", "message", "expected"),
    [
        ("FailedMount", 'MountVolume.SetUp failed: secret "s3" not found', "config_error"),
        ("FailedMount", "Unable to attach or mount volumes: timed out", "storage_io"),
        ("Failed", 'Failed to pull image "a": not found', "image_pull"),
    ],
)
def test_an_event_tells_what_a_pod_that_is_being_created_waits_for(
    why: str, message: str, expected: str
) -> None:
    creating = status({"waiting": {"reason": "ContainerCreating"}}, phase="Pending")
    seen = fold(pod(0, 1001, creating), event("uid-0", why, message))
    assert reason(seen) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ('Error creating: pods "g" is forbidden: exceeded quota: a', "scheduling_timeout"),
        (
            'Error creating: pods "g" is forbidden: error looking up service account a/b: '
            'serviceaccount "b" not found',
            "config_error",
        ),
        (
            'Error creating: pods "g" is forbidden: violates PodSecurity "restricted:latest"',
            "permission_denied",
        ),
    ],
)
def test_a_job_that_may_make_no_pods_says_why_by_an_event(message: str, expected: str) -> None:
    seen = fold(job(1001), event("job", "FailedCreate", message))
    assert reason(seen, pods=2) == expected


def test_a_quota_that_let_the_pods_in_later_says_nothing() -> None:
    late = event("job", "FailedCreate", "Error creating: exceeded quota: a")
    assert alone(fold(job(1001), late, pod(0, 1002, status(running())))) == []


def test_a_pod_that_was_never_seen_is_known_by_its_event_and_name() -> None:
    seen = fold(
        job(1001),
        pod(0, 1002, status(running())),
        event("unseen", "Preempted", "Preempted by pod 1"),
    )
    found = [c for c in conditions(seen, pods=2, ranks_per_pod=4) if c.type == "Event"]
    assert [(c.reason, c.rank) for c in found] == [("Preempted", 4)]


def test_a_queue_that_stopped_the_job_for_another_workload_preempted_it() -> None:
    suspended = {"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": ""}
    seen = fold(
        job(1001, suspended, suspend=True),
        pod(0, 1002, status(ended(143, 30), phase="Failed")),
        event("job", "Stopped", "Preempted to accommodate a workload (UID: 1) due to priority"),
    )
    assert seen.jobs[0].suspended
    assert reason(seen) == "preempted"
