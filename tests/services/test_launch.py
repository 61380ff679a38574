"""Which open attempts get a Dagster run: a pure table over runs and gangs."""

from __future__ import annotations

import pytest

from tests.histories import History
from tracks_dagster.core.ports import GangPhase, GangReport, OrchestratorRun
from tracks_dagster.services.launch import (
    FRUITLESS_RUNS_MAX,
    OpenAttempt,
    is_lost,
    needs_supervisor,
    plan_launches,
)

NEVER, ALIVE, GONE = GangPhase.NEVER_STARTED, GangPhase.ALIVE, GangPhase.GONE


def run(dagster_run_id: str, *, is_finished: bool) -> OrchestratorRun:
    return OrchestratorRun(
        dagster_run_id=dagster_run_id,
        is_finished=is_finished,
        is_canceling=False,
        is_failed=is_finished,
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
    assert (needs_supervisor(attempt), is_lost(attempt)) == (wanted, lost)


def test_a_run_key_counts_the_dagster_runs_that_died() -> None:
    plan = plan_launches([opened(ALIVE, DEAD, run("before", is_finished=True), placed=True)])
    assert [request.run_key for request in plan.requests] == ["r-1/a01/2"]
    assert [request.attempt_key for request in plan.requests] == ["r-1/a01"]


def test_a_repeated_tick_asks_with_the_same_run_key() -> None:
    attempt = opened(NEVER, DEAD)
    assert plan_launches([attempt]) == plan_launches([attempt])


def test_dagster_runs_that_die_before_they_claim_are_not_requested_for_ever() -> None:
    dead = [run(f"dead-{n}", is_finished=True) for n in range(FRUITLESS_RUNS_MAX)]
    assert plan_launches([opened(NEVER, *dead[1:])]).requests
    plan = plan_launches([opened(NEVER, *dead)])
    assert not plan.requests
    assert "r-1/a01: 20 Dagster runs died" in plan.given_up[0]


def test_runs_that_claimed_the_attempt_may_die_as_often_as_they_like() -> None:
    dead = [run("claimed", is_finished=True)] * (FRUITLESS_RUNS_MAX + 5)
    assert plan_launches([opened(ALIVE, *dead, placed=True)]).requests


def test_runs_that_claim_and_die_without_a_gang_are_not_requested_for_ever() -> None:
    dead = [run("claimed", is_finished=True)] * FRUITLESS_RUNS_MAX
    assert not plan_launches([opened(NEVER, *dead)]).requests
