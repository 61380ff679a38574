"""The snapshot and eval assets and the sensor run_evals, executed by Dagster in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    ExecuteInProcessResult,
    SensorResult,
    TableMetadataValue,
    build_sensor_context,
    materialize,
)

from tests.bodies import EVAL_RESULT, declared
from tests.fakes import FakeEvaluator, FakeObjectStore, FakeOrchestrator
from tests.histories import History
from tests.plain_site import aws_docs, evals, flights, run_evals
from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.defs.assets.snapshots import CHECK
from tracks_dagster.evals.effects.running import run_eval
from tracks_dagster.settings import Settings
from tracks_dagster.track import names
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.wiring import App, build

EVAL = "r-1/heldout-loss@40"


@pytest.fixture
def app(tmp_path: Path) -> App:
    """A real application on an empty home; only the evaluator is a fake."""
    home = tmp_path / "home"
    return build(Settings(home=home, store_url=str(home / "store"), root=tmp_path))


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


def make(app: App, instance: DagsterInstance, source: Path) -> ExecuteInProcessResult:
    return materialize(
        [aws_docs],
        instance=instance,
        resources={"app": app},
        run_config={"ops": {"aws_docs": {"config": {"source": str(source)}}}},
        raise_on_error=False,
    )


def trained(app: App, **fields: Any) -> CheckpointRef:
    history = History().declare(**fields).open().place().restore().commit(40)
    history.end("completed", last_step=40).write_to(app.store)
    app.tracks.project(history.name)
    return history.state.resumable[-1]


def with_evaluator(app: App, answer: object) -> App:
    return replace(app, evaluator=FakeEvaluator(app.store, answer))  # type: ignore[arg-type]


def test_a_materialized_snapshot_shows_its_id_as_data_version_and_a_green_check(
    app: App, instance: DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "own.txt").write_text("Some English.")
    result = make(app, instance, tmp_path / "own.txt")
    assert result.success
    (made,) = result.asset_materializations_for_node("aws_docs")
    snapshot_id = find_snapshot(app.tracks, "aws-docs").snapshot_id
    assert made.tags["dagster/data_version"] == snapshot_id
    assert made.metadata["dagster/row_count"].value == 1
    assert made.metadata["source"].value == "own text: own.txt"
    (check,) = result.get_asset_check_evaluations()
    assert check.passed
    assert check.check_name == CHECK


def test_bad_rows_fail_the_check_with_a_table_and_nothing_is_committed(
    app: App, instance: DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "own.txt").write_text("a\x00b")
    result = make(app, instance, tmp_path / "own.txt")
    assert not result.success
    assert not result.asset_materializations_for_node("aws_docs")
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    assert check.blocking
    table = check.metadata["bad_values"]
    assert isinstance(table, TableMetadataValue)
    assert table.records[0].data == {
        "row": 1,
        "column": "text",
        "value": "own.txt: a\x00b",
        "must be": "free of control characters",
    }
    assert app.tracks.find_dataset("aws-docs") is None


def test_a_source_that_cannot_be_read_fails_with_the_reason(
    app: App, instance: DagsterInstance, tmp_path: Path
) -> None:
    result = make(app, instance, tmp_path / "nowhere.txt")
    assert not result.success
    failure = result.failure_data_for_node("aws_docs")
    assert failure is not None
    assert "There is no file or folder" in str(failure.user_failure_data or failure.error)
    assert app.tracks.find_dataset("aws-docs") is None


def test_a_snapshot_of_the_installed_flights_is_made_without_any_config(
    app: App, instance: DagsterInstance
) -> None:
    result = materialize([flights], instance=instance, resources={"app": app})
    (made,) = result.asset_materializations_for_node("flights")
    assert made.metadata["dagster/row_count"].value == 273_355


def tick(
    app: App, instance: DagsterInstance, dagster: FakeOrchestrator, cursor: str | None = None
) -> SensorResult:
    context = build_sensor_context(
        instance=instance, cursor=cursor, resources={"app": app, "orchestrator": dagster}
    )
    result = run_evals(context)
    assert isinstance(result, SensorResult)
    return result._replace(cursor=context.cursor)


def evaluate(app: App, instance: DagsterInstance, number: int) -> ExecuteInProcessResult:
    instance.add_dynamic_partitions(names.EVAL_PARTITIONS, [EVAL])
    return materialize(
        [evals],
        instance=instance,
        resources={"app": app, "orchestrator": FakeOrchestrator()},
        partition_key=EVAL,
        tags={names.TAG_EVAL: f"{EVAL}/{number}"},
        raise_on_error=False,
    )


def test_the_sensor_requests_the_eval_with_the_tracks_run_key(
    app: App, instance: DagsterInstance
) -> None:
    trained(app)
    result = tick(app, instance, FakeOrchestrator())
    (request,) = result.run_requests or []
    assert (request.run_key, request.partition_key) == (f"{EVAL}/1", EVAL)
    assert (request.tags[names.TAG_EVAL], request.tags[names.TAG_LEASE]) == (f"{EVAL}/1", "0")
    assert names.TAG_NO_LEASE not in request.tags
    assert request.tags[names.TAG_PRIORITY] == "900"
    assert request.tags[names.TAG_TRAINING_RUN] == "r-1"
    (added,) = result.dynamic_partitions_requests or []
    assert (added.partitions_def_name, list(added.partition_keys)) == ("evals", [EVAL])


def test_an_eval_that_holds_no_device_is_limited_by_dagsters_queue(
    app: App, instance: DagsterInstance
) -> None:
    [suite] = declared().evals
    trained(app, evals=(replace(suite, needs_device=False),))
    (request,) = tick(app, instance, FakeOrchestrator()).run_requests or []
    assert names.TAG_LEASE not in request.tags
    assert request.tags[names.TAG_NO_LEASE] == "true"


def test_a_sensor_with_nothing_to_do_says_so(app: App, instance: DagsterInstance) -> None:
    result = tick(app, instance, FakeOrchestrator())
    assert result.skip_reason is not None
    assert result.skip_reason.skip_message == "no run owes an eval"


def test_an_eval_shows_what_it_measured_on_what(app: App, instance: DagsterInstance) -> None:
    ref = trained(app)
    tick(app, instance, FakeOrchestrator())
    result = evaluate(with_evaluator(app, EVAL_RESULT), instance, 1)
    assert result.success
    (made,) = result.asset_materializations_for_node("evals")
    assert made.partition == EVAL
    assert made.metadata["manifest_sha256"].value == ref.manifest_sha256
    assert made.metadata["metrics/loss"].value == 2.5
    assert made.metadata["seed"].value == 7


def test_a_failed_eval_is_red_with_the_evaluators_words(
    app: App, instance: DagsterInstance
) -> None:
    trained(app)
    tick(app, instance, FakeOrchestrator())
    result = evaluate(with_evaluator(app, "ValueError: no such suite"), instance, 1)
    assert not result.success
    failure = result.failure_data_for_node("evals")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert failure.user_failure_data.description == "evaluator_error: ValueError: no such suite"
    (request,) = tick(app, instance, FakeOrchestrator()).run_requests or []
    assert request.run_key == f"{EVAL}/2"


def test_a_promotion_is_reported_once_as_a_materialization(
    app: App, instance: DagsterInstance
) -> None:
    ref = trained(app)
    tick(app, instance, FakeOrchestrator())
    evaluate(with_evaluator(app, EVAL_RESULT), instance, 1)
    (event,) = tick(app, instance, FakeOrchestrator()).asset_events
    assert isinstance(event, AssetMaterialization)
    assert event.asset_key == AssetKey(names.PROMOTIONS)
    assert (event.tags or {})[names.TAG_DATA_VERSION] == ref.manifest_sha256
    assert event.metadata["alias"].value == "best"
    # The daemon died before it stored the event.
    (again,) = tick(app, instance, FakeOrchestrator()).asset_events
    assert again == event
    instance.report_runless_asset_event(event)
    assert tick(app, instance, FakeOrchestrator()).asset_events == []


def promoted_by_hand(app: App, alias: str) -> None:
    """As `tracks promote` does: a record in the run's track, and nothing else."""
    state = app.tracks.run("r-1")
    by_hand = replace(state.promotions[-1].body, alias=alias, decided_by="ann", why=f"for {alias}")
    draft = app.tracks.draft(Kind.PROMOTION_DECIDED, by_hand)
    app.tracks.decide_run("r-1", lambda _: draft)


