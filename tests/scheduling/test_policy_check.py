"""A policy that can never start something, or keep a promise, is found before it is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.queues import nodes
from tracks_dagster.scheduling.policy import (
    SHIPPED_CLASSES,
    Allowance,
    Order,
    SchedulingPolicy,
)
from tracks_dagster.scheduling.policy_check import find_impossible


def test_the_shipped_policy_starts_everything_and_keeps_its_promises() -> None:
    assert list(find_impossible(SchedulingPolicy())) == []


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sweep", {"devices": 0}, "class sweep may have 0 at once"),
        ("distributed", {"devices_per_owner": 1}, "in class distributed may have 1 at once"),
        ("distributed", {"devices_per_team": 1}, "a gang of 2 ranks never starts"),
        ("deferred", {"money_per_day": 0.0}, "class deferred may spend nothing"),
    ],
)
def test_a_cap_below_the_smallest_gang_is_found_with_its_case(
    name: str, change: dict[str, object], words: str
) -> None:
    classes = {**SHIPPED_CLASSES, name: replace(SHIPPED_CLASSES[name], **change)}
    [found] = find_impossible(SchedulingPolicy(classes=classes))
    assert found.startswith(f"class {name}: a gang of")
    assert words in found


def test_a_team_or_an_owner_without_devices_is_found() -> None:
    policy = SchedulingPolicy(
        teams={"vision": Allowance(devices=0)}, owners={"ada": Allowance(money_per_day=0.0)}
    )
    team, owner = find_impossible(policy)
    assert "team vision may have 0 at once" in team
    assert "owner ada may spend nothing" in owner


def test_what_is_kept_for_a_class_is_weighed_with_the_devices_that_there_are() -> None:
    classes = {**SHIPPED_CLASSES, "eval": replace(SHIPPED_CLASSES["eval"], reserved=1)}
    policy = SchedulingPolicy(classes=classes)
    assert list(find_impossible(policy)) == []
    found = list(find_impossible(policy, nodes(2, kind="gpu")))
    assert found == [
        "class distributed: a gang of 2 ranks never starts: needs 2 devices; of 2 here the policy "
        "keeps 1 for class eval"
    ]


def test_a_machine_too_small_for_a_class_is_not_a_fault_of_the_policy() -> None:
    assert list(find_impossible(SchedulingPolicy(), nodes(1, kind="gpu"))) == []


def test_a_promise_for_which_nobody_may_move_is_found() -> None:
    stays = {name: replace(each, loss_s=None) for name, each in SHIPPED_CLASSES.items()}
    found = list(find_impossible(SchedulingPolicy(classes=stays)))
    assert [each.split(":")[0] for each in found] == ["class urgent", "class eval"]
    assert found[1] == (
        "class eval: nobody can keep its promise (1 min): no class of lower priority may lose anything"
    )
    for change in ({"preemption": False}, {"order": Order.FIFO}):  # which say so themselves
        assert list(find_impossible(SchedulingPolicy(classes=stays, **change))) == []
