"""The incident_review asset, its two checks and its schedule, executed by Dagster in this process."""

from __future__ import annotations

from datetime import UTC, datetime

from dagster import (
    AssetCheckKey,
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
    ExecuteInProcessResult,
    MarkdownMetadataValue,
    RunRequest,
    build_schedule_context,
)

from tests.bodies import BEGIN
from tests.histories import Grown, History
from tests.plain_site import review_every_day
from tracks_dagster.definitions import defs
from tracks_dagster.defs.assets.review import DAYS, HAS_EVAL, HAS_VERDICT
from tracks_dagster.track import names
from tracks_dagster.wiring import App

DAY = BEGIN.date().isoformat()


def write(app: App, track: Grown) -> None:
    track.write_to(app.store)
    app.tracks.project(track.name)


def unexplained() -> History:
    return History("lost").declare().open().supervise().place().end("unknown", confidence=0.2)


def review(app: App, instance: DagsterInstance, day: str = DAY) -> ExecuteInProcessResult:
    job = defs.resolve_job_def(names.REVIEW_JOB)
    return job.execute_in_process(instance=instance, resources={"app": app}, partition_key=day)


def passed(done: ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in done.get_asset_check_evaluations()}


def test_a_day_is_shown_as_tables_and_as_numbers_that_can_be_plotted(
    app: App, instance: DagsterInstance
) -> None:
    write(app, History("r-1").declare().open().supervise().place().end("gpu_oom", last_step=3))
    done = review(app, instance)
    [made] = done.asset_materializations_for_node(names.INCIDENT_REVIEW)
    assert made.partition == DAY
    assert "1 attempt ended, 1 failed" in str(made.metadata["headline"].value)
    table = made.metadata["review"]
    assert isinstance(table, MarkdownMetadataValue)
    assert "| gpu\\_oom | memory and disk |" in str(table.value)
    assert made.metadata["attempts_failed"].value == 1
    assert isinstance(made.metadata["device_hours"].value, float)
    assert passed(done) == {HAS_VERDICT: True, HAS_EVAL: True}


def test_the_check_is_red_while_an_attempt_has_no_verdict_and_green_once_it_was_read_again(
    app: App, instance: DagsterInstance
) -> None:
    lost = unexplained()
    write(app, lost)
    done = review(app, instance)
    assert done.success  # nothing stops because of it
    [red] = [each for each in done.get_asset_check_evaluations() if not each.passed]
    assert (red.check_name, red.partition) == (HAS_VERDICT, DAY)
    assert red.severity is AssetCheckSeverity.ERROR
    assert "lost/a01" in (red.description or "")
    write(app, lost.reclassify(1, "host_oom"))
    assert passed(review(app, instance)) == {HAS_VERDICT: True, HAS_EVAL: True}


def test_a_promotion_without_a_completed_eval_is_named_by_the_other_check(
    app: App, instance: DagsterInstance
) -> None:
    history = History("r-1").declare().open().supervise().place().restore().commit(40)
    history.end("completed", last_step=40).open_eval(history.state.checkpoints[-1].ref)
    write(app, history.promote(history.state.evals[-1].opened))
    done = review(app, instance)
    assert passed(done) == {HAS_VERDICT: True, HAS_EVAL: False}
    [red] = [each for each in done.get_asset_check_evaluations() if not each.passed]
    assert "r-1@40 as best" in (red.description or "")


def test_a_good_day_does_not_hide_a_bad_one(app: App, instance: DagsterInstance) -> None:
    write(app, unexplained())
    review(app, instance)
    review(app, instance, "2026-02-01")  # a day on which nothing happened
    key = AssetCheckKey(AssetKey(names.INCIDENT_REVIEW), HAS_VERDICT)
    result = instance.event_log_storage.get_asset_check_execution_history(key, limit=10)
    by_day = {
        each.evaluation.partition: each.evaluation.passed for each in result if each.evaluation
    }
    assert by_day == {DAY: False, "2026-02-01": True}


def test_a_broken_price_table_does_not_stop_a_review(app: App, instance: DagsterInstance) -> None:
    write(app, unexplained())
    (app.settings.home / "prices.yaml").write_text("currency: money\n")
    [made] = review(app, instance).asset_materializations_for_node(names.INCIDENT_REVIEW)
    assert "cost_usd" not in made.metadata


def test_the_nightly_tick_asks_for_the_day_that_is_over_and_repeats_itself_harmlessly() -> None:
    tick = datetime(2026, 2, 1, 0, 10, tzinfo=UTC)
    for _ in range(2):
        with build_schedule_context(scheduled_execution_time=tick) as context:
            request = review_every_day(context)
            assert isinstance(request, RunRequest)
            assert (request.run_key, request.partition_key) == ("2026-01-31", "2026-01-31")


def test_old_days_and_the_running_one_have_a_partition() -> None:
    days = DAYS.get_partition_keys(current_time=datetime(2026, 2, 1, 12, 0, tzinfo=UTC))
    assert (days[0], days[-1]) == ("2026-01-01", "2026-02-01")
