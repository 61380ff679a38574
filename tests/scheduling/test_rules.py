"""The rules of the queue, on tables small enough to be played by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.policies import policy_of
from tests.queues import GIB, NOW_S, expected, nodes, planned, runs, started, wants, why
from tracks_dagster.scheduling.devices_given import CPU
from tracks_dagster.scheduling.model import Device, Usage
from tracks_dagster.scheduling.policy import (
    SHIPPED_CLASSES,
    Allowance,
    Order,
    SchedulingPolicy,
    Sharing,
)

HOUR_S = 3600.0
ONE = [Device(name="gpu", memory_bytes=24 * GIB)]


def classes(**changes: dict[str, object]) -> SchedulingPolicy:
    """Return the shipped policy with changed classes."""
    changed = {name: replace(SHIPPED_CLASSES[name], **row) for name, row in changes.items()}
    return SchedulingPolicy(classes={**SHIPPED_CLASSES, **changed})


def test_interrupted_ones_come_first_the_one_nearest_its_end_before_all() -> None:
    waiting = [
        wants("queued", work_s=1.0),
        wants("far", work_s=500.0, is_interrupted=True),
        wants("unknown", is_interrupted=True),
        wants("near", work_s=50.0, is_interrupted=True),
    ]
    found = planned(waiting, [], nodes(4))
    assert found.order == ("near", "far", "unknown", "queued")
    assert set(started(found)) == set(found.order)


def test_fifo_takes_everybody_in_the_order_of_their_arrival() -> None:
    # On one device, each an hour long: the waits are 0, 1, 2 hours, and the urgent one is the last.
    waiting = [
        wants("c", since_s=30.0, work_s=HOUR_S, workload_class="urgent"),
        wants("a", since_s=10.0, work_s=HOUR_S),
        wants("b", since_s=20.0, work_s=HOUR_S),
    ]
    found = planned(waiting, [], ONE, order=Order.FIFO)
    assert found.order == ("a", "b", "c")
    assert expected(found) == {"b": HOUR_S, "c": 2 * HOUR_S}
    assert found.moves == ()
    assert planned(waiting, [], ONE).order == ("c", "a", "b")


def test_a_smaller_one_fills_the_gap_and_the_first_one_starts_no_later() -> None:
    # Of 4 devices 3 are busy for an hour; "wide" wants all 4 and is promised a start then.
    busy = [runs("busy", "n0/0", "n0/1", "n0/2", left_s=HOUR_S)]
    waiting = [
        wants("wide", 4, since_s=1.0),
        wants("long", since_s=2.0, work_s=HOUR_S + 1),
        wants("unknown", since_s=3.0),
        wants("short", since_s=4.0, work_s=HOUR_S),
    ]
    found = planned(waiting, busy, nodes(4))
    assert started(found) == {"short": ("n0/3",)}
    assert "it ends before wide can start" in found.starts[0].why
    assert expected(found)["wide"] == HOUR_S
    assert why(found, "wide") == "0 of 4 devices free; after busy, about 60 min"
    assert started(planned(waiting, busy, nodes(4), backfill=False)) == {}


def test_one_passes_on_a_device_that_the_first_one_can_do_without() -> None:
    # In an hour 3 of 4 devices are free for "wide", which wants 2: one of them is left over.
    busy = [runs("busy", "n0/0", "n0/1", left_s=HOUR_S), runs("endless", "n0/2")]
    waiting = [wants("wide", 2, since_s=1.0), wants("a", since_s=2.0), wants("b", since_s=3.0)]
    found = planned(waiting, busy, nodes(4))
    assert started(found) == {"a": ("n0/3",)}
    assert "wide, which waits for more, can do without" in found.starts[0].why
    assert expected(found)["wide"] == HOUR_S


def test_nobody_passes_on_what_is_needed_where_no_end_is_known() -> None:
    busy = [runs("busy", "n0/0")]
    waiting = [wants("wide", 2, since_s=1.0), wants("short", since_s=2.0, work_s=1.0)]
    found = planned(waiting, busy, nodes(2))
    assert started(found) == {}
    assert why(found, "wide") == "1 of 2 devices free; after busy, whose end nobody knows"
    assert why(found, "short") == "1 of 2 devices free, kept for wide; in its turn, behind wide"


def test_a_small_device_goes_to_who_passes_when_the_first_one_cannot_use_it() -> None:
    devices = [*nodes(1, memory=80 * GIB), Device(name="small", memory_bytes=24 * GIB)]
    busy = [runs("busy", "n0/0")]
    waiting = [
        wants("large", since_s=1.0, memory_bytes=60 * GIB),
        wants("light", since_s=2.0, memory_bytes=20 * GIB),
    ]
    assert started(planned(waiting, busy, devices)) == {"light": ("small",)}


def test_who_waits_for_another_kind_of_device_holds_nobody_up() -> None:
    devices = [Device(name="gpu", kind="gpu"), Device(name="cpu:0", kind=CPU)]
    waiting = [wants("a", kind="gpu"), wants("b", kind=CPU)]
    found = planned(waiting, [runs("alive", "gpu", kind="gpu")], devices)
    assert started(found) == {"b": ("cpu:0",)}
    assert found.starts[0].why == "1 CPU slot free"


def test_fair_share_puts_one_job_before_the_rest_of_a_sweep() -> None:
    # Team "search" came first with 4 jobs, "one" later with a single one: it is second, not fifth.
    sweep = [wants(f"s{n}", since_s=float(n), team="search") for n in range(4)]
    waiting = [*sweep, wants("single", since_s=9.0, team="one")]
    found = planned(waiting, [], ONE, order=Order.FAIR)
    assert found.order == ("s0", "single", "s1", "s2", "s3")
    had = Usage(by_team={"search": 100.0})
    assert planned(waiting, [], ONE, order=Order.FAIR, usage=had).order[0] == "single"
    holds = [runs("s", "gpu", team="search")]
    assert planned(waiting, holds, ONE, order=Order.FAIR).order[0] == "single"
    twice = {"search": Allowance(share=2.0)}
    assert planned(waiting, [], ONE, order=Order.FAIR, teams=twice).order[:3] == (
        *("s0", "single", "s1"),
    )
    assert planned(waiting, holds, ONE, order=Order.FAIR, teams=twice).order[:4] == (
        *("single", "s0", "s1", "s2"),
    )


def test_who_has_waited_for_its_bound_comes_before_all_classes_but_those_with_a_promise() -> None:
    week_s = SHIPPED_CLASSES["deferred"].wait_s_max
    waiting = [
        wants("old", since_s=NOW_S - week_s, workload_class="deferred"),
        wants("late", since_s=NOW_S - week_s + 1, workload_class="deferred"),
        wants("oldest", since_s=NOW_S - 2 * week_s, workload_class="deferred"),
        wants("urgent", workload_class="urgent"),
        wants("interactive", workload_class="interactive"),
    ]
    expected_order = ("oldest", "urgent", "old", "interactive", "late")
    assert planned(waiting, [], ONE).order == expected_order
    assert planned(waiting, [], ONE, order=Order.FAIR).order == expected_order


def test_after_twice_its_bound_nobody_passes_not_even_who_says_it_ends_before() -> None:
    day_s = SHIPPED_CLASSES["single"].wait_s_max
    busy = [runs("busy", "n0/0", left_s=HOUR_S)]
    short = wants("short", work_s=1.0)
    for waited_s, passes in ((2 * day_s - 1, True), (2 * day_s, False)):
        waiting = [wants("wide", 2, since_s=NOW_S - waited_s), short]
        assert ("short" in started(planned(waiting, busy, nodes(2)))) == passes


def test_clocks_that_were_set_back_or_forth_do_no_harm() -> None:
    busy = [runs("busy", "gpu", left_s=-5.0, began_s=9e9, committed_s=9e9)]
    waiting = [wants("ahead", since_s=9e9), wants("behind", since_s=-9e9, work_s=-1.0)]
    found = planned(waiting, busy, ONE)
    assert found.order == ("behind", "ahead")
    assert expected(found) == {"behind": 0.0, "ahead": 0.0}
    assert found.moves == ()


class TestMemory:
    def test_runs_share_a_device_as_long_as_their_memory_fits(self) -> None:
        waiting = [
            wants(key, memory_bytes=10 * GIB, work_s=work_s, is_interrupted=True)
            for key, work_s in (("a", 10.0), ("b", 30.0), ("c", 40.0))
        ]
        found = planned(waiting, [], ONE)
        assert started(found) == {"a": ("gpu",), "b": ("gpu",)}
        [later] = found.waits
        assert (later.in_s, later.after) == (10.0, ("a",))
        assert later.why == "0 of 1 device free; after a, about 10 s"
        assert "1 device with 10.0 GiB shared" in found.starts[1].why
        alone = planned(waiting, [], ONE, sharing=Sharing.NONE)
        assert set(started(alone)) == {"a"}

    def test_a_run_of_unknown_memory_is_alone_on_its_device(self) -> None:
        known = wants("b", memory_bytes=GIB, since_s=2.0)
        found = planned([wants("a", since_s=1.0, work_s=10.0), known], [], ONE)
        assert (set(started(found)), expected(found)) == ({"a"}, {"b": 10.0})
        unknown = [Device(name="gpu")]
        found = planned([replace(known, key="c"), known], [], unknown)
        assert set(started(found)) == {"b"}

    def test_an_empty_device_comes_before_a_shared_one(self) -> None:
        beside = runs("a", "n0/0", memory_bytes=GIB)
        found = planned([wants("b", memory_bytes=GIB)], [beside], nodes(2, memory=24 * GIB))
        assert started(found) == {"b": ("n0/1",)}

    def test_an_eval_shares_a_device_while_the_first_one_waits_for_whole_ones(self) -> None:
        # "wide" wants both devices, and nobody knows when; the eval leaves the empty one alone.
        trainer = runs("a", "n0/0", memory_bytes=10 * GIB)
        waiting = [wants("wide", 2, since_s=1.0), wants("e", since_s=2.0, memory_bytes=GIB)]
        found = planned(waiting, [trainer], nodes(2, memory=24 * GIB))
        assert started(found) == {"e": ("n0/0",)}


class TestNever:
    def test_what_fits_on_no_device_is_said_and_holds_nobody_up(self) -> None:
        waiting = [
            wants("huge", since_s=1.0, memory_bytes=80 * GIB),
            wants("many", 2, since_s=2.0),
            wants("other", since_s=3.0, kind="tpu"),
            wants("a", since_s=4.0),
        ]
        found = planned(waiting, [], ONE)
        assert set(started(found)) == {"a"}
        assert {each.starts for each in found.waits} == {"never"}
        large = "needs 1 device with 80.0 GiB; of 1 here 0 are large enough"
        assert why(found, "huge") == large
        assert why(found, "many") == "needs 2 devices; there is 1 here"
        assert why(found, "other") == "needs 1 device; there is no device of kind tpu here"

    def test_what_waits_for_a_device_that_is_out_holds_nobody_up(self) -> None:
        devices = [*nodes(1), Device(name="gpu-1", out="Xid 79 at 02:00")]
        found = planned([wants("two", 2, since_s=1.0), wants("one", since_s=2.0)], [], devices)
        assert started(found) == {"one": ("n0/0",)}
        assert found.waits[0].starts == "later"
        assert why(found, "two") == (
            "needs 2 devices; 1 may be given, and out is gpu-1 (Xid 79 at 02:00)"
        )

    def test_a_device_that_vanished_under_its_run_is_not_given_back(self) -> None:
        found = planned([wants("a")], [runs("old", "gone", left_s=1.0)], nodes(1))
        assert started(found) == {"a": ("n0/0",)}


class TestCaps:
    def test_who_is_at_a_limit_waits_for_its_own_and_holds_nobody_up(self) -> None:
        policy = classes(sweep={"devices": 2, "devices_per_owner": 1})
        busy = [runs("s1", "n0/0", workload_class="sweep", owner="ada", left_s=840.0)]
        waiting = [
            wants("s2", since_s=1.0, workload_class="sweep", owner="ada"),
            wants("s3", since_s=2.0, workload_class="sweep", owner="bob"),
            wants("s4", since_s=3.0, workload_class="sweep", owner="eve"),
            wants("s5", 2, since_s=4.0, workload_class="sweep", owner="eve"),
        ]
        found = planned(waiting, busy, nodes(4), policy=policy)
        assert set(started(found)) == {"s3"}
        assert why(found, "s2") == "ada in class sweep has 1 of 1; after s1, about 14 min"
        assert why(found, "s4") == "class sweep has 2 of 2; after s1, about 14 min"
        assert why(found, "s5") == (
            "needs 2 devices; by the policy eve in class sweep may have 1 at once"
        )

    def test_a_team_at_the_limit_of_its_sweeps_waits_by_the_rules_name(self) -> None:
        policy = policy_of("tuning: {devices_per_team: 1}").scheduling
        waiting = [wants(key, workload_class="sweep", team="vision") for key in ("s1", "s2")]
        found = planned(waiting, [], nodes(4), policy=policy)
        assert set(started(found)) == {"s1"}
        words = "team vision in class sweep (tuning.devices_per_team) has 1 of 1; after s1, "
        assert why(found, "s2").startswith(words)

    def test_teams_and_owners_have_allowances_over_all_classes(self) -> None:
        teams = {"vision": Allowance(devices=1, money_per_day=40.0)}
        waiting = [wants("a", team="vision"), wants("b", team="vision"), wants("c", owner="ada")]
        found = planned(waiting, [], nodes(4), teams=teams, owners={"ada": Allowance(devices=0)})
        assert set(started(found)) == {"a"}
        assert why(found, "b") == "team vision has 1 of 1; after a, whose end nobody knows"
        assert why(found, "c") == "needs 1 device; by the policy owner ada may have 0 at once"
        spent = Usage(money_by_team={"vision": 41.0})
        found = planned(waiting[:1], [], nodes(4), teams=teams, usage=spent)
        assert why(found, "a") == "team vision has spent 41.00 of its 40.00 for today (UTC)"

    def test_devices_that_are_kept_for_evals_stay_free(self) -> None:
        policy = classes(eval={"reserved": 1})
        two = [wants("a", since_s=1.0), wants("b", since_s=2.0)]
        found = planned(two, [], nodes(2), policy=policy)
        assert set(started(found)) == {"a"}
        assert why(found, "b") == (
            "1 of 2 devices free, kept for class eval; after a, whose end nobody knows"
        )
        found = planned([wants("e", workload_class="eval")], [], ONE, policy=policy)
        assert set(started(found)) == {"e"}
        [never] = planned([wants("both", 2)], [], nodes(2), policy=policy).waits
        assert never.why == "needs 2 devices; of 2 here the policy keeps 1 for class eval"
        old = wants("old", 2, since_s=-9e9)  # nobody passes it, but onto what is kept
        waiting = [old, wants("e", workload_class="eval"), wants("f", workload_class="eval")]
        busy = [runs("x", "n0/0", "n0/1")]
        assert started(planned(waiting, busy, nodes(4))) == {"old": ("n0/2", "n0/3")}
        assert started(planned(waiting, busy, nodes(3))) == {}
        found = planned(waiting, busy, nodes(3), policy=policy)
        assert set(started(found)) == {"e"}
        holds = [runs("e", "n0/0", workload_class="eval")]  # what is kept is in use as meant
        assert set(started(planned(two, holds, nodes(2), policy=policy))) == {"a"}


class TestMoves:
    BUSY = (
        runs("sweep-1", "n0/0", workload_class="sweep", committed_s=900.0, unsaved_ranks_s=90.0),
        runs("sweep-2", "n0/1", workload_class="sweep", committed_s=950.0, unsaved_ranks_s=50.0),
    )

    def test_an_urgent_run_gets_devices_by_moving_the_one_that_loses_least(self) -> None:
        found = planned([wants("u", workload_class="urgent")], [*self.BUSY], nodes(2))
        [move] = found.moves
        assert (move.key, move.for_key) == ("sweep-2", "u")
        assert move.why == (
            "u of class urgent needs 1 device; it saved 50 s ago, about 50 rank seconds are at stake"
        )
        assert why(found, "u") == ("0 of 2 devices free; sweep-2 saves and makes room, about 30 s")
        moving = [self.BUSY[0], self.BUSY[1]._replace(is_moving=True)]
        again = planned([wants("u", workload_class="urgent")], moving, nodes(2))
        assert (again.moves, expected(again)) == ((), {"u": 30.0})

    def test_a_move_says_when_the_run_resumed_where_it_has_not_saved_since(self) -> None:
        began_s = NOW_S - 960.0
        busy = runs("s", "n0/0", workload_class="sweep", began_s=began_s, committed_s=began_s)
        busy = busy._replace(unsaved_ranks_s=960.0)
        [move] = planned([wants("u", workload_class="urgent")], [busy], nodes(1)).moves
        assert "it resumed 16 min ago" in move.why

    @pytest.mark.parametrize(
        ("change", "moves"),
        [
            ({}, 1),
            ({"workload_class": "urgent"}, 0),  # not of a lower class
            ({"workload_class": "eval"}, 0),  # evals never make room
            ({"committed_s": NOW_S - 1801, "began_s": NOW_S - 9000}, 0),  # a sweep may lose 30 min
            ({"committed_s": NOW_S - 1800, "began_s": NOW_S - 9000}, 1),
            ({"committed_s": None, "began_s": NOW_S - 1}, 0),  # nothing to come back to
            ({"committed_s": NOW_S - 60, "began_s": NOW_S - 60}, 1),  # it resumed
            ({"is_interrupted": True, "began_s": NOW_S - 1}, 1),  # urgent is late at once
            ({"left_s": 29.0}, 0),  # a move would take as long
        ],
    )
    def test_only_what_is_lower_and_loses_little_makes_room(
        self, change: dict[str, object], moves: int
    ) -> None:
        fields = {"workload_class": "sweep", "committed_s": 900.0, **change}
        busy = [runs("busy", "gpu", **fields)]
        found = planned([wants("u", workload_class="urgent")], busy, ONE)
        assert len(found.moves) == moves

    @pytest.mark.parametrize(
        ("change", "asked"),
        [
            ({}, [("busy", True)]),
            ({"committed_s": NOW_S - 1801, "began_s": NOW_S - 9000}, [("busy", True)]),
            ({"committed_s": NOW_S - 1800, "began_s": NOW_S - 9000}, [("busy", False)]),
            ({"workload_class": "interactive"}, []),  # it stays, whatever it has saved
            ({"is_moving": True}, []),
            ({"saves_when_asked": False}, []),  # it does not train yet, or knows SIGTERM alone
        ],
    )
    def test_who_has_no_young_commit_is_asked_for_one_first(
        self, change: dict[str, object], asked: list[tuple[str, bool]]
    ) -> None:
        fields = {"workload_class": "sweep", "saves_when_asked": True, **change}
        urgent = [wants("u", workload_class="urgent")]
        found = planned(urgent, [runs("busy", "gpu", **fields)], ONE)
        assert [(each.key, each.saves_first) for each in found.moves] == asked
        if fields.get("committed_s") is None and asked:
            assert "it has not saved yet" in found.moves[0].why

    def test_a_class_that_may_lose_next_to_nothing_is_not_asked_in_vain(self) -> None:
        sweep = replace(SHIPPED_CLASSES["sweep"], loss_s=5.0)
        busy = [runs("busy", "gpu", workload_class="sweep", saves_when_asked=True)]
        urgent, classes = [wants("u", workload_class="urgent")], {**SHIPPED_CLASSES, "sweep": sweep}
        assert planned(urgent, busy, ONE, classes=classes).moves == ()

    def test_nobody_moves_before_all_that_have_to_have_saved(self) -> None:
        unsaved = runs("new", "n0/2", workload_class="sweep", saves_when_asked=True)
        one, two = ([wants("u", count, workload_class="urgent")] for count in (1, 3))
        found = planned(one, [*self.BUSY, unsaved], nodes(3))
        assert [(each.key, each.saves_first) for each in found.moves] == [("sweep-2", False)]
        found = planned(two, [*self.BUSY, unsaved], nodes(3))
        assert [(each.key, each.saves_first) for each in found.moves] == [("new", True)]
        saved = unsaved._replace(committed_s=NOW_S)
        found = planned(two, [*self.BUSY, saved], nodes(3))
        assert {each.key for each in found.moves} == {"new", "sweep-1", "sweep-2"}

    @pytest.mark.parametrize(
        ("rested_s", "waited_s", "moves"),
        [
            (599.0, 0.0, 0),  # an eval is promised a start within 60 s, and a move takes 30 to 40 s
            (599.0, 19.0, 0),
            (599.0, 20.0, 1),  # the last moment
            (600.0, 0.0, 1),  # 10 min are rest enough
        ],
    )
    def test_what_was_interrupted_rests_until_the_last_moment_that_keeps_a_promise(
        self, rested_s: float, waited_s: float, moves: int
    ) -> None:
        resting = runs(
            *("resting", "gpu"),
            workload_class="sweep",
            is_interrupted=True,
            began_s=NOW_S - rested_s,
            committed_s=NOW_S - rested_s,
        )
        late = [wants("e", workload_class="eval", since_s=NOW_S - waited_s)]
        assert len(planned(late, [resting], ONE).moves) == moves
        rested = runs("rested", "n0/1", committed_s=NOW_S - 1700, unsaved_ranks_s=1700.0)
        own = [replace(each, near=("resting",)) for each in late]  # an eval of its commit
        assert len(planned(own, [resting], ONE).moves) == (rested_s == 600.0)
        both = [resting._replace(devices=("n0/0",)), rested]  # even of a higher class
        [move] = planned(late, both, nodes(2)).moves
        assert move.key == ("resting" if rested_s == 600.0 else "rested")

    def test_who_starts_in_time_anyway_does_not_keep_the_one_behind_from_getting_room(self) -> None:
        # One device is free in 20 s, for "e0". For "e1" the sweep makes room, or it waits an hour.
        ending = runs("ending", "n0/0", workload_class="eval", left_s=20.0)
        sweep = runs("sweep", "n0/1", workload_class="sweep", left_s=HOUR_S, committed_s=NOW_S)
        evals = [wants(f"e{n}", workload_class="eval", work_s=HOUR_S) for n in range(2)]
        found = planned(evals, [ending, sweep], nodes(2))
        assert [(each.key, each.for_key) for each in found.moves] == [("sweep", "e1")]

    def test_of_two_that_lose_the_same_steps_the_smaller_gang_makes_room(self) -> None:
        wide, small = (
            runs(*devices, workload_class="sweep", committed_s=NOW_S)
            for devices in (("a", "n0/0", "n0/1"), ("b", "n0/2"))
        )
        found = planned([wants("e", workload_class="eval")], [wide, small], nodes(3))
        assert [each.key for each in found.moves] == ["b"]

    def test_nothing_moves_for_what_would_still_not_fit(self) -> None:
        busy = [self.BUSY[0], runs("single", "n0/1", began_s=-HOUR_S)]
        assert planned([wants("u", 2, workload_class="urgent")], busy, nodes(2)).moves == ()

    def test_no_more_move_than_are_needed(self) -> None:
        wide = runs(
            *("wide", "n0/2", "n0/3"),
            workload_class="sweep",
            committed_s=990.0,
            unsaved_ranks_s=60.0,
        )
        waiting = [wants("u", 2, workload_class="urgent")]
        found = planned(waiting, [*self.BUSY, wide], nodes(4))
        assert [each.key for each in found.moves] == ["wide"]

    def test_a_promise_that_is_kept_anyway_moves_nobody(self) -> None:
        busy = self.BUSY[0]._replace(left_s=59.0)
        evals = [wants("e", workload_class="eval")]
        assert planned(evals, [busy], nodes(1)).moves == ()
        late = [wants("e", workload_class="eval", since_s=NOW_S - 10)]
        assert len(planned(late, [busy], nodes(1)).moves) == 1

    def test_nobody_passes_onto_what_a_move_makes_whole(self) -> None:
        # The sweep would run for 2 hours, and moves: in 30 s "u" has both devices, not in 2 hours.
        busy = self.BUSY[0]._replace(left_s=2 * HOUR_S)
        waiting = [
            wants("u", 2, workload_class="urgent"),
            wants("hour", work_s=HOUR_S),
            wants("moment", work_s=20.0),
        ]
        found = planned(waiting, [busy], nodes(2))
        assert [each.key for each in found.moves] == ["sweep-1"]
        assert set(started(found)) == {"moment"}
        assert expected(found)["u"] == 30.0

    def test_no_two_promises_are_given_the_same_room(self) -> None:
        evals = [wants(f"e{n}", workload_class="eval", since_s=float(n)) for n in range(3)]
        found = planned(evals, [*self.BUSY], nodes(2))
        assert {(each.key, each.for_key) for each in found.moves} == {
            ("sweep-2", "e0"),
            ("sweep-1", "e1"),
        }

    @pytest.mark.parametrize("change", [{"preemption": False}, {"order": Order.FIFO}])
    def test_without_preemption_nobody_moves(self, change: dict[str, object]) -> None:
        urgent = [wants("u", workload_class="urgent")]
        assert planned(urgent, [*self.BUSY], nodes(2), **change).moves == ()


def test_an_eval_does_not_wait_behind_a_run_of_hours() -> None:
    # A run of 9 hours has the device; it committed a moment ago, and the eval of that begins.
    busy = [runs("r/a01", "gpu", left_s=9 * HOUR_S, committed_s=NOW_S - 2, unsaved_ranks_s=2.0)]
    evals = [wants("r@100", workload_class="eval", work_s=300.0)]
    found = planned(evals, busy, ONE)
    assert [each.key for each in found.moves] == ["r/a01"]
    # Where its need was measured it shares the device at once instead.
    measured = [replace(evals[0], memory_bytes=2 * GIB)]
    beside = [busy[0]._replace(demand=replace(busy[0].demand, memory_bytes=12 * GIB))]
    found = planned(measured, beside, ONE)
    assert (set(started(found)), found.moves) == ({"r@100"}, ())


def test_many_have_a_place_in_the_queue_and_the_first_ones_a_time() -> None:
    busy = [runs("busy", "gpu", left_s=60.0)]
    waiting = [wants(f"w{n:03}", since_s=float(n), work_s=60.0) for n in range(100)]
    found = planned(waiting, busy, ONE)
    assert why(found, "w000") == "0 of 1 device free; after busy, about 60 s"
    assert why(found, "w001") == "0 of 1 device free; after w000, about 2 min"
    assert why(found, "w099") == "0 of 1 device free; place 100 of 100"
