"""What a retry changes, and where nothing is left to change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bodies import placed
from tests.examples import example_config
from tracks_dagster.retry.remediation import (
    NothingToChange,
    Remedied,
    Tried,
    allocator_environment,
    change_pool,
    give_more_memory,
    global_batch_of,
    leave_node,
    leave_out,
    save_device_memory,
    save_sooner,
)
from tracks_dagster.track.bodies import CheckpointCadence, ComputeRequest

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
    assert global_batch_of(after.config, {}, ranks) == micro_batch * accumulation * ranks
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


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"micro_batch": 1, "accumulation": 12}, "micro_batch cannot be halved any more"),
        ({"batch": 24}, "no key of the config means micro_batch"),
        (
            {"micro_batch": 24},
            "micro_batch = 24 is not halved: no key means accumulation, and the global batch stays",
        ),
    ],
)
def test_a_refusal_says_why_the_micro_batch_stays(config: dict[str, Any], words: str) -> None:
    found = save_device_memory(Tried(config=config, compute=CLUSTER), (), {})
    assert isinstance(found, NothingToChange)
    assert found.why.startswith(words)


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


def test_of_a_gang_on_several_nodes_only_the_one_to_blame_is_left() -> None:
    apart = tuple(replace(p, node=f"node-{p.rank}") for p in placed("launch-1").ranks)
    gang = placed("launch-1", ranks=apart)
    assert leave_node(tried(), gang).changes == ()
    left = leave_node(tried(), gang, "node-1")
    assert left.tried.compute.excluded_nodes == ("node-1",)
    assert left.changes[0].why == "of 2 nodes it failed first"
    assert leave_node(left.tried, gang, "node-1").changes == ()


def test_what_has_no_memory_to_grow_is_answered_with_what_to_do() -> None:
    local = Tried(config={"loader_workers": 0}, compute=ComputeRequest())
    nothing = give_more_memory(local, declared=ComputeRequest(), growth=1.5, growth_max=4.0)
    assert isinstance(nothing, NothingToChange)
    assert "launcher local: it may use what the machine has" in nothing.why
    assert "a smaller micro_batch" in nothing.why
    full = replace(CLUSTER, memory_bytes=4000)
    capped = give_more_memory(
        Tried(config={}, compute=full), declared=CLUSTER, growth=1.5, growth_max=4.0
    )
    assert isinstance(capped, NothingToChange)
    assert "4000 bytes of host memory, which is 4 times the 1000" in capped.why


def test_a_pool_follows_the_one_before_and_the_last_one_stays() -> None:
    pools = {"k8s/a100-40": "spot", "spot": "on-demand"}
    given = Remedied(tried=tried(), changes=())
    first = change_pool(given, pools, why="w")
    second = change_pool(replace(first, changes=()), pools, why="w")
    assert [first.tried.compute.pool, second.tried.compute.pool] == ["spot", "on-demand"]
    assert [(c.key, c.before, c.after) for c in second.changes] == [
        ("compute.pool", "spot", "on-demand")
    ]
    assert change_pool(second, pools, why="w") == second
    assert change_pool(given, {}, why="w").changes == ()


@pytest.mark.parametrize(
    ("declared", "sooner"),
    [
        ((10, None), (5, None)),
        ((1, None), (1, None)),  # not oftener than every step
        ((None, 300.0), (None, 150.0)),
        ((None, 100.0), (None, 60.0)),
        ((None, 30.0), (None, 30.0)),  # below the floor already: a person's choice
        ((7, 600.0), (3, 300.0)),
        ((None, None), (None, 600.0)),
    ],
)
def test_checkpoints_come_twice_as_often_down_to_a_floor(declared: Any, sooner: Any) -> None:
    before, after = (CheckpointCadence(every_steps=n, every_s=s) for n, s in (declared, sooner))
    remedied = save_sooner(tried(), before)
    assert (remedied.tried.cadence or before) == after
    assert bool(remedied.changes) == (before != after)


def test_a_second_time_the_cadence_is_shortened_again() -> None:
    declared = CheckpointCadence(every_steps=10, every_s=600.0)
    twice = save_sooner(save_sooner(tried(), declared).tried, declared)
    assert twice.tried.cadence == CheckpointCadence(every_steps=2, every_s=150.0)


def test_windows_are_left_out_from_the_second_rollback_on_and_the_rate_halves_from_the_third() -> (
    None
):
    def left(number: int, config: Any) -> Any:
        before = Tried(config=config, compute=CLUSTER)
        return leave_out(before, number=number, resumed_step=30, onset=45)

    assert left(1, {"lr": 0.1}).changes == ()
    assert left(2, {"lr": 0.1}).tried.config == {"lr": 0.1, "skip_windows": [[31, 45]]}
    assert left(3, {"learning_rate": 0.5}).tried.config["learning_rate"] == 0.25
    assert left(3, {"lr": "auto"}).tried.config == {"lr": "auto", "skip_windows": [[31, 45]]}
    assert left(4, {"lr": 0.0}).tried.config["lr"] == 0.0
    own = Tried(config={"lr": 0.1}, compute=CLUSTER)  # of a framework that shuffles by itself
    slower = leave_out(own, number=2, resumed_step=30, onset=45, order_is_ours=False)
    assert isinstance(slower, Remedied)
    assert slower.tried.config == {"lr": 0.05}
    nothing = Tried(config={}, compute=CLUSTER)
    refused = leave_out(nothing, number=2, resumed_step=30, onset=45, order_is_ours=False)
    assert isinstance(refused, NothingToChange)
    assert "none can be left out, and its config names no learning rate" in refused.why
    full = [[1, 1]] * 64
    assert isinstance(left(2, {"skip_windows": full}), NothingToChange)


def test_the_allocator_reaches_a_rank_by_its_environment() -> None:
    assert allocator_environment({"allocator": "default"}) == {}
    assert allocator_environment({}) == {}
    assert set(allocator_environment({"allocator": "expandable_segments"}).values()) == {
        "expandable_segments:True"
    }


def test_an_example_has_what_the_remedies_change() -> None:
    """gpu_oom on a small GPT: 4 → 2 → 1, then the allocator, then activation checkpointing."""
    config = example_config({}, ranks=2)
    current, ran_out, keys = Tried(config=config, compute=ComputeRequest(ranks=2)), [], []
    for _ in range(4):
        ran_out.append(current.identity)
        remedied = save_device_memory(current, ran_out, {})
        assert isinstance(remedied, Remedied)
        current = remedied.tried
        keys.append(remedied.changes[0].key)
    assert keys == ["micro_batch", "micro_batch", "allocator", "activation_checkpointing"]
    given = {k: v for k, v in current.config.items() if k != "accumulation"}
    assert example_config(given, ranks=2) == current.config


def test_the_keys_of_ones_own_are_changed_by_their_roles() -> None:
    roles = {"micro_batch": "batch_size", "accumulation": "grad_accum", "lr": "peak"}
    config = {"batch_size": 8, "grad_accum": 5, "peak": 0.4, "ckpt": False, "workers": 3}
    roles |= {"activation_checkpointing": "ckpt", "loader_workers": "workers"}
    tried = Tried(config=config, compute=ComputeRequest(ranks=2), roles=roles)
    halved = save_device_memory(tried, (), {})
    assert isinstance(halved, Remedied)
    assert halved.tried.config == {**config, "batch_size": 4, "grad_accum": 10}  # 80 of 2 ranks
    assert global_batch_of(halved.tried.config, roles, 2) == 80
    least = Tried(config={**config, "batch_size": 1}, compute=tried.compute, roles=roles)
    switched = save_device_memory(least, (), {})
    assert isinstance(switched, Remedied)
    assert switched.tried.config["ckpt"] is True
    fewer = give_more_memory(tried, declared=tried.compute, growth=1.5, growth_max=4.0)
    assert isinstance(fewer, Remedied)
    assert fewer.tried.config["workers"] == 1
    slower = leave_out(tried, number=3, resumed_step=4, onset=6)
    assert isinstance(slower, Remedied)
    assert slower.tried.config["peak"] == 0.2
