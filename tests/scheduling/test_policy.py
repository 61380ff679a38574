"""The policy of a queue: the impossible is refused; a class that is gone is the default one."""

from __future__ import annotations

from typing import Any

import pytest

from tracks_dagster.scheduling.policy import (
    SHIPPED_CLASSES,
    Allowance,
    SchedulingPolicy,
    WorkloadClass,
)
from tracks_dagster.track.errors import InvalidInput


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_s": 0.0},
        {"promise_s": -1.0},
        {"loss_s": -1.0},
        {"wait_s_max": 0.0},
        {"reserved": -1},
        {"devices": -1},
        {"devices_per_owner": -1},
        {"money_per_day": -0.5},
        {"ranks_min": 0},
    ],
)
def test_a_class_that_cannot_hold_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"objective|negative|wait_max|fewer|gang"):
        WorkloadClass(**changes)


def test_a_policy_without_evals_or_its_default_class_is_refused() -> None:
    with pytest.raises(ValueError, match="The class eval is missing"):
        SchedulingPolicy(classes={"single": WorkloadClass()})
    with pytest.raises(ValueError, match="did you mean single"):
        SchedulingPolicy(default_class="singel")
    with pytest.raises(ValueError, match="A share is above 0"):
        Allowance(share=0.0)


def test_a_class_that_a_run_names_and_the_policy_no_longer_has_is_the_default_one() -> None:
    policy = SchedulingPolicy()
    assert policy.class_of("gone") == policy.class_of(None) == SHIPPED_CLASSES["single"]
    assert policy.class_of("urgent").priority == 1000


def test_a_declaration_is_refused_by_what_there_is() -> None:
    policy = SchedulingPolicy(teams={"vision": Allowance(), "speech": Allowance()})
    policy.check_class("sweep")
    policy.check_team("vision")
    SchedulingPolicy().check_team("any name, where no team is named")
    with pytest.raises(InvalidInput, match="did you mean sweep"):
        policy.check_class("swep")
    with pytest.raises(InvalidInput, match="there are: vision, speech"):
        policy.check_team("nlp")
