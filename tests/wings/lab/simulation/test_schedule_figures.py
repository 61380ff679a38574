"""What a played queue comes to: quantiles, objectives and predictions by hand, and its picture."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from tracks_dagster.scheduling.policy import Order, SchedulingPolicy
from tracks_dagster.wings.lab.simulation.schedule import play_under
from tracks_dagster.wings.lab.simulation.schedule_figures import (
    YOURS,
    Choice,
    choices,
    figures,
    quantile,
)
from tracks_dagster.wings.lab.simulation.schedule_picture import (
    BARS_MAX,
    Panel,
    schedule_picture,
    span_text,
)
from tracks_dagster.wings.lab.simulation.served import NO_OVERHEADS, Overheads, Played, Served, Stay
from tracks_dagster.wings.lab.simulation.workloads import (
    GIB,
    HOUR_S,
    Submission,
    Workload,
    acme,
    cluster,
    eight_nodes,
)

POLICY = SchedulingPolicy()
MINE = Choice(name=YOURS, policy=POLICY, is_yours=True)


def stay(began_s: float, works_s: float, worked_s: float, freed_s: float, **given: object) -> Stay:
    """A stay on one device."""
    return Stay(
        devices=("n1/0",),
        began_s=began_s,
        works_s=works_s,
        worked_s=worked_s,
        freed_s=freed_s,
        **given,  # type: ignore[arg-type]
    )


def served(
    name: str, workload_class: str, at_s: float, work_s: float, *stays: Stay, **given: object
) -> Served:
    """A submission and what became of it."""
    submission = Submission(
        name=name, at_s=at_s, devices=1, work_s=work_s, workload_class=workload_class
    )
    return Served(submission=submission, stays=stays, **given)  # type: ignore[arg-type]


def played(*every: Served, **given: float) -> Played:
    """A play on two devices."""
    workload = Workload(
        name="by hand",
        submissions=tuple(each.submission for each in every),
        devices=cluster(2, 1),
        origin="this test",
    )
    found: dict[str, float] = {
        "began_s": 0.0,
        "ended_s": 1000.0,
        "waited_free_s": 0.0,
        "fragmented_s": 0.0,
        **given,
    }
    return Played(
        workload=workload,
        overheads=Overheads(bring_up_s=10.0, tear_down_s=10.0, step_s=2.0),
        served=every,
        decisions=1,
        **found,  # type: ignore[arg-type]
    )


def test_shares_are_of_all_device_time() -> None:
    # 1000 s on two devices; held for 500 and 320 s, with work for 480 and 300 of them
    found = figures(
        MINE,
        played(
            served("a", "single", 0.0, 480.0, stay(0.0, 10.0, 490.0, 500.0)),
            served("b", "single", 0.0, 300.0, stay(500.0, 510.0, 810.0, 820.0)),
            waited_free_s=200.0,
            fragmented_s=50.0,
        ),
    )
    assert (found.working, found.starting) == (780.0 / 2000.0, 40.0 / 2000.0)
    assert (found.waited_free, found.fragmented) == (0.1, 0.025)
    assert found.idle_held_s == 10.0


def test_a_class_misses_by_its_own_objectives_and_what_never_ran_misses_too() -> None:
    # evals wait 1 min at most and end within 15; single runs continue 10 min after a move
    moved = (
        stay(0.0, 0.0, 100.0, 110.0, is_moved=True, lost_s=40.0),
        stay(800.0, 810.0, 1110.0, 1120.0),
    )
    found = figures(
        MINE,
        played(
            served("in time", "eval", 0.0, 100.0, stay(60.0, 70.0, 170.0, 180.0)),
            served("waited", "eval", 0.0, 100.0, stay(61.0, 70.0, 170.0, 180.0)),
            served("slow", "eval", 0.0, 900.0, stay(0.0, 10.0, 910.0, 920.0)),
            served("never", "eval", 0.0, 900.0, why_not="its turn never came"),
            served("moved", "single", 0.0, 400.0, *moved),
        ),
    )
    evals, single = found.classes[1:]
    assert (evals.name, evals.submissions, evals.not_run) == ("eval", 4, 1)
    assert (evals.missed, evals.missed_queue, evals.missed_completion) == (3, 2, 2)
    assert (evals.wait.median_s, evals.wait.max_s) == (60.0, 61.0)
    # 100 s, then the next step at 810 s
    assert (single.recovery.max_s, single.missed_recovery) == (710.0, 1)
    assert (found.moves, found.lost_steps) == (1, 20)
    assert found.all.missed == 4
    assert found.why_not == ("never: its turn never came",)


def test_how_far_recurrence_was_off_counts_only_what_it_predicted() -> None:
    estimated = replace(
        served("estimated", "single", 0.0, 100.0, stay(0.0, 0.0, 100.0, 100.0), expected_s=500.0),
        submission=Submission(
            name="estimated", at_s=0.0, devices=1, work_s=100.0, estimate_s=500.0
        ),
    )
    found = figures(
        MINE,
        played(
            served("first", "eval", 0.0, 100.0, stay(0.0, 0.0, 100.0, 100.0)),
            served("low", "eval", 0.0, 100.0, stay(0.0, 0.0, 100.0, 100.0), expected_s=90.0),
            served("high", "eval", 0.0, 100.0, stay(0.0, 0.0, 100.0, 100.0), expected_s=150.0),
            estimated,
        ),
    ).prediction
    assert found is not None
    assert (found.predicted, found.submissions) == (2, 4)
    assert (found.median_error, found.p90_error, found.short) == (0.1, 0.5, 0.5)


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [(1, 0.95, 1), (2, 0.5, 1), (20, 0.95, 19), (21, 0.95, 20), (0, 0.5, 0)],
)
def test_a_quantile_is_the_nearest_rank(count: int, share: float, rank: int) -> None:
    assert quantile([float(n) for n in range(1, count + 1)], share) == rank


def test_yours_is_a_row_of_its_own_unless_it_is_one_of_the_textbooks() -> None:
    assert [(each.name, each.is_yours) for each in choices(POLICY)] == [
        ("FIFO", False),
        ("backfill", False),
        ("fair share", False),
        ("priority", False),
        ("preemption", True),
    ]
    mine = replace(POLICY, order=Order.FAIR)
    assert [each.name for each in choices(mine) if each.is_yours] == [YOURS]
    assert len(choices(mine)) == 6


# --- eight nodes ----------------------------------------------------------------------------------


def eight(name: str) -> Played:
    """The eight nodes under one of the textbook's policies."""
    policy = next(each.policy for each in choices(POLICY) if each.name == name)
    return play_under(policy, eight_nodes(), NO_OVERHEADS)


