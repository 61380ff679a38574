"""The schedule of drills: a round declares small runs, and is red where an earlier one went wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, RunRequest, build_schedule_context

from tests.histories import History
from tests.plain_site import drill_every_week, play_drills
from tests.stories import Story
from tracks_dagster.attempts.drills import claim_note, parse_drill
from tracks_dagster.track.names import DRILL_JOB
from tracks_dagster.track.records import Kind
from tracks_dagster.wings.lab.edge.weekly_drills import CHOSEN
from tracks_dagster.wiring import App

SUNDAY = datetime(2026, 2, 1, 4, 30, tzinfo=UTC)


@pytest.fixture
def home(app: App) -> App:
    """A home with the data of the example that is trained."""
    for dataset in Story(app.store).datasets:
        dataset.write_to(app.store)
    app.projector.scan()
    return app


def played(app: App, instance: DagsterInstance, **config: object) -> ExecuteInProcessResult:
    """Play a round: as the schedule does without config, else as somebody on the launchpad."""
    run_config = {"ops": {"play_round": {"config": config}}} if config else None
    return play_drills.execute_in_process(
        run_config=run_config, instance=instance, resources={"app": app}, raise_on_error=False
    )


def failure_of(result: ExecuteInProcessResult) -> str:
    [event] = result.get_step_failure_events()
    return str(event.event_specific_data)


def test_a_tick_asks_for_one_round_however_often_it_is_repeated() -> None:
    for _ in range(2):
        request = drill_every_week(build_schedule_context(scheduled_execution_time=SUNDAY))
        assert isinstance(request, RunRequest)
        assert request.run_key == "20260201"


def test_a_round_declares_a_run_for_each_chosen_drill(home: App, instance: DagsterInstance) -> None:
    assert played(home, instance).success
    rows = home.ledger.query("select run_id from training_runs")
    declared = [home.tracks.run(row["run_id"]).declared for row in rows]
    assert sorted(each.drills[0].kind for each in declared) == sorted(CHOSEN)
    assert {each.owner for each in declared} == {DRILL_JOB}


def test_a_round_is_red_and_names_the_drill_of_an_earlier_one_that_went_wrong(
    home: App, instance: DagsterInstance
) -> None:
    drill = parse_drill("nan@13")
    earlier = History("drill-nan-1", begin=datetime.now(UTC) - timedelta(days=7))
    earlier.declare(drills=(drill,), owner=DRILL_JOB).open().place().restore()
    earlier.add(Kind.NOTE, claim_note(0, drill), attempt_id=1)
    earlier.end("code_error", last_step=12).refuse().write_to(home.store)
    home.tracks.project(earlier.name)
    result = played(home, instance, kinds=["preempt"])
    assert "drill-nan-1 (nan@13): ended as code_error" in failure_of(result)
    assert len(home.ledger.query("select 1 from training_runs")) == 2  # and the new one is declared


def test_a_drill_that_needs_the_home_for_itself_is_refused_by_name(
    home: App, instance: DagsterInstance
) -> None:
    found = failure_of(played(home, instance, kinds=["kill_daemon"]))
    assert "is not a drill to play beside other work" in found
    assert home.ledger.query("select 1 from training_runs") == []
