"""Whether a run worker lives and why it ended: pods in the shapes that a real cluster showed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.pod_starts import StartProblem
from tracks_dagster.wings.kubernetes.run_workers import (
    LOST_AFTER_S,
    Standing,
    has_disruption,
    has_not_begun,
    never_started,
    standing,
    worker_end,
)

NOW = datetime(2026, 1, 31, 2, 10, tzinfo=UTC)
BEGAN, ENDED = "2026-01-31T02:00:00Z", "2026-01-31T02:05:00Z"
RUNNING = {"running": {"startedAt": BEGAN}}
PREEMPTED = ("PreemptionByScheduler", "default-scheduler: preempting to accommodate")
DRAINED = ("EvictionByEvictionAPI", "Eviction API: evicting")
TAINTED = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
LOW_MEMORY = ("TerminationByKubelet", "The node was low on resource: memory.")


def pod(
    phase: str,
    state: Json = None,
    *,
    disruption: tuple[str, str] | None = None,
    going: str = "",
    **more: Any,
) -> dict[str, Any]:
    """Return a run worker's pod; disruption: its DisruptionTarget; going: when its grace ends."""
    conditions = [
        {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": "2026-01-31T02:04:58Z",
        }
        for reason, message in ([disruption] if disruption else [])
    ]
    statuses = [{"name": "dagster", "state": state}] if state else []
    meta = {
        "name": "dagster-run-1-x",
        "uid": "u",
        **({"deletionTimestamp": going} if going else {}),
    }
    status = {"phase": phase, "conditions": conditions, "containerStatuses": statuses, **more}
    return {"metadata": meta, "spec": {"nodeName": "node1"}, "status": status}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    terminated = {"exitCode": code, "reason": reason, "startedAt": BEGAN, "finishedAt": ENDED}
    return {"terminated": terminated}


ENDS: dict[str, tuple[list[Json], str, str]] = {
    "preempted, and exits 0": (
        [
            pod("Running", RUNNING, disruption=PREEMPTED),
            pod("Succeeded", ended(0, "Completed"), disruption=PREEMPTED),
        ],
        "preempted",
        "PreemptionByScheduler",
    ),
    "evicted by a drain": (
        [pod("Failed", ended(143), disruption=DRAINED)],
        "node_drained",
        "EvictionByEvictionAPI",
    ),
    "evicted for the node's memory": (
        [
            pod(
                "Failed",
                ended(137),
                disruption=LOW_MEMORY,
                reason="Evicted",
                message="low on memory",
            )
        ],
        "host_oom",
        "low on resource: memory",
    ),
    "lost with its node": (
        [pod("Running", RUNNING, disruption=TAINTED)],
        "node_failure",
        "DeletionByTaintManager",
    ),
    "OOM-killed": ([pod("Failed", ended(137, "OOMKilled"))], "host_oom", "OOMKilled"),
    "a child OOM-killed, and exits 7": (
        [pod("Failed", ended(7, "OOMKilled"))],
        "host_oom",
        "exit code 7, OOMKilled",
    ),
    "a child OOM-killed, and exits 0": (
        [pod("Succeeded", ended(0, "OOMKilled"))],
        "host_oom",
        "exit code 0, OOMKilled",
    ),
    "killed by nobody knows whom": ([pod("Failed", ended(137))], "unknown", "exit code 137"),
    "a plain exit code": ([pod("Failed", ended(3))], "unknown", "exit code 3"),
    "exit 0 before its run had ended": (
        [pod("Succeeded", ended(0, "Completed"))],
        "unknown",
        "before the Dagster run had ended",
    ),
    "seen by nobody": ([], "unknown", "nobody saw its pod end"),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_end_of_a_run_worker_has_its_reason_and_the_pods_own_words(case: str) -> None:
    history, reason, words = ENDS[case]
    end = worker_end(history, ())
    assert end.reason == reason
    assert words in end.words
    assert end.words.startswith(f"The run worker ended ({reason}): ")


@pytest.mark.parametrize(
    ("word", "message", "reason"),
    [
        ("Preempted", "Preempted by pod 5f on node node1", "preempted"),
        ("TaintManagerEviction", "Marking for deletion Pod t/p", "node_failure"),
        ("TaintManagerEviction", "Cancelling deletion of Pod t/p", "unknown"),
        ("SuccessfulCreate", "Created pod: p", "unknown"),
    ],
)
def test_where_nobody_saw_the_pod_its_events_tell(word: str, message: str, reason: str) -> None:
    assert worker_end([], [{"reason": word, "message": message}]).reason == reason


def test_a_condition_goes_before_events_and_a_log_says_only_what_an_exit_code_leaves_open() -> None:
    log = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'assets'\n"
    assert worker_end([pod("Failed", ended(1))], (), log).reason != "unknown"
    assert (
        worker_end([pod("Failed", ended(1), disruption=PREEMPTED)], (), log).reason == "preempted"
    )


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ([pod("Pending")], Standing.WAITS),
        ([pod("Running", RUNNING)], Standing.RUNS),
        ([pod("Running", RUNNING, going="2026-01-31T02:10:20Z")], Standing.ENDING),
        (
            [pod("Running", RUNNING, disruption=TAINTED, going="2026-01-31T02:10:20Z")],
            Standing.ENDED,
        ),
        ([pod("Succeeded", ended(0)), pod("Running", RUNNING)], Standing.RUNS),
        ([pod("Succeeded", ended(0))], Standing.ENDED),
        ([], Standing.GONE),
    ],
)
def test_where_a_worker_stands_is_read_from_its_pods(pods: list[Json], expected: Standing) -> None:
    assert standing(None, pods, NOW) is expected


def test_a_pod_that_outlives_its_grace_is_on_a_lost_node() -> None:
    over = (NOW - timedelta(seconds=LOST_AFTER_S + 1)).isoformat()
    assert standing({}, [pod("Running", RUNNING, going=over)], NOW) is Standing.ENDED


def test_a_job_without_pods_waits_for_its_first_one_until_it_has_ended() -> None:
    job = {"metadata": {"name": "dagster-run-1"}, "status": {}}
    assert standing(job, [], NOW) is Standing.WAITS
    failed = {**job, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    assert standing(failed, [], NOW) is Standing.ENDED


def test_only_what_takes_a_pod_away_is_a_disruption() -> None:
    assert has_disruption([pod("Running", RUNNING, disruption=PREEMPTED)])
    assert has_disruption([pod("Failed", ended(137, "OOMKilled"))])
    assert not has_disruption([pod("Pending"), pod("Running", RUNNING)])
    assert not has_disruption([pod("Failed", ended(1))])
    assert has_not_begun(pod("Pending"))
    assert not has_not_begun(pod("Running", RUNNING))


def test_a_worker_that_cannot_start_is_reported_in_the_clusters_words() -> None:
    problem = StartProblem(reason="image", api_reason="ErrImagePull", message="x: not found")
    end = never_started(problem)
    assert end.reason == "image_pull"
    assert end.words == "The run worker cannot start (image_pull): ErrImagePull: x: not found"
