"""A queue played over devices: times by hand, and rules that give what no queue may."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tracks_dagster.scheduling.model import (
    LATER,
    NEVER,
    Demand,
    Device,
    Move,
    Plan,
    Running,
    Start,
    Usage,
    Waits,
)
from tracks_dagster.wings.lab.simulation.floor import FaultyPlan
from tracks_dagster.wings.lab.simulation.schedule import Planner, play
from tracks_dagster.wings.lab.simulation.served import Overheads, Played, Stay
from tracks_dagster.wings.lab.simulation.workloads import Submission, Workload, cluster

OVERHEADS = Overheads(bring_up_s=60.0, tear_down_s=5.0, save_s=10.0)


def in_line(
    waiting: Sequence[Demand],
    running: Sequence[Running],
    devices: Sequence[Device],
    usage: Usage,
    now_s: float,
) -> Plan:
    """Rules of these tests: the one who waited longest starts first, and nobody passes."""
    taken = {name for each in running for name in each.devices}
    free = [each.name for each in devices if each.name not in taken and each.out is None]
    starts, waits = [], []
    for demand in sorted(waiting, key=lambda each: each.since_s):
        if demand.count > len(devices):
            waits.append(Waits(key=demand.key, starts=NEVER, why="there are too few devices"))
        elif not waits and demand.count <= len(free):
            starts.append(
                Start(key=demand.key, devices=tuple(free[: demand.count]), why="its turn")
            )
            free = free[demand.count :]
        else:
            waits.append(Waits(key=demand.key, starts=LATER, why="its turn comes"))
    return Plan(starts=tuple(starts), waits=tuple(waits))


def submitted(name: str, at_s: float, devices: int, work_s: float, **given: object) -> Submission:
    """A submission."""
    return Submission(name=name, at_s=at_s, devices=devices, work_s=work_s, **given)  # type: ignore[arg-type]


def played(
    *submissions: Submission,
    rules: Planner = in_line,
    devices: Sequence[Device] = cluster(2, 1),
    overheads: Overheads = OVERHEADS,
) -> Played:
    """Play them on two devices."""
    workload = Workload(
        name="by hand", submissions=submissions, devices=tuple(devices), origin="this test"
    )
    return play(workload, rules, overheads=overheads)


def moving(key: str, for_key: str, at_s: float) -> Planner:
    """Rules in line that move `key` for `for_key` at a time."""

    def rules(
        waiting: Sequence[Demand],
        running: Sequence[Running],
        devices: Sequence[Device],
        usage: Usage,
        now_s: float,
    ) -> Plan:
        found = in_line(waiting, running, devices, usage, now_s)
        if now_s != at_s:
            return found
        return replace(found, moves=(Move(key=key, for_key=for_key, why="it is urgent"),))

    return rules


def test_a_stay_has_its_start_its_work_and_its_end() -> None:
    found = played(submitted("a", 100.0, 2, 1000.0), submitted("b", 200.0, 1, 50.0))
    first, second = found.served
    # starts at once, 60 s to the first step, 1000 s of work, 5 s to the free devices
    assert first.stays == (
        Stay(
            devices=("n1/0", "n2/0"), began_s=100.0, works_s=160.0, worked_s=1160.0, freed_s=1165.0
        ),
    )
    assert (first.wait_s, first.completion_s) == (0.0, 1060.0)
    assert (second.wait_s, second.completion_s) == (965.0, 965.0 + 60.0 + 50.0)
    assert found.capacity_s == 2 * (1165.0 + 115.0 - 100.0)
    # as each comes; then looks after 0.5, 1.5, 3.5, 7.5, 15.5 min; and at 1165 s, as devices get free
    assert found.decisions == 2 + 5 + 1


def test_free_devices_behind_a_gang_that_waits_are_fragments_only_where_nothing_fits() -> None:
    found = played(
        submitted("a", 0.0, 1, 100.0),
        submitted("wide", 0.0, 2, 100.0),
        submitted("small", 30.0, 1, 10.0),
        overheads=Overheads(),
    )
    # one device is free until 100 s; from 30 s on `small` would fit, and the rules let nobody pass
    assert (found.waited_free_s, found.fragmented_s) == (100.0, 30.0)


def test_what_is_moved_saves_and_waits_again_and_loses_nothing() -> None:
    found = played(
        submitted("long", 0.0, 2, 1000.0, saves_every_s=300.0, estimate_s=1000.0),
        submitted("urgent", 500.0, 2, 100.0),
        rules=moving("long", "urgent", 500.0),
    )
    long, urgent = found.served
    # works from 60 to 500 s, saves until 510 s, free at 515 s: 440 s of work are kept
    first, second = long.stays
    assert (first.works_s, first.worked_s, first.freed_s) == (60.0, 510.0, 515.0)
    assert (first.is_moved, first.lost_s) == (True, 0.0)
    assert urgent.wait_s == 15.0
    # urgent: 515 + 60 + 100 + 5 = 680 s; then 60 s and the other 560 s of work
    assert (second.began_s, second.works_s, second.worked_s) == (680.0, 740.0, 1300.0)
    assert long.recoveries_s == (740.0 - 510.0,)


def test_a_checkpoint_that_was_asked_for_is_committed_when_it_is_saved_and_ends_nothing() -> None:
    seen: dict[float, Running] = {}
    asked = replace(Move(key="long", for_key="eval", why="it has not saved"), saves_first=True)

    def rules(
        waiting: Sequence[Demand],
        running: Sequence[Running],
        devices: Sequence[Device],
        usage: Usage,
        now_s: float,
    ) -> Plan:
        seen.update((now_s, each) for each in running if each.demand.key == "long")
        found = in_line(waiting, running, devices, usage, now_s)
        return replace(found, moves=(asked,) if 100.0 <= now_s <= 105.0 else ())

    found = played(
        submitted("long", 0.0, 2, 1000.0, saves_every_s=300.0, estimate_s=1000.0),
        submitted("eval", 50.0, 2, 10.0),
        submitted("first", 100.0, 2, 10.0),
        submitted("again", 105.0, 2, 10.0),
        submitted("later", 365.0, 2, 10.0),
        rules=rules,
    )
    # it works from 60 s on, is asked at 100 s, has saved at 110 s; its own next save is at 360 s
    assert (seen[50.0].saves_when_asked, seen[100.0].saves_when_asked) == (False, True)
    assert seen[105.0].committed_s is None
    assert (seen[110.0].committed_s, seen[110.0].unsaved_ranks_s) == (110.0, 2 * 10.0)
    assert seen[365.0].committed_s == 360.0
    assert len(found.served[0].stays) == 1


@pytest.mark.parametrize(
    ("given", "overheads", "lost_s"),
    [
        ({"saves_every_s": 300.0}, replace(OVERHEADS, notice_s=9.0), 140.0),  # the save at 360 s
        ({"saves_every_s": 300.0}, replace(OVERHEADS, notice_s=10.0), 0.0),
        ({}, OVERHEADS, 440.0),  # it never saves
    ],
)
def test_a_move_without_time_to_save_loses_the_work_since_the_newest_checkpoint(
    given: dict[str, object], overheads: Overheads, lost_s: float
) -> None:
    found = played(
        submitted("long", 0.0, 2, 1000.0, **given),
        submitted("urgent", 500.0, 2, 100.0),
        rules=moving("long", "urgent", 500.0),
        overheads=overheads,
    )
    first, second = found.served[0].stays
    assert first.lost_s == lost_s
    assert second.worked_s - second.works_s == 1000.0 - (440.0 - lost_s)


def test_the_rules_see_what_a_move_would_lose_and_when_devices_get_free() -> None:
    seen: dict[float, Running] = {}

    def watching(
        waiting: Sequence[Demand],
        running: Sequence[Running],
        devices: Sequence[Device],
        usage: Usage,
        now_s: float,
    ) -> Plan:
        for each in running:
            seen[now_s] = each
        return in_line(waiting, running, devices, usage, now_s)

    played(
        submitted("a", 0.0, 2, 1000.0, saves_every_s=300.0, estimate_s=1000.0),
        submitted("b", 200.0, 2, 10.0),
        submitted("c", 800.0, 2, 10.0),
        rules=watching,
    )
    # held for 60 + 1000 + 5 s; works from 60 s on, saves at 360, 660, 960 s
    assert (seen[200.0].left_s, seen[200.0].committed_s) == (865.0, None)
    assert seen[200.0].unsaved_ranks_s == 2 * 140.0
    assert (seen[800.0].left_s, seen[800.0].committed_s) == (265.0, 660.0)
    assert seen[800.0].unsaved_ranks_s == 2 * 140.0


def test_what_came_before_under_the_same_name_says_how_long_it_takes() -> None:
    found = played(
        *(
            submitted(f"n{i}", 1000.0 * i, 1, work_s, task="nightly")
            for i, work_s in enumerate((60.0, 900.0, 62.0, 61.0))
        ),
        submitted("new", 5000.0, 1, 60.0, task="weekly"),
        submitted("estimated", 6000.0, 1, 60.0, task="nightly", estimate_s=7.0),
    )
    # the median of 60; of 60 and 900; of 60, 900 and 62
    assert [each.expected_s for each in found.served] == [None, 60.0, 480.0, 62.0, None, 7.0]


def test_what_can_never_start_is_named_with_the_reason_of_the_rules() -> None:
    found = played(submitted("huge", 0.0, 3, 10.0), submitted("a", 1.0, 2, 10.0))
    huge, a = found.served
    assert (huge.why_not, huge.wait_s, huge.completion_s) == (
        "there are too few devices",
        None,
        None,
    )
    assert a.why_not is None
    assert found.ended_s == 76.0


def test_rules_that_start_nothing_any_more_end_the_play_and_its_figures_end_before() -> None:
    def idle(*_: object) -> Plan:
        return Plan(waits=(Waits(key="a", starts=LATER, why="its turn comes"),))

    found = played(submitted("a", 10.0, 2, 10.0), rules=idle)
    assert found.served[0].why_not is not None
    assert "its turn comes" in found.served[0].why_not
    assert (found.capacity_s, found.waited_free_s) == (0.0, 0.0)


def test_a_share_of_a_device_is_a_share_of_its_memory() -> None:
    seen: list[Demand] = []

    def watching(waiting: Sequence[Demand], *given: object) -> Plan:
        seen.extend(waiting)
        starts = tuple(Start(key=each.key, devices=("n1/0",), why="they fit") for each in waiting)
        return Plan(starts=starts)

    shared = cluster(1, 1, memory_bytes=1000)
    thirds = [submitted(name, 0.0, 1, 10.0, memory_share=0.33) for name in ("a", "b", "c")]
    found = played(*thirds, rules=watching, devices=shared, overheads=Overheads())
    assert [each.memory_bytes for each in seen] == [330, 330, 330]
    assert found.ended_s == 10.0
    one_more = [*thirds, submitted("d", 0.0, 1, 10.0, memory_share=0.33)]
    with pytest.raises(FaultyPlan, match="d was given 'n1/0', where its memory is not free"):
        played(*one_more, rules=watching, devices=shared)
    alone = [*thirds[:1], submitted("d", 0.0, 1, 10.0)]
    with pytest.raises(FaultyPlan, match="d was given 'n1/0', which another holds"):
        played(*alone, rules=watching, devices=shared)
    with pytest.raises(ValueError, match="needs its memory"):
        played(*thirds, devices=cluster(1, 1))


def _half(plan: Plan) -> Plan:
    """A device for each rank when it is free: hold and wait."""
    starts = tuple(replace(each, devices=each.devices[:1]) for each in plan.starts)
    return replace(plan, starts=starts)


def _twice(plan: Plan) -> Plan:
    starts = tuple(replace(each, devices=(each.devices[0],) * 2) for each in plan.starts)
    return replace(plan, starts=starts)


def _first_device(plan: Plan) -> Plan:
    """As every local run did: the first device, no matter who is on it."""
    starts = tuple(replace(each, devices=("n1/0", "n2/0")) for each in plan.starts)
    return replace(plan, starts=starts)


def _again(plan: Plan) -> Plan:
    return replace(plan, starts=(*plan.starts, *plan.starts))


def _foreign(plan: Plan) -> Plan:
    starts = tuple(replace(each, devices=("n1/0", "n9/0")) for each in plan.starts)
    return replace(plan, starts=starts)


def _moves_nobody(plan: Plan) -> Plan:
    return replace(plan, moves=(Move(key="b", for_key="a", why="it waits itself"),))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_half, "needs 2 devices and was given"),
        (_twice, "needs 2 devices and was given"),
        (_first_device, "which another holds"),
        (_again, "was started, and does not wait"),
        (_foreign, "which is not for it"),
        (_moves_nobody, "was moved, and does not run"),
    ],
)
def test_rules_that_give_what_they_may_not_end_the_play(
    fault: Callable[[Plan], Plan], words: str
) -> None:
    def faulty(
        waiting: Sequence[Demand],
        running: Sequence[Running],
        devices: Sequence[Device],
        usage: Usage,
        now_s: float,
    ) -> Plan:
        seen = () if fault is _first_device else running
        return fault(in_line(waiting, seen, devices, usage, now_s))

    with pytest.raises(FaultyPlan, match=words):
        played(submitted("a", 0.0, 2, 10.0), submitted("b", 0.0, 2, 10.0), rules=faulty)


def test_a_device_that_is_out_is_given_to_nobody_and_counts_for_nothing() -> None:
    devices = [*cluster(1, 1), replace(cluster(2, 1)[1], out="Xid 79")]
    found = played(submitted("a", 0.0, 1, 30.0), devices=devices, overheads=Overheads())
    assert found.capacity_s == 30.0

    def careless(waiting: Sequence[Demand], *given: object) -> Plan:
        return Plan(starts=(Start(key=waiting[0].key, devices=("n2/0",), why="it is free"),))

    with pytest.raises(FaultyPlan, match="which is not for it"):
        played(submitted("a", 0.0, 1, 30.0), devices=devices, rules=careless)


def test_teams_are_known_by_what_they_had_and_half_of_it_is_forgotten() -> None:
    seen: list[tuple[float, dict[str, float]]] = []

    def watching(
        waiting: Sequence[Demand],
        running: Sequence[Running],
        devices: Sequence[Device],
        usage: Usage,
        now_s: float,
    ) -> Plan:
        seen.append((now_s, dict(usage.by_team)))
        return in_line(waiting, running, devices, usage, now_s)

    workload = Workload(
        name="by hand",
        submissions=(
            submitted("a", 0.0, 2, 1.0, team="vision"),
            submitted("b", 7 * 86_400.0 + 1.0, 2, 1.0, team="speech"),
        ),
        devices=cluster(2, 1),
        origin="this test",
    )
    play(workload, watching, half_life_s=7 * 86_400.0)
    assert seen[0] == (0.0, {})
    # two devices for one second; a half-life later half of it
    assert seen[1][1]["vision"] == pytest.approx(1.0, rel=1e-5)


def test_no_device_is_held_without_work_for_longer_than_starting_and_ending_take() -> None:
    found = played(
        submitted("a", 0.0, 2, 1000.0, saves_every_s=100.0),
        submitted("b", 30.0, 2, 10.0),
        rules=moving("a", "b", 30.0),  # moved before its first step
    )
    assert found.served[0].stays[0].idle_s == 35.0  # 30 s of its start, 5 s to end
    assert found.idle_held_s == 60.0
    assert found.idle_held_s <= OVERHEADS.idle_s_max
