"""Which pods still live where somebody would see them end; by recordings of a real cluster."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.bodies import BEGIN
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wings.kubernetes.pod_lives import (
    OVERDUE_S,
    PodLife,
    is_lost,
    life_in,
    life_of,
    unreachable,
)
from tracks_dagster.wings.kubernetes.sightings import PodStory

# As recorded on Kubernetes 1.34 when a node was cut off: the node controller's Ready has no reason.
TAINTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
SILENT = {"type": "Ready", "status": "False", "reason": None}


def life(*conditions: Json, leaves_in_s: float | None = 30.0, phase: str = "Running") -> PodLife:
    leaves_at = None if leaves_in_s is None else BEGIN + timedelta(seconds=leaves_in_s)
    return PodLife(
        name="p",
        node="n1",
        is_over=phase in ("Succeeded", "Failed"),
        leaves_at=leaves_at,
        status={"phase": phase, "conditions": list(conditions)},
    )


def test_a_pod_that_its_silent_node_cannot_end_is_unreachable_at_once() -> None:
    found = unreachable(life(TAINTED, SILENT), BEGIN)
    assert found is not None
    assert (found.type, found.reason) == ("PodUnreachable", "NodeLost")


@pytest.mark.parametrize(
    "pod",
    [
        life(TAINTED, {"type": "Ready", "status": "True"}),
        life(TAINTED),
        life(TAINTED, {"type": "Ready", "status": "False", "reason": "ContainersNotReady"}),
        life(SILENT),
        life(TAINTED, SILENT, leaves_in_s=None),
        life(TAINTED, SILENT, phase="Failed"),
    ],
    ids=[
        "still ready",
        "ready is not reported",
        "its kubelet speaks",
        "in its grace",
        "kept",
        "over",
    ],
)
def test_a_pod_that_ends_as_it_should_is_waited_for(pod: PodLife) -> None:
    assert unreachable(pod, BEGIN) is None


def test_a_pod_that_has_not_gone_long_after_its_grace_is_unreachable() -> None:
    assert unreachable(life(), BEGIN + timedelta(seconds=30 + OVERDUE_S - 1)) is None
    found = unreachable(life(), BEGIN + timedelta(seconds=30 + OVERDUE_S + 1))
    assert found is not None
    assert found.reason == "DeletionOverdue"


def test_who_measured_the_time_itself_is_believed_and_not_the_clocks() -> None:
    story = PodStory(
        uid="u", name="p", leaves_at=format_time(BEGIN), history=({"phase": "Running"},)
    )
    assert unreachable(life_in(story), BEGIN + timedelta(days=1), is_overdue=False) is None
    assert unreachable(life_in(story), BEGIN - timedelta(days=1), is_overdue=True) is not None


def test_a_deletion_that_was_cut_short_has_its_whole_grace_as_well() -> None:
    until = (BEGIN + timedelta(seconds=1)).isoformat()
    pod = {"metadata": {"deletionTimestamp": until, "deletionGracePeriodSeconds": 1}}
    assert unreachable(life_of(pod, 120.0), BEGIN + timedelta(seconds=119 + OVERDUE_S)) is None
    assert unreachable(life_of(pod, 120.0), BEGIN + timedelta(seconds=121 + OVERDUE_S)) is not None


def test_a_pod_of_another_shape_lives() -> None:
    assert unreachable(life_of({"metadata": None, "status": 7}), BEGIN) is None


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (None, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, True),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, False),
    ],
)
def test_a_node_is_lost_when_it_does_not_say_that_it_is_ready(node: Json, expected: bool) -> None:
    assert is_lost(node) is expected
