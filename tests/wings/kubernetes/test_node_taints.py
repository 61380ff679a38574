"""The taint of a quarantine: put on once, and taken off by nobody but the home that put it on."""

from __future__ import annotations

import pytest

from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.upkeep import TAINT_KEY, taints_instead

OURS = {"key": TAINT_KEY, "value": "us", "effect": "NoSchedule"}
THEIRS = {"key": TAINT_KEY, "value": "them", "effect": "NoSchedule"}
GPU = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
EVICTS = {"key": TAINT_KEY, "value": "us", "effect": "NoExecute"}  # of a person


@pytest.mark.parametrize(
    ("taints", "is_quarantined", "instead"),
    [
        ([], True, [OURS]),
        ([GPU], True, [GPU, OURS]),
        ([GPU, OURS], True, None),
        ([THEIRS], True, None),  # a node has one taint of a key and effect
        ([EVICTS], True, [EVICTS, OURS]),
        ([], False, None),
        ([GPU], False, None),
        ([OURS, GPU], False, [GPU]),
        ([THEIRS], False, None),
        ([EVICTS], False, None),
    ],
)
def test_a_node_has_the_taint_while_it_is_held(
    taints: list[Json], is_quarantined: bool, instead: list[Json] | None
) -> None:
    assert taints_instead(taints, owner="us", is_quarantined=is_quarantined) == instead
