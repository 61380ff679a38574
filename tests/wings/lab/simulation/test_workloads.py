"""Workloads that are made: the published shares come out, whatever the seed."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median

import pytest

from tracks_dagster.wings.lab.simulation.workloads import (
    ACME_DEVICE_TIME,
    ACME_JOBS,
    GIB,
    LOAD,
    PAI_RECURRING,
    PAI_RECURS_MIN,
    PAI_SHARE_MEDIAN,
    Submission,
    Workload,
    acme,
    cluster,
    eight_nodes,
    generated,
    pai,
)

DEVICES = cluster(8, 8, memory_bytes=80 * GIB)
SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_what_asks_pai_asks_for_0_042_of_a_device_and_most_tasks_recur(seed: int) -> None:
    made = pai(4000, seed=seed, devices=DEVICES)
    asked = [each.memory_share or each.devices for each in made.submissions]
    assert median(asked) == pytest.approx(PAI_SHARE_MEDIAN, rel=0.05)
    times = Counter(each.task for each in made.submissions)
    recurring = sum(count for count in times.values() if count >= PAI_RECURS_MIN)
    assert recurring / 4000 == pytest.approx(PAI_RECURRING, abs=0.005)
    check_load(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_few_jobs_have_nearly_all_of_acmes_device_time(seed: int) -> None:
    made = acme(4000, seed=seed, devices=DEVICES)
    jobs = Counter(each.workload_class for each in made.submissions)
    device_s: defaultdict[str, float] = defaultdict(float)
    for each in made.submissions:
        device_s[each.workload_class] += each.device_s
    total_s = sum(device_s.values())
    for name, share in ACME_JOBS.items():
        assert jobs[name] / 4000 == pytest.approx(share, abs=0.0005), name
        assert device_s[name] / total_s == pytest.approx(ACME_DEVICE_TIME[name], abs=1e-6), name
    check_load(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_generated_is_half_of_each_at_the_same_time(seed: int) -> None:
    made = generated(4000, seed=seed, devices=DEVICES)
    untimed = {replace(each, at_s=0.0) for each in made.submissions}
    halves = [make(2000, seed=seed, devices=DEVICES) for make in (pai, acme)]
    for half in halves:
        assert {replace(each, at_s=0.0) for each in half.submissions} <= untimed
        names = {each.name for each in half.submissions}
        last_s = max(each.at_s for each in made.submissions if each.name in names)
        assert last_s > 0.95 * made.submissions[-1].at_s
    assert len(made.submissions) == 4000
    check_load(made)


def check_load(made: Workload) -> None:
    """What is submitted asks for the load, in order, and all fits on the devices."""
    asked_s = sum(each.device_s for each in made.submissions)
    times = [each.at_s for each in made.submissions]
    assert times == sorted(times)
    assert asked_s / (len(made.devices) * times[-1]) == pytest.approx(LOAD, rel=0.05)
    assert max(each.devices for each in made.submissions) <= len(made.devices) / 2


def test_the_same_seed_gives_the_same_workload() -> None:
    for make in (pai, acme, generated):
        assert make(300, seed=7, devices=DEVICES) == make(300, seed=7, devices=DEVICES)
        assert make(300, seed=7, devices=DEVICES) != make(300, seed=8, devices=DEVICES)


@pytest.mark.parametrize("count", [1, 2, 5, 31])
def test_a_small_workload_is_one_too(count: int) -> None:
    for make in (pai, acme, generated):
        made = make(count, seed=0, devices=cluster(1, 1, memory_bytes=GIB))
        assert len({each.name for each in made.submissions}) == count
        assert {each.devices for each in made.submissions} == {1}


def test_the_eight_nodes_have_what_every_policy_is_for() -> None:
    made = eight_nodes()
    assert len(made.devices) == len({each.node for each in made.devices}) == 8
    assert {each.workload_class for each in made.submissions} == {
        *("distributed", "single", "sweep", "eval", "urgent")
    }
    assert max(each.devices for each in made.submissions) == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"at_s": -1.0},
        {"at_s": float("nan")},
        {"work_s": 0.0},
        {"work_s": float("inf")},
        {"devices": 0},
        {"memory_share": 0.0},
        {"memory_share": 1.5},
        {"memory_share": 0.5, "devices": 2},
        {"estimate_s": 0.0},
        {"saves_every_s": 0.0},
    ],
)
def test_a_submission_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    given: dict[str, object] = {"name": "a", "at_s": 0.0, "devices": 1, "work_s": 1.0, **wrong}
    with pytest.raises(ValueError, match=r"^a: "):
        Submission(**given)  # type: ignore[arg-type]