def hours(found: Played) -> dict[str, list[tuple[float, float]]]:
    """When each had its devices, in hours."""
    return {
        each.submission.name: [
            (round(stay.began_s / HOUR_S, 2), round(stay.freed_s / HOUR_S, 2))
            for stay in each.stays
        ]
        for each in found.served
    }


# Eight devices; name: submitted at, devices, hours.
# base 0: 6, 4 h. wide 0.25: 8, 2 h. short 0.5: 2, 3 h. long 0.75: 2, 5 h. sweep-1 … 8 at 1: 2, 2 h
# each. trial 1.25: 2, 1 h. eval 2: 1, 5 min. urgent 7: 4, 1 h.
def test_first_come_first_served_lets_two_devices_stand_idle_for_hours() -> None:
    # base; wide needs all; then 2 + 2 + 2 + 2: short, long, two of the sweep; two by two the others
    assert hours(eight("FIFO")) == {
        "base": [(0.0, 4.0)],
        "wide": [(4.0, 6.0)],
        "short": [(6.0, 9.0)],
        "long": [(6.0, 11.0)],
        "sweep-1": [(6.0, 8.0)],
        "sweep-2": [(6.0, 8.0)],
        "sweep-3": [(8.0, 10.0)],
        "sweep-4": [(8.0, 10.0)],
        "sweep-5": [(9.0, 11.0)],  # after short
        "sweep-6": [(10.0, 12.0)],
        "sweep-7": [(10.0, 12.0)],
        "sweep-8": [(11.0, 13.0)],  # after long and sweep-5
        "trial": [(11.0, 12.0)],
        "eval": [(12.0, 12.08)],  # ten hours for five minutes
        "urgent": [(12.0, 13.0)],
    }
    # of 8 × 13 h: 2 devices from 0.25 to 4 h while something waits, of these 0.25 h with `wide` alone
    assert eight("FIFO").waited_free_s == 2 * 3.75 * HOUR_S
    assert eight("FIFO").fragmented_s == 2 * 0.25 * HOUR_S


def test_backfill_fills_the_gap_with_what_ends_before_the_first_one_starts() -> None:
    found = hours(eight("backfill"))
    assert found["short"] == [(0.5, 3.5)]  # 3 h end before 4
    assert found["eval"] == [(3.5, 3.58)]  # when short is done; two hours of a sweep would not end
    assert found["wide"] == [(4.0, 6.0)]  # as under FIFO
    assert found["long"] == [(6.0, 11.0)]
    assert found["urgent"] == [(11.0, 12.0)]  # all came before it


def test_fair_share_puts_one_trial_before_another_teams_sweep() -> None:
    # at 6 h language had 6 × 4 h of base and the eval, vision 8 × 2 h of wide
    assert hours(eight("priority"))["trial"] == [(11.0, 12.0)]
    assert hours(eight("fair share"))["trial"] == [(6.0, 7.0)]


