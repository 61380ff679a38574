"""What a retry changes, and where nothing is left to change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bodies import placed
from tracks_dagster.core.bodies import ComputeRequest
from tracks_dagster.core.remediation import (
    NothingToChange,
    Remedied,
    Tried,
    give_more_memory,
    global_batch_of,
    leave_node,
    save_device_memory,
)

CLUSTER = ComputeRequest(launcher="k8s", ranks=2, device_class="a100-40", memory_bytes=1000)


def tried(micro_batch: int = 4, accumulation: int = 3, **more: Any) -> Tried:
    config = {"micro_batch": micro_batch, "accumulation": accumulation, "lr": 0.1, **more}
    return Tried(config=config, compute=CLUSTER)


def saved(before: Tried, *ran_out: Tried, larger: dict[str, str] | None = None) -> Any:
    identities = {each.identity for each in (before, *ran_out)}
    return save_device_memory(before, identities, larger or {})


@pytest.mark.parametrize(
    ("micro_batch", "accumulation", "after"),
    [
        (4, 3, (2, 6)),  # 4 × 3 = 2 × 6
        (2, 6, (1, 12)),
        (3, 4, (1, 12)),  # of a share of 12 no divisor is nearer to 1.5
        (9, 1, (3, 3)),
        (10, 1, (5, 2)),
    ],
)
def test_half_the_micro_batch_keeps_the_global_batch(
    micro_batch: int, accumulation: int, after: tuple[int, int]
) -> None:
    remedied = saved(tried(micro_batch, accumulation))
    config = remedied.tried.config
    assert (config["micro_batch"], config["accumulation"]) == after
    assert [change.key for change in remedied.changes] == ["micro_batch", "accumulation"]
    assert config["lr"] == 0.1


@given(st.integers(2, 4096), st.integers(1, 64), st.integers(1, 64))
def test_the_global_batch_never_changes(micro_batch: int, accumulation: int, ranks: int) -> None:
    before = Tried(
        config={"micro_batch": micro_batch, "accumulation": accumulation},
        compute=ComputeRequest(ranks=ranks),
    )
    remedied = save_device_memory(before, {before.identity}, {})
    assert isinstance(remedied, Remedied)
    after = remedied.tried
    assert global_batch_of(after.config, ranks) == micro_batch * accumulation * ranks
    assert 1 <= after.config["micro_batch"] <= micro_batch // 2


def test_a_config_that_ran_out_before_is_passed_over() -> None:
    remedied = saved(tried(8, 1), tried(4, 2), tried(2, 4))
    assert remedied.tried.config["micro_batch"] == 1
    assert [(c.key, c.before, c.after) for c in remedied.changes] == [
        ("micro_batch", 8, 1),
        ("accumulation", 1, 8),
    ]


def test_at_a_micro_batch_of_1_the_other_steps_follow_in_their_order() -> None:
    first = tried(1, 12, allocator="default", activation_checkpointing=False)
    second = saved(first).tried
    assert second.config["allocator"] == "expandable_segments"
    third = saved(second, first).tried
    assert third.config["activation_checkpointing"] is True
    fourth = saved(third, first, second, larger={"a100-40": "a100-80"}).tried
    assert fourth.compute.device_class == "a100-80"
    assert isinstance(saved(fourth, first, second, third), NothingToChange)


def test_a_key_that_the_config_does_not_have_is_never_proposed() -> None:
    assert isinstance(saved(tried(1, 12)), NothingToChange)
    without = Tried(config={"lr": 0.1}, compute=CLUSTER)
    assert isinstance(saved(without), NothingToChange)


def test_a_ring_of_larger_devices_ends() -> None:
    ring = {"a100-40": "b", "b": "a100-40"}
    first = tried(1, 12)
    second = saved(first, larger=ring).tried
    assert isinstance(saved(second, first, larger=ring), NothingToChange)


def test_more_memory_grows_by_half_up_to_the_cap() -> None:
    def grown(memory_bytes: int) -> Any:
        compute = ComputeRequest(launcher="k8s", memory_bytes=memory_bytes)
        given_more = give_more_memory(
            Tried(config={}, compute=compute), declared=CLUSTER, growth=1.5, growth_max=4.0
        )
        return given_more.tried.compute.memory_bytes if isinstance(given_more, Remedied) else None

    assert grown(1000) == 1500
    assert grown(3375) == 4000  # 3375 × 1.5 = 5062, and the cap is 4 × 1000
    assert grown(4000) is None


def test_loader_workers_are_halved_beside() -> None:
    remedied = give_more_memory(
        tried(loader_workers=3), declared=CLUSTER, growth=1.5, growth_max=4.0
    )
    assert isinstance(remedied, Remedied)
    assert remedied.tried.config["loader_workers"] == 1
    assert [c.key for c in remedied.changes] == ["compute.memory_bytes", "loader_workers"]


def test_a_node_is_left_in_a_cluster_once() -> None:
    left = leave_node(tried(), placed("launch-1"))
    assert left.tried.compute.excluded_nodes == ("node-1",)
    assert leave_node(left.tried, placed("launch-2")).changes == ()


def test_a_local_gang_stays_on_its_one_machine() -> None:
    local = Tried(config={}, compute=ComputeRequest(launcher="local"))
    assert leave_node(local, placed("launch-1")).changes == ()
    assert leave_node(tried(), None).changes == ()
