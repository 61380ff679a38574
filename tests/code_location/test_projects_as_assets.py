"""Each project's own assets: its training declares a run, its model shows each promotion."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    AutomationCondition,
    DagsterInstance,
    Definitions,
    ExecuteInProcessResult,
    SensorResult,
    build_sensor_context,
    evaluate_automation_conditions,
    materialize,
)

from tests.fakes import FakeOrchestrator
from tests.histories import DatasetHistory, History
from tests.plain_site import asset_of, materialized
from tracks_dagster.factory import build_defs
from tracks_dagster.track import names
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Kind
from tracks_dagster.wiring import App

TRACKS_YAML = """
name: gpt
entry: train.py --lr={lr}
config: {lr: 0.1}
dataset: corpus
upstream: [dbt/features, raw/events]
aliases: [production]
owners: [team:churn]
tags: {cost: gpu}
kinds: [pytorch, llm]
group: churn
evals: {heldout-loss: evaluate.py}
promotion: {eval: heldout-loss, metric: loss, at_most: 5.5, alias: best}
schedule: {cron: "0 3 * * *"}
"""
TRAINING, MODEL = AssetKey(["gpt", "training"]), AssetKey(["gpt", "model"])
PRODUCTION = AssetKey(["gpt", "model", "production"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("")
    (folder / "evaluate.py").write_text("def evaluate(*_): ...\n")
    (folder / "tracks.yaml").write_text(TRACKS_YAML)
    return folder


@pytest.fixture
def made(folder: Path) -> Definitions:
    return build_defs([folder])


def train(
    made: Definitions, app: App, instance: DagsterInstance, **config: object
) -> ExecuteInProcessResult:
    return materialize(
        [asset_of(made, TRAINING)],
        instance=instance,
        resources={"app": app, "orchestrator": FakeOrchestrator()},
        run_config={"ops": {"gpt__training": {"config": config}}} if config else None,
        tags={"dagster/from_automation_condition": "true"},
        raise_on_error=False,
    )


def test_the_graph_has_the_edges_that_its_file_names_and_its_words(made: Definitions) -> None:
    graph = made.resolve_asset_graph()
    dataset = AssetKey(["datasets", "corpus"])
    assert graph.get(TRAINING).parent_keys == {
        dataset,
        AssetKey(["dbt", "features"]),
        AssetKey(["raw", "events"]),
    }
    assert TRAINING in graph.get(MODEL).parent_keys
    assert {TRAINING, dataset} <= graph.get(AssetKey("training_attempts")).parent_keys
    assert dataset in graph.get(AssetKey("evals")).parent_keys
    for key in (TRAINING, MODEL, PRODUCTION):
        node = graph.get(key)
        assert (list(node.owners), node.group_name) == (["team:churn"], "churn")
        assert node.kinds == {"pytorch", "llm"}
        assert node.tags["cost"] == "gpu"
        assert node.tags[names.TAG_PROJECT] == "gpt"
        assert not node.is_partitioned
    assert {each.name for each in graph.get_check_keys_for_assets({MODEL})} == {
        "meets_its_rule",
        "eval_heldout_loss",
    }
    policy = graph.get(MODEL).freshness_policy
    assert policy is not None
    assert policy.fail_window.to_timedelta() == timedelta(days=2)  # type: ignore[attr-defined]


def test_its_training_declares_a_run_without_anything_filled_in(
    made: Definitions, app: App, instance: DagsterInstance
) -> None:
    DatasetHistory("corpus").declare().commit().write_to(app.store)
    done = train(made, app, instance)
    run_id = materialized(done, "gpt", "training").metadata["run_id"].value
    run = app.tracks.run(str(run_id)).declared
    assert (run.model_family, run.config) == ("gpt", {"lr": 0.1})
    assert run.intent == "Materialized in Dagster by its automation condition."
    declaring = instance.get_run_by_id(done.run_id)
    assert declaring is not None
    assert declaring.tags["dagster/max_retries"] == "0"  # a repetition might train twice
    [also] = instance.fetch_materializations(AssetKey("training_runs"), limit=9).records
    assert also.asset_materialization is not None
    assert also.asset_materialization.metadata["run_id"].value == run.run_id


def test_its_launchpad_takes_its_own_keys_and_no_others(
    made: Definitions, app: App, instance: DagsterInstance
) -> None:
    DatasetHistory("corpus").declare().commit().write_to(app.store)
    done = train(made, app, instance, config={"lr": 0.5}, intent="Try it.")
    run_id = materialized(done, "gpt", "training").metadata["run_id"].value
    run = app.tracks.run(str(run_id)).declared
    assert (run.config, run.intent) == ({"lr": 0.5}, "Try it.")
    with pytest.raises(Exception, match="layers"):
        train(made, app, instance, config={"layers": 3})


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # of Dagster's own tester
def test_a_condition_trains_when_what_it_is_made_of_changes(
    folder: Path, instance: DagsterInstance
) -> None:
    (folder / "tracks.yaml").write_text(
        TRACKS_YAML.replace("upstream: [dbt/features, raw/events]", "")
    )
    made = build_defs([folder], automation={"gpt": AutomationCondition.eager()})
    first = evaluate_automation_conditions(defs=made, instance=instance)
    assert first.total_requested == 0
    instance.report_runless_asset_event(AssetMaterialization(AssetKey(["datasets", "corpus"])))
    then = evaluate_automation_conditions(defs=made, instance=instance, cursor=first.cursor)
    assert then.get_num_requested(TRAINING) == 1


def test_a_condition_of_a_project_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"gtp.*gpt"):
        build_defs([folder], automation={"gtp": AutomationCondition.eager()})


def tick(made: Definitions, app: App, instance: DagsterInstance) -> list[object]:
    resources = {"app": app, "orchestrator": FakeOrchestrator()}
    with build_sensor_context(instance=instance, resources=resources, definitions=made) as context:
        result = made.get_repository_def().get_sensor_def("run_evals")(context)
    assert isinstance(result, SensorResult)
    return list(result.asset_events)


def of_asset(events: list[object], key: AssetKey) -> list[AssetMaterialization]:
    made = (each for each in events if isinstance(each, AssetMaterialization))
    return [each for each in made if each.asset_key == key]


def test_its_model_is_materialized_at_each_promotion_once_no_matter_who_promoted(
    made: Definitions, app: App, instance: DagsterInstance
) -> None:
    history = History("r-1").declare().open().place().restore().commit(40)
    ref = history.end("completed", last_step=40).state.resumable[-1]
    history.open_eval(ref)
    opened = history.state.evals[-1].opened
    history.end_eval(opened).promote(opened).write_to(app.store)
    app.projector.scan()
    events = tick(made, app, instance)
    [model] = of_asset(events, MODEL)
    assert (model.tags or {})[names.TAG_DATA_VERSION] == ref.manifest_sha256
    assert model.metadata["step"].value == 40
    checks = [each for each in events if isinstance(each, AssetCheckEvaluation)]
    assert {each.check_name: each.passed for each in checks} == {
        "meets_its_rule": True,
        "eval_heldout_loss": True,
    }
    # The daemon died before it stored the model's event.
    for event in events:
        if event != model:
            instance.report_runless_asset_event(event)  # type: ignore[arg-type]
    assert of_asset(tick(made, app, instance), MODEL) == [model]
    instance.report_runless_asset_event(model)
    assert tick(made, app, instance) == []
    by_hand = replace(
        app.tracks.run("r-1").promotions[-1].body, alias="production", decided_by="ann", why="now"
    )
    draft = app.tracks.draft(Kind.PROMOTION_DECIDED, by_hand)
    app.tracks.decide_run("r-1", lambda _: draft)
    events = tick(made, app, instance)
    [production] = of_asset(events, PRODUCTION)
    assert production.metadata["decided_by"].value == "ann"
    assert of_asset(events, MODEL) == []