def test_priority_lets_the_urgent_one_pass_all_that_wait() -> None:
    found = hours(eight("priority"))
    assert found["urgent"] == [(8.0, 9.0)]  # when three of the sweep have ended: nothing is moved
    assert found["wide"] == [(4.0, 6.0)]


def test_preemption_moves_only_what_saves_and_loses_no_step() -> None:
    found = eight("preemption")
    # at 2 h base and short have just saved; of the two the smaller gang starts again
    assert hours(found)["short"] == [(0.5, 2.0), (2.08, 3.58)]
    # at 7 h the sweep has just saved: two of it make room for the four of the urgent one
    assert hours(found)["sweep-1"] == hours(found)["sweep-2"] == [(6.0, 7.0), (8.0, 9.0)]
    assert hours(found)["urgent"] == [(7.0, 8.0)]
    assert hours(found)["wide"] == [(4.0, 6.0)]  # the first one starts when it would have
    moved = {each.submission.name for each in found.served if any(s.is_moved for s in each.stays)}
    savers = {each.name for each in eight_nodes().submissions if each.saves_every_s}
    assert moved
    assert moved <= savers
    by_name = {each.submission.name: each for each in found.served}
    assert by_name["urgent"].wait_s == 0.0
    assert by_name["eval"].wait_s == 0.0
    assert sum(stay.lost_s for each in found.served for stay in each.stays) == 0.0


def test_no_device_is_held_without_work_whatever_the_policy() -> None:
    overheads = Overheads(bring_up_s=60.0, save_s=10.0, tear_down_s=5.0)
    made = acme(150, seed=3, devices=cluster(2, 4, memory_bytes=GIB))
    for choice in choices(POLICY):
        found = play_under(choice.policy, made, overheads)
        assert found.idle_held_s <= overheads.idle_s_max, choice.name
        assert all(each.why_not is None for each in found.served), choice.name


# --- the picture ----------------------------------------------------------------------------------


def panels(workload: Workload, overheads: Overheads) -> list[Panel]:
    """A panel a policy."""
    found = []
    for choice in choices(POLICY):
        play = play_under(choice.policy, workload, overheads)
        found.append(Panel(figures=figures(choice, play), played=play))
    return found


def test_a_small_queue_is_a_bar_a_stay_and_a_large_one_areas() -> None:
    small = panels(eight_nodes(), NO_OVERHEADS)
    picture = schedule_picture(small)
    root = ET.fromstring(picture)
    titles = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    stays = sum(len(each.stays) for panel in small for each in panel.played.served)
    assert sum(title.startswith("urgent: urgent, 4 devices") for title in titles) >= len(small)
    assert len(titles) >= stays
    assert any(title.endswith(", moved") for title in titles)
    for panel in small:
        assert f">{panel.figures.policy}" in picture
    large = panels(acme(BARS_MAX + 1, seed=0, devices=cluster(2, 8)), NO_OVERHEADS)
    assert schedule_picture(large).count("<polygon") >= 4 * len(large)  # three classes, the queue
    assert '<rect class="k0" x=' in schedule_picture(large)  # the legend


def test_a_name_in_the_picture_is_text_and_no_markup() -> None:
    evil = Submission(name="<script>&", at_s=0.0, devices=1, work_s=9.0, workload_class="eval")
    made = Workload(name="evil", submissions=(evil,), devices=cluster(1, 1), origin="this test")
    picture = schedule_picture(panels(made, NO_OVERHEADS))
    assert "<script" not in picture
    assert ET.fromstring(picture) is not None


def test_areas_hold_as_much_as_was_held() -> None:
    made = acme(BARS_MAX + 1, seed=0, devices=cluster(2, 8))
    unnamed = tuple(
        replace(each, workload_class="") if each.workload_class == POLICY.default_class else each
        for each in made.submissions
    )
    panel = panels(replace(made, submissions=unnamed), NO_OVERHEADS)[0]
    picture = schedule_picture([panel])
    points = [
        [tuple(map(float, corner.split(","))) for corner in found.split()]
        for found in re.findall(r'<polygon class="k\d" points="([^"]*)"', picture)
    ]
    area = sum(abs(_area(each)) for each in points)  # type: ignore[arg-type]
    well = re.search(r'class="well" x="12" y="\d+" width="(\d+)" height="(\d+)"', picture)
    assert well is not None
    held = panel.figures.working + panel.figures.starting
    assert area / (int(well[1]) * int(well[2])) == pytest.approx(held, rel=0.02)


def _area(corners: list[tuple[float, float]]) -> float:
    pairs = zip(corners, [*corners[1:], corners[0]], strict=True)
    return sum(x * v - u * y for (x, y), (u, v) in pairs) / 2


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0 s"), (59.0, "59 s"), (90.0, "1.5 min"), (36000.0, "10 h"), (400_000.0, "4.6 d")],
)
def test_a_span_has_two_digits(seconds: float, words: str) -> None:
    assert span_text(seconds) == words
