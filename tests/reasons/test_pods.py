"""What Kubernetes showed of a pod, read into evidence and judged: histories written for these tests."""

from __future__ import annotations

from typing import Any

import pytest

from tracks_dagster.reasons.cases import evidence_of
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.pods import read_pod
from tracks_dagster.track.records import Json

MINUTE = "2026-01-31T02:00:"
PREEMPTED = ("PreemptionByScheduler", "default-scheduler: preempting to accommodate another pod")
DRAINED = ("EvictionByEvictionAPI", "Eviction API: evicting")
TAINTED = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
LOW_MEMORY = ("TerminationByKubelet", "The node was low on resource: memory.")


def terminated(code: int, reason: str = "Error", second: int = 30) -> dict[str, Json]:
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason,
            "startedAt": f"{MINUTE}00Z",
            "finishedAt": f"{MINUTE}{second:02d}Z",
        }
    }


RUNNING: dict[str, Json] = {"running": {"startedAt": f"{MINUTE}00Z"}}


def waiting(reason: str, message: str = "") -> dict[str, Json]:
    return {"waiting": {"reason": reason, "message": message}}


def status(
    *states: Json, disruption: tuple[str, str] | None = None, second: int = 20, **more: Any
) -> dict[str, Json]:
    """Return a pod's status, with a DisruptionTarget of `disruption` at `second`."""
    conditions: list[Json] = [{"type": "PodScheduled", "status": "True"}]
    if disruption is not None:
        conditions.append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": disruption[0],
                "message": disruption[1],
                "lastTransitionTime": f"{MINUTE}{second:02d}Z",
            }
        )
    containers = [{"name": f"c{n}", "state": state} for n, state in enumerate(states)]
    return {"conditions": conditions, "containerStatuses": containers, **more}


def watch(*statuses: Json) -> list[Json]:
    return [{"type": "MODIFIED", "metadata": {"name": "p"}, "status": each} for each in statuses]


PENDING = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
}

HISTORIES: dict[str, tuple[list[Json], str]] = {
    "preempted, and killed after its grace": (
        watch(status(RUNNING), status(terminated(137), disruption=PREEMPTED)),
        "preempted",
    ),
    "preempted, and ended with 0": (
        watch(
            status(RUNNING, disruption=PREEMPTED),
            status(terminated(0, "Completed"), disruption=PREEMPTED),
        ),
        "preempted",
    ),
    "preempted, the condition seen once and gone from the last event": (
        watch(status(RUNNING, disruption=PREEMPTED), status(terminated(143))),
        "preempted",
    ),
    "drained": (watch(status(terminated(137), disruption=DRAINED)), "node_drained"),
    "low memory, reported after the container had ended": (
        watch(status(terminated(137, second=10), disruption=LOW_MEMORY, second=50)),
        "host_oom",
    ),
    "out of memory before it was preempted": (
        watch(status(terminated(137, "OOMKilled", 10), disruption=PREEMPTED, second=40)),
        "host_oom",
    ),
    "out of memory": (watch(status(terminated(137, "OOMKilled"))), "host_oom"),
    "a child out of memory, exit code 7": (watch(status(terminated(7, "OOMKilled"))), "host_oom"),
    "a child out of memory, exit code 0": (watch(status(terminated(0, "OOMKilled"))), "host_oom"),
    "a lost node, its pod running still": (
        watch(status(RUNNING, disruption=TAINTED)),
        "node_failure",
    ),
    "an image that is not there": (
        watch(status(waiting("ImagePullBackOff", "Back-off pulling image"), phase="Pending")),
        "image_pull",
    ),
    "a config map that is not there": (
        watch(status(waiting("CreateContainerConfigError", 'configmap "a" not found'))),
        "config_error",
    ),
    "never scheduled": (watch(PENDING), "scheduling_timeout"),
    "scheduled late, and failed of itself": (
        watch(PENDING, status(RUNNING), status(terminated(1))),
        "unknown",
    ),
    "137 and nothing else": (watch(status(terminated(137))), "unknown"),
    "1 and nothing else": (watch(status(terminated(1))), "unknown"),
    # Its containers ended with exit code 0: whether the training was done they do not say.
    "succeeded": (watch(status(terminated(0, "Completed"), phase="Succeeded")), "unknown"),
    "running": (watch(status(RUNNING, phase="Running")), "unknown"),
    "deleted by a person": (watch(status(RUNNING), status(terminated(137))), "unknown"),
    "its scratch volume over the limit": (
        watch(
            status(
                terminated(137),
                phase="Failed",
                reason="Evicted",
                message='Usage of EmptyDir volume "a" exceeds the limit "1Gi".',
            )
        ),
        "disk_full",
    ),
    "a sidecar that ended well after the trainer was out of memory": (
        watch(status(terminated(137, "OOMKilled", 10), terminated(0, "Completed", 50))),
        "host_oom",
    ),
    "an init container that could not do its work": (
        watch(
            {"initContainerStatuses": [{"name": "i", "state": terminated(137, "OOMKilled")}]},
        ),
        "host_oom",
    ),
    "nothing": ([], "unknown"),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_pod_history_has_the_reason_that_it_alone_supports(name: str) -> None:
    history, reason = HISTORIES[name]
    assert classify(evidence_of({"pod_history": history})).reason == reason


@pytest.mark.parametrize("name", HISTORIES)
def test_the_same_history_reads_the_same_as_pods_and_as_bare_statuses(name: str) -> None:
    history, _ = HISTORIES[name]
    statuses = [each["status"] for each in history if isinstance(each, dict)]
    as_objects: list[Json] = [{"type": "MODIFIED", "object": {"status": each}} for each in statuses]
    assert read_pod(statuses, 0) == read_pod(history, 0) == read_pod(as_objects, 0)


def test_in_a_gang_the_pod_that_was_out_of_memory_is_blamed_not_the_one_removed_for_it() -> None:
    killed = watch(status(RUNNING), status(terminated(137, "OOMKilled", 10)))
    removed = watch(status(RUNNING), status(terminated(1, second=12)))
    case: dict[str, Json] = {"evidence": {"pods": [removed, killed]}}
    assert classify(evidence_of(case)).reason == "host_oom"


@pytest.mark.parametrize(
    "broken",
    [
        [None, 3, "x", []],
        [{"status": None}],
        [{"status": {"conditions": "x", "containerStatuses": {"a": 1}}}],
        [{"status": {"conditions": [None], "containerStatuses": [None, {"state": 3}]}}],
        [{"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": "x",
          "finishedAt": "yesterday"}}}]}}],
    ],
)  # fmt: skip
def test_a_history_of_another_shape_is_not_known_and_never_an_error(broken: list[Json]) -> None:
    assert classify(evidence_of({"pod_history": broken})).reason == "unknown"


def test_what_init_containers_and_sidecars_did_well_ends_no_trainer() -> None:
    done = terminated(0, "Completed", 5)
    beside = status(done, RUNNING, initContainerStatuses=[{"name": "i", "state": done}])
    end = read_pod(watch(beside), 0).end
    assert end is not None
    assert not end.has_ended
    assert end.started_at == f"{MINUTE}00.000000Z"
