"""Which taints keep a pod off a node, as the scheduler reads tolerations."""

from __future__ import annotations

import pytest

from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.upkeep import repelling

GPU = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "is_enough"),
    [
        ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "cpu", "operator": "Exists"}, False),
        ({"value": "yes"}, False),
    ],
)
def test_a_toleration_is_enough_for_a_taint_of_its_key_value_and_effect(
    toleration: dict[str, Json], is_enough: bool
) -> None:
    assert repelling([GPU], [toleration]) == ([] if is_enough else ["gpu=yes:NoSchedule"])


def test_a_taint_that_only_prefers_keeps_nobody_off() -> None:
    assert repelling([{"key": "gpu", "effect": "PreferNoSchedule"}], []) == []
    assert repelling([{"key": "gpu", "effect": "NoExecute"}], []) == ["gpu:NoExecute"]
