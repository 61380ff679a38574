"""What holds of every queue: played to their ends over random workloads, with any policy."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.queues import GIB, play
from tests.seeds import fresh_seeds
from tracks_dagster.scheduling.model import Demand, Device
from tracks_dagster.scheduling.policy import (
    SHIPPED_CLASSES,
    Order,
    Placement,
    SchedulingPolicy,
    Sharing,
)

WORKLOADS = 150  # in the default set; 100 000 in the long proofs


def random_world(random: Random) -> tuple[list[Demand], list[Device], SchedulingPolicy]:
    """Return what arrives when, on which devices, and a policy."""
    sizes = [None, None, 16 * GIB, 24 * GIB]
    devices = [
        Device(
            name=f"n{node}/{place}",
            node=f"n{node}",
            memory_bytes=memory,
            islands=(f"{place // 2}",),
            kind="gpu",
        )
        for node in range(random.randint(1, 3))
        for memory in [random.choice(sizes)]
        for place in range(random.choice([1, 2, 4]))
    ]
    demands = [
        Demand(
            key=f"r{number}",
            count=random.choice([1, 1, 1, 2, 3, 4, 8]),
            kind="gpu" if random.random() < 0.97 else "other",
            memory_bytes=random.choice([None, 4 * GIB, 10 * GIB, 20 * GIB]),
            workload_class=random.choice([*SHIPPED_CLASSES, "urgent", "eval", "sweep", "sweep"]),
            team=random.choice(["", "a", "b"]),
            since_s=random.choice([0.0, random.uniform(0.0, 300.0)]),
            work_s=random.choice([5.0, 60.0, 3000.0, random.uniform(1.0, 1000.0)]),
            near=random.choice([(), ("r0", "n0")]),
        )
        for number in range(random.randint(1, 12))
    ]
    policy = SchedulingPolicy(
        order=random.choice(list(Order)),
        backfill=random.random() < 0.8,
        preemption=random.random() < 0.5,
        placement=random.choice(list(Placement)),
        sharing=random.choice(list(Sharing)),
        move_rest_s=random.choice([0.0, 600.0]),
    )
    return demands, devices, policy


def check(seed: int, *, asks_twice: bool = True) -> int:
    """Play one workload; return how many promises it made. Nothing comes to a stand: `play` says so.

    asks_twice: whether each plan is made without its words as well, which decides the same.
    """
    demands, devices, policy = random_world(Random(seed))
    played = play(demands, devices, policy, asks_twice=asks_twice)
    assert played.starts.keys() | played.never == {each.key for each in demands}, f"seed {seed}"
    if policy.order is not Order.FIFO:
        return 0  # who comes later may be of a higher class, and then is the first
    for key, promised_s in played.promised.items():
        assert played.starts[key] <= promised_s + 1e-6, f"seed {seed}: {key} starts too late"
    return len(played.promised)


def test_no_queue_comes_to_a_stand_and_no_first_one_is_delayed() -> None:
    seeds = fresh_seeds(WORKLOADS)
    assert sum(check(seed) for seed in seeds) > WORKLOADS / 10


@pytest.mark.parametrize(
    ("wait_s_max", "longer", "starts_s"),
    [
        (600.0, 1.0, 1240.0),  # the first of all after 20 min; the evals that run then end in 40 s
        (600.0, 8.0, 1200.0 + 8 * 40.0),  # they say that they end before, and do not: none passes
        (86_400.0, 1.0, None),  # what happens without the bound: it is the last of all
    ],
)
def test_a_stream_of_evals_starves_no_gang_beyond_its_bound(
    wait_s_max: float, longer: float, starts_s: float | None
) -> None:
    # Two devices, and 300 evals of 40 s (or longer), one each 19 s: one is always waiting.
    evals = [
        Demand(key=f"e{n}", count=1, workload_class="eval", since_s=19.0 * n, work_s=40.0)
        for n in range(300)
    ]
    gang = Demand(key="gang", count=2, workload_class="sweep", since_s=1.0, work_s=60.0)
    classes = {**SHIPPED_CLASSES, "sweep": replace(SHIPPED_CLASSES["sweep"], wait_s_max=wait_s_max)}
    devices = [Device(name=name) for name in "ab"]
    played = play([*evals, gang], devices, SchedulingPolicy(classes=classes), longer=longer)
    others = max(at_s for key, at_s in played.starts.items() if key != "gang")
    if starts_s is None:
        assert played.starts["gang"] > others
    else:
        assert played.starts["gang"] <= starts_s + 1.0


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_no_deadlock_in_a_hundred_thousand_workloads() -> None:
    for number, seed in enumerate(fresh_seeds(100_000)):
        check(seed, asks_twice=number % 10 == 0)
