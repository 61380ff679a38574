"""In which order runs start again, where, and when: no device is ever given away twice."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracks_dagster.recovery.restart_plan import Candidate, Device, Occupant, Planned, plan

GIB = 2**30
ONE = (Device(name="gpu", memory_bytes=24 * GIB),)


def wants(run_id: str, **changes: Any) -> Candidate:
    fields: dict[str, Any] = {
        "run_id": run_id,
        "is_interrupted": True,
        "order": 0,
        "ranks": 1,
        "memory_bytes": 10 * GIB,
        "left_s": 100.0,
    }
    return Candidate(**fields | changes)


def told(planned: tuple[Planned, ...]) -> list[tuple[str, str, float | None]]:
    return [(each.run_id, each.starts, each.starts_in_s) for each in planned]


def test_interrupted_runs_come_first_the_one_nearest_its_end_before_all() -> None:
    found = plan(
        [
            wants("queued", is_interrupted=False, left_s=1.0),
            wants("far", left_s=500.0),
            wants("unknown", left_s=None),
            wants("near", left_s=50.0),
        ],
        [Device(name=str(number)) for number in range(4)],
    )
    assert [each.run_id for each in found] == ["near", "far", "unknown", "queued"]
    assert {each.starts for each in found} == {"now"}


def test_queued_runs_keep_the_order_of_their_declaration() -> None:
    queued = [
        wants(f"q{order}", is_interrupted=False, order=order, left_s=100.0 - order)
        for order in (2, 0, 1)
    ]
    assert [each.run_id for each in plan(queued, ONE)] == ["q0", "q1", "q2"]


def test_runs_share_a_device_as_long_as_their_memory_fits() -> None:
    found = plan([wants("a", left_s=10.0), wants("b", left_s=30.0), wants("c", left_s=40.0)], ONE)
    assert told(found) == [("a", "now", 0.0), ("b", "now", 0.0), ("c", "later", 10.0)]
    assert found[2].after == ("a",)


def test_a_run_of_unknown_memory_takes_a_device_alone() -> None:
    found = plan([wants("a", left_s=10.0, memory_bytes=None), wants("b", left_s=30.0)], ONE)
    assert told(found) == [("a", "now", 0.0), ("b", "later", 10.0)]


def test_each_rank_takes_a_device_of_its_own() -> None:
    two = [Device(name="0", memory_bytes=24 * GIB), Device(name="1", memory_bytes=24 * GIB)]
    found = plan([wants("a", ranks=2)], two)
    assert found[0].devices == ("0", "1")


def test_what_runs_keeps_its_place_until_it_ends() -> None:
    runs = Occupant(run_id="alive", devices=("gpu",), memory_bytes=20 * GIB, left_s=60.0)
    assert told(plan([wants("a")], ONE, [runs])) == [("a", "later", 60.0)]
    endless = Occupant(run_id="alive", devices=("gpu",), memory_bytes=20 * GIB, left_s=None)
    [one] = plan([wants("a")], ONE, [endless])
    assert (one.starts, one.starts_in_s, one.after) == ("later", None, ("alive",))


def test_nobody_overtakes_a_run_that_does_not_fit_yet() -> None:
    two = [Device(name="0"), Device(name="1")]
    runs = Occupant(run_id="alive", devices=("0",), memory_bytes=None, left_s=60.0)
    found = plan([wants("wide", ranks=2, left_s=10.0), wants("small", left_s=20.0)], two, [runs])
    assert told(found) == [("wide", "later", 60.0), ("small", "later", 70.0)]


def test_a_run_is_not_held_up_by_one_that_waits_for_another_kind_of_device() -> None:
    devices = [Device(name="gpu", kind="gpu"), Device(name="slot", kind="slot")]
    runs = Occupant(run_id="alive", devices=("gpu",), memory_bytes=None, left_s=None)
    found = plan([wants("a", kind="gpu", left_s=1.0), wants("b", kind="slot")], devices, [runs])
    assert [(each.run_id, each.starts) for each in found] == [("a", "later"), ("b", "now")]


def test_what_fits_on_no_device_is_told_and_holds_nobody_up() -> None:
    found = plan([wants("huge", memory_bytes=80 * GIB, left_s=1.0), wants("a", left_s=2.0)], ONE)
    assert [each.starts for each in found] == ["never", "now"]
    assert "80.0 GiB" in found[0].why


def test_without_a_device_of_its_kind_a_run_never_starts() -> None:
    [one] = plan([wants("a", kind="gpu")], [Device(name="slot", kind="slot")])
    assert one.starts == "never"


@given(seed=st.integers(0, 2**32))
def test_no_device_is_ever_overcommitted(seed: int) -> None:
    random = Random(seed)
    devices = [
        Device(name=str(number), memory_bytes=random.choice([None, 16 * GIB, 24 * GIB]))
        for number in range(random.randint(1, 4))
    ]
    candidates = [
        wants(
            f"r{number}",
            is_interrupted=random.random() < 0.5,
            order=number,
            ranks=random.randint(1, 3),
            memory_bytes=random.choice([None, 4 * GIB, 10 * GIB, 20 * GIB]),
            left_s=random.choice([10.0, 35.0, 60.0]),
        )
        for number in range(8)
    ]
    found = plan(candidates, devices)
    by_id = {each.run_id: each for each in candidates}
    placed = [each for each in found if each.starts_in_s is not None]
    starts = [each.starts_in_s or 0.0 for each in placed]
    assert starts == sorted(starts), f"seed {seed}: somebody overtakes"
    for device in devices:
        for moment in starts:
            there = [
                by_id[each.run_id].memory_bytes
                for each in placed
                if device.name in each.devices
                and (each.starts_in_s or 0.0)
                <= moment
                < (each.starts_in_s or 0.0) + (by_id[each.run_id].left_s or 0.0)
            ]
            if len(there) > 1:
                assert device.memory_bytes is not None, f"seed {seed}"
                assert None not in there, f"seed {seed}"
                assert sum(each or 0 for each in there) <= device.memory_bytes, f"seed {seed}"
