"""What a control plane says: of a gang that never trained as a whole, and of the rank to blame."""

from __future__ import annotations

import pytest

from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import (
    CANNOT_START,
    START_FAILED,
    UNREACHABLE,
    Condition,
    Evidence,
    RankEnd,
)
from tracks_dagster.reasons.rules.control import blamed_rank


def verdict(condition_type: str, reason: str, message: str, *ranks: RankEnd) -> str:
    result = Condition(
        type=condition_type,
        reason=reason,
        message=message,
        at="2026-11-21T02:00:00.000000Z",
        source="kubernetes",
    )
    evidence = Evidence(
        run_id="r-1", attempt_id=1, launch_id=None, ranks=ranks, conditions=(result,)
    )
    return str(classify(evidence).reason)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Cannot create Job tracks-r: it exceeds the quota small.", "scheduling_timeout"),
        ("Cannot create Job tracks-r: account a may not create jobs.", "permission_denied"),
        ("Cannot create Job tracks-r: the credentials have expired.", "permission_denied"),
        ("Cannot create Job tracks-r: there is no namespace 'x'.", "config_error"),
    ],
)
def test_a_gang_that_the_api_server_refused_says_why(message: str, reason: str) -> None:
    assert verdict(START_FAILED, "Refused", message) == reason


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Requested node configuration is not available", "config_error"),
        ("Invalid qos specification", "config_error"),
        ("Invalid account or account/partition combination specified", "permission_denied"),
        ("User's group not permitted to use this partition", "permission_denied"),
        ("Job violates accounting/QOS policy (job submit limit, …)", "scheduling_timeout"),
    ],
)
def test_a_gang_that_slurm_refused_says_why(message: str, reason: str) -> None:
    words = f"Cannot submit tracks-r: sbatch: error: Batch job submission failed: {message}"
    assert verdict(START_FAILED, "", words) == reason


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller",
        "sbatch: error: Batch job submission failed: MaxJobCount limit reached",
        "ann@login: Permission denied (publickey,password).",
        "the API server at https://k8s cannot be reached",
    ],
)
def test_a_place_that_is_away_for_as_long_as_it_is_asked_is_asked_again_later(words: str) -> None:
    assert verdict(START_FAILED, UNREACHABLE, f"Cannot submit r now: {words}") == (
        "scheduling_timeout"
    )


def test_a_gang_of_which_one_pod_ran_and_one_found_no_node_was_not_scheduled() -> None:
    """What keeps a pod from starting is over once it has started, but not for the others."""
    ran = RankEnd(rank=0, started_at="2026-11-21T01:50:00.000000Z", signal=9)
    words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    found = verdict(CANNOT_START, "Unschedulable", words, ran, RankEnd(rank=1))
    assert found == "scheduling_timeout"
    assert verdict("PodScheduled", "Unschedulable", words, ran, RankEnd(rank=1)) != found


# Which rank a control plane's words put an end on, and what a request to leave a node means.


AT = "2026-01-31T02:00:00.000000Z"
LATER = "2026-01-31T02:00:09.000000Z"


def disrupted(rank: int | None, at: str, reason: str = "DeletionByTaintManager") -> Condition:
    return Condition(
        type="DisruptionTarget",
        reason=reason,
        message="Taint manager: deleting due to NoExecute taint",
        at=at,
        source="kubernetes",
        rank=rank,
    )


def test_of_a_lost_node_the_rank_that_the_control_plane_names_is_blamed() -> None:
    # Rank 0 ended first, and says only that it lost its peer on the lost node.
    cascade = RankEnd(rank=0, exit_code=1, ended_at=AT, log_tail="Connection closed by remote peer")
    evidence = Evidence(
        run_id="r-1",
        attempt_id=1,
        launch_id="l",
        ranks=(cascade, RankEnd(rank=1)),
        conditions=(disrupted(None, AT), disrupted(1, LATER)),
    )
    assert classify(evidence).reason == "node_failure"
    assert blamed_rank(evidence, "node_failure") == 1
    assert blamed_rank(evidence, "host_oom") is None


def test_of_several_the_earliest_is_blamed() -> None:
    evidence = Evidence(
        run_id="r-1",
        attempt_id=1,
        launch_id="l",
        ranks=(),
        conditions=(disrupted(0, LATER), disrupted(3, AT), disrupted(2, AT)),
    )
    assert blamed_rank(evidence, "node_failure") == 2


def test_a_request_to_leave_a_node_drains_it_and_cancels_nothing() -> None:
    for by, mode, reason in (
        ("ann", "move", "node_drained"),
        ("ann", "drain", "user_cancelled"),
        ("watch_attempts", "budget", "budget_exhausted"),  # a cap in money
        ("scheduler", "move", "preempted"),  # by the rules of the queue
    ):
        evidence = Evidence(
            run_id="r-1",
            attempt_id=1,
            launch_id="l",
            ranks=(RankEnd(rank=0, exit_code=75),),
            stop={"by": by, "why": "node n-2 is emptied", "mode": mode},
        )
        verdict = classify(evidence)
        assert (verdict.reason, verdict.rule) == (reason, "stop_requested")
