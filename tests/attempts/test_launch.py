"""Which open attempts get a Dagster run: a pure table over runs and gangs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.histories import History
from tracks_dagster.attempts.launch import (
    BACKOFF_S_MAX,
    FRUITLESS_RUNS_MAX,
    JUST_PLACED,
    OpenAttempt,
    PendingLaunch,
    is_lost,
    needs_supervisor,
    plan_launches,
)
from tracks_dagster.attempts.ports import GangPhase, GangReport, OrchestratorRun

NOW = datetime(2026, 11, 22, 2, 0, tzinfo=UTC)
NEVER, ALIVE, GONE = GangPhase.NEVER_STARTED, GangPhase.ALIVE, GangPhase.GONE


def run(
    dagster_run_id: str,
    *,
    is_finished: bool,
    asked_s_ago: float | None = None,
    ended_s_ago: float | None = None,
    problem: str = "",
) -> OrchestratorRun:
    return OrchestratorRun(
        dagster_run_id=dagster_run_id,
        is_finished=is_finished,
        is_canceling=False,
        is_failed=is_finished,
        asked_at=None if asked_s_ago is None else NOW - timedelta(seconds=asked_s_ago),
        ended_at=None if ended_s_ago is None else NOW - timedelta(seconds=ended_s_ago),
        problem=problem,
    )


def opened(
    phase: GangPhase, *runs: OrchestratorRun, placed: bool = False, here: str = "node-1"
) -> OpenAttempt:
    history = History("r-1").declare().open()
    if placed:
        history.supervise("claimed").place()
    attempt = history.state.open_attempt
    assert attempt is not None
    gang = GangReport(phase=phase, where=here)
    return OpenAttempt(run_id="r-1", attempt=attempt, runs=runs, gang=gang)


DEAD, LIVING = run("claimed", is_finished=True), run("other", is_finished=False)


@pytest.mark.parametrize(
    ("attempt", "wanted", "lost"),
    [
        # nobody was ever asked for it
        (opened(NEVER), True, False),
        # one is on its way, or supervises: neither sensor touches it
        (opened(NEVER, LIVING), False, False),
        (opened(ALIVE, LIVING, DEAD, placed=True), False, False),
        (opened(GONE, LIVING, placed=True), False, False),
        # its supervisor died, the gang lives: adopt
        (opened(ALIVE, DEAD, placed=True), True, False),
        (opened(ALIVE, DEAD), True, False),
        # its supervisor died before any rank was placed, and no gang was started
        (opened(NEVER, DEAD), True, False),
        # supervisor and gang are gone: the watcher closes it
        (opened(GONE, DEAD, placed=True), False, True),
        (opened(GONE, DEAD), False, True),
        # placed here, and its folder is gone: nothing can live
        (opened(NEVER, DEAD, placed=True), False, True),
        # placed on another machine: not known to be gone
        (opened(NEVER, DEAD, placed=True, here="node-2"), False, False),
    ],
)
def test_an_open_attempt_gets_a_supervisor_or_is_closed_but_never_both(
    attempt: OpenAttempt, wanted: bool, lost: bool
) -> None:
    assert (needs_supervisor(attempt), is_lost(attempt, NOW + JUST_PLACED)) == (wanted, lost)


@pytest.mark.parametrize(
    ("left", "number"),
    [
        ((), 1),  # all were deleted: one claimed, by the track
        (("r-1/a01/0",), 1),
        (("r-1/a01/1",), 2),  # the older one was deleted
        (("r-1/a01/7", "r-1/a01/2"), 8),
        (("r-1/a01/1", None, "r-1/a02/9", "r-1/a01/x"), 2),  # by hand, another's, no number
    ],
)
def test_a_run_key_is_above_those_of_all_runs_that_are_left(
    left: tuple[str | None, ...], number: int
) -> None:
    runs = [replace(run(f"dead-{each}", is_finished=True), run_key=each) for each in left]
    plan = plan_launches([opened(ALIVE, *runs, placed=True)], NOW)
    assert [request.run_key for request in plan.requests] == [f"r-1/a01/{number}"]
    assert [request.attempt_key for request in plan.requests] == ["r-1/a01"]


def test_a_repeated_tick_asks_with_the_same_run_key() -> None:
    attempt = opened(NEVER, DEAD)
    assert plan_launches([attempt], NOW) == plan_launches([attempt], NOW)


def test_dagster_runs_that_die_before_they_claim_are_not_requested_for_ever() -> None:
    dead = [run(f"dead-{n}", is_finished=True) for n in range(FRUITLESS_RUNS_MAX)]
    assert plan_launches([opened(NEVER, *dead[1:])], NOW).requests
    plan = plan_launches([opened(NEVER, *dead)], NOW)
    assert not plan.requests
    assert "r-1/a01: 20 Dagster runs died" in plan.given_up[0]


def test_runs_that_claimed_the_attempt_may_die_as_often_as_they_like() -> None:
    dead = [run("claimed", is_finished=True)] * (FRUITLESS_RUNS_MAX + 5)
    assert plan_launches([opened(ALIVE, *dead, placed=True)], NOW).requests


def test_runs_that_claim_and_die_without_a_gang_are_not_requested_for_ever() -> None:
    dead = [run("claimed", is_finished=True)] * FRUITLESS_RUNS_MAX
    assert not plan_launches([opened(NEVER, *dead)], NOW).requests


@pytest.mark.parametrize(
    ("died_count", "ended_s_ago", "is_asked"),
    [
        (0, 0.0, True),
        (1, 9.0, False),  # 10 s
        (1, 10.0, True),
        (3, 39.0, False),  # 10 * 2 ** 2
        (3, 40.0, True),
        (10, BACKOFF_S_MAX - 1, False),  # 10 * 2 ** 9 is more than the most
        (10, BACKOFF_S_MAX, True),
        (FRUITLESS_RUNS_MAX, 1e6, False),  # a person has to look
    ],
)
def test_after_runs_that_died_for_nothing_the_next_one_waits_longer_each_time(
    died_count: int, ended_s_ago: float, is_asked: bool
) -> None:
    died = [
        run(f"dead-{n}", is_finished=True, ended_s_ago=ended_s_ago + 400 * n)
        for n in range(died_count)
    ]
    assert bool(plan_launches([opened(NEVER, *died)], NOW).requests) is is_asked


def test_a_supervisor_that_died_on_its_gang_is_followed_at_once() -> None:
    dead = run("claimed", is_finished=True, ended_s_ago=0.0)
    plan = plan_launches([opened(ALIVE, dead, placed=True)], NOW)
    assert plan.requests
    assert [each.failed_count for each in plan.pending] == [0]


def test_a_gang_that_waits_in_its_place_s_own_queue_says_for_what() -> None:
    words = "job 7 waits in Slurm's queue: Resources"
    waiting = opened(ALIVE, run("claimed", is_finished=False), placed=False)
    waiting = replace(waiting, gang=GangReport(phase=ALIVE, where="Slurm", waits=words))
    (pending,) = plan_launches([waiting], NOW).pending
    assert pending == PendingLaunch(key="r-1/a01", failed_count=0, why=words, waits=True)


def test_launches_that_lead_to_nothing_are_counted_with_what_they_met() -> None:
    late = run("late", is_finished=True, ended_s_ago=5.0, problem="the code server did not answer")
    before = run("before", is_finished=True, ended_s_ago=100.0)
    coming = run("coming", is_finished=False, asked_s_ago=3.0)
    assert plan_launches([opened(NEVER, late, before)], NOW).pending == (
        PendingLaunch(
            key="r-1/a01",
            failed_count=2,
            why="the code server did not answer",
            next_at="2026-11-22T02:00:15.000000Z",  # 20 s after the newest ended
        ),
    )
    [pending] = plan_launches([opened(NEVER, coming, late, before)], NOW).pending
    assert (pending.failed_count, pending.asked_at) == (2, "2026-11-22T01:59:57.000000Z")
    supervised = opened(ALIVE, run("claimed", is_finished=False), late, placed=True)
    assert plan_launches([supervised], NOW).pending == ()
    [unexplained] = plan_launches([opened(NEVER, before)], NOW).pending
    assert unexplained.why == "see Dagster run before"