def test_a_promotion_by_a_person_becomes_an_event_after_those_before_it_and_only_once(
    app: App, instance: DagsterInstance
) -> None:
    trained(app)
    tick(app, instance, FakeOrchestrator())
    evaluate(with_evaluator(app, EVAL_RESULT), instance, 1)
    for event in tick(app, instance, FakeOrchestrator()).asset_events:
        instance.report_runless_asset_event(event)
    promoted_by_hand(app, "production")
    promoted_by_hand(app, "canary")
    events = tick(app, instance, FakeOrchestrator()).asset_events
    assert [event.metadata["alias"].value for event in events] == ["production", "canary"]
    assert [event.metadata["decided_by"].value for event in events] == ["ann", "ann"]
    instance.report_runless_asset_event(events[0])  # then Dagster's storage was locked
    assert tick(app, instance, FakeOrchestrator()).asset_events == [events[1]]
    instance.report_runless_asset_event(events[1])
    assert tick(app, instance, FakeOrchestrator()).asset_events == []


def test_promotions_that_dagster_shows_are_looked_for_only_once_an_hour(
    app: App, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(app)
    tick(app, instance, FakeOrchestrator())
    evaluate(with_evaluator(app, EVAL_RESULT), instance, 1)
    (event,) = tick(app, instance, FakeOrchestrator()).asset_events
    instance.report_runless_asset_event(event)
    cursor = tick(app, instance, FakeOrchestrator()).cursor
    asked: list[object] = []
    fetch = instance.fetch_materializations
    monkeypatch.setattr(
        instance, "fetch_materializations", lambda *a, **k: asked.append(a) or fetch(*a, **k)
    )
    at = app.now().replace(minute=30)
    now = replace(app, now=lambda: at)
    cursor = tick(now, instance, FakeOrchestrator(), cursor).cursor
    asked.clear()
    cursor = tick(now, instance, FakeOrchestrator(), cursor).cursor
    assert asked == []
    tick(replace(app, now=lambda: at + timedelta(hours=1)), instance, FakeOrchestrator(), cursor)
    assert len(asked) == 1
    assert tick(now, instance, FakeOrchestrator(), "no JSON").asset_events == []


def test_an_eval_whose_dagster_run_died_before_it_was_shown_is_shown_once_later(
    app: App, instance: DagsterInstance
) -> None:
    ref = trained(app)
    tick(app, instance, FakeOrchestrator())
    evaluator = FakeEvaluator(cast(FakeObjectStore, app.store), EVAL_RESULT)
    run_eval(app.tracks, evaluator, "r-1", "heldout-loss@40", 1)
    instance.add_dynamic_partitions(names.EVAL_PARTITIONS, [EVAL])
    now = app.now
    later = replace(app, now=lambda: now() + timedelta(hours=1))
    made = [e for e in tick(later, instance, FakeOrchestrator()).asset_events if e.partition]
    assert [(e.asset_key, e.partition) for e in made] == [(AssetKey(names.EVAL_PARTITIONS), EVAL)]
    assert made[0].metadata["manifest_sha256"].value == ref.manifest_sha256
    instance.report_runless_asset_event(made[0])
    again = tick(later, instance, FakeOrchestrator()).asset_events
    assert [e for e in again if e.partition] == []


def test_a_refused_promotion_is_an_observation(app: App, instance: DagsterInstance) -> None:
    trained(app)
    tick(app, instance, FakeOrchestrator())
    worse = {**EVAL_RESULT, "metrics": {"loss": 9.0}}
    evaluate(with_evaluator(app, worse), instance, 1)
    (event,) = tick(app, instance, FakeOrchestrator()).asset_events
    assert isinstance(event, AssetObservation)
    assert "the threshold is not met" in str(event.metadata["why"].value)
    kinds = [record.kind for record in app.tracks.records("runs/r-1")]
    assert kinds.count(Kind.PROMOTION_DECIDED) == 1
