"""What a control plane says of a gang that never trained as a whole."""

from __future__ import annotations

import pytest

from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.evidence import CANNOT_START, START_FAILED, Condition, Evidence, RankEnd


def verdict(condition_type: str, reason: str, message: str, *ranks: RankEnd) -> str:
    told = Condition(
        type=condition_type,
        reason=reason,
        message=message,
        at="2026-11-21T02:00:00.000000Z",
        source="kubernetes",
    )
    evidence = Evidence(run_id="r-1", attempt_id=1, launch_id=None, ranks=ranks, conditions=(told,))
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


def test_a_gang_of_which_one_pod_ran_and_one_found_no_node_was_not_scheduled() -> None:
    """What keeps a pod from starting is over once it has started, but not for the others."""
    ran = RankEnd(rank=0, started_at="2026-11-21T01:50:00.000000Z", signal=9)
    words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    found = verdict(CANNOT_START, "Unschedulable", words, ran, RankEnd(rank=1))
    assert found == "scheduling_timeout"
    assert verdict("PodScheduled", "Unschedulable", words, ran, RankEnd(rank=1)) != found
