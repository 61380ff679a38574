"""The code location loads from this repository, light, with every name that others rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dagster
import pytest
from dagster._core.asset_graph_view.asset_graph_view import AssetGraphView

import assets
import resources
import sensors
from assets import definitions as composed
from tracks_dagster.definitions import defs
from tracks_dagster.settings import usable_projects
from tracks_dagster.track import names

ROOT = Path(__file__).resolve().parents[2]
# Of who runs the tests: their own projects are in the home that the definitions were loaded with.
OWN = {
    pattern.format(names.dagster_name(each.name))
    for each in usable_projects()
    for pattern in (names.RETRAIN, names.RETRAIN_ON_SNAPSHOT)
    if not each.is_shipped
}
HEAVY = ("torch", "kubernetes", "duckdb", "polars", "pandera", "sqlalchemy", "boto3")


@pytest.mark.parametrize("package", [assets, resources, sensors])
def test_assets_resources_and_sensors_come_from_this_repository(package: object) -> None:
    (folder,) = package.__path__  # type: ignore[attr-defined]
    assert Path(folder).parent == ROOT


def test_these_folders_compose_the_code_location_that_workspace_yaml_names() -> None:
    text = (ROOT / "workspace.yaml").read_text(encoding="utf-8")
    assert f"module_name: {composed.__name__}" in text
    here, packaged = composed.defs.get_repository_def(), defs.get_repository_def()
    assert here.asset_graph.get_all_asset_keys() == packaged.asset_graph.get_all_asset_keys()
    assert set(here.job_names) == set(packaged.job_names)
    assert {each.name for each in here.sensor_defs} == {each.name for each in packaged.sensor_defs}


def test_who_looks_at_the_training_group_reads_first_how_training_starts() -> None:
    graph = defs.resolve_asset_graph()
    group = [node for node in graph.asset_nodes if node.group_name == "training"]
    assert len(group) == 4
    for node in group:
        first, _, rest = (node.description or "").partition("\n\n")
        assert not set("*`[]\n") & set(first), node.key  # the catalog shows it as plain text
        second, _, _ = rest.partition("\n\n")
        if node.key == dagster.AssetKey(names.TRAINING_RUNS):
            assert first.startswith("Starts a training run: materialize it")
            assert '"Never materialized"' in second
        else:
            assert second.startswith("**To start training, materialize"), node.key
            assert names.NO_PREFIX.page(names.TRAINING_RUNS) in second, node.key


def test_loading_the_definitions_loads_nothing_heavy() -> None:
    script = (
        "import sys, tracks_dagster.definitions\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_job_sensor_and_partition_set_has_its_agreed_name() -> None:
    dagster.Definitions.validate_loadable(defs)
    repository = defs.get_repository_def()
    assert {
        names.TRAIN_ATTEMPT_JOB,
        names.EVALUATE_CHECKPOINT_JOB,
        names.DECLARE_TRAINING_RUN_JOB,
        names.COLLECT_CHECKPOINTS_JOB,
        names.REVIEW_JOB,
    } <= set(repository.job_names)
    assert {sensor.name for sensor in repository.sensor_defs} - OWN == {
        names.LAUNCH_ATTEMPTS,
        names.RETRY_INFRASTRUCTURE,
        names.RETRY_NUMERICS,
        names.RETRY_OOM,
        names.RETRY_PREEMPTED,
        names.RUN_EVALS,
        names.SEND_NOTIFICATIONS,
        names.SHOW_DATASETS,
        names.SHOW_STUDIES,
        names.TUNE_STUDIES,
        names.WATCH_ATTEMPTS,
        names.WATCH_HEALTH,
    }
    graph = repository.asset_graph
    for name in (
        names.ATTEMPT_PARTITIONS,
        names.CHECKPOINT_PARTITIONS,
        names.EVAL_PARTITIONS,
        names.DATASET_PARTITIONS,
        names.STUDY_PARTITIONS,
    ):
        partitions = graph.get(dagster.AssetKey(name)).partitions_def
        assert isinstance(partitions, dagster.DynamicPartitionsDefinition)
        assert partitions.name == name


PARTITIONS = {
    names.ATTEMPT_PARTITIONS: ["r-1/a01", "r-1/a02"],
    names.CHECKPOINT_PARTITIONS: ["r-1/a02/step-40"],
    names.EVAL_PARTITIONS: ["r-1/quality@40", "r-1/other@40"],
}


def test_several_partitions_of_any_asset_can_be_materialized_at_once(
    instance: dagster.DagsterInstance,
) -> None:
    """As Dagster's UI does, by a backfill: it is refused where one depends on what is not there."""
    for name, keys in PARTITIONS.items():
        instance.add_dynamic_partitions(name, keys)
    view = AssetGraphView.for_test(defs, instance)
    for node in view.asset_graph.asset_nodes:
        for parent in node.parent_keys:
            every = view.get_full_subset(key=node.key)
            find = view.compute_parent_subset_and_required_but_nonexistent_subset
            _, absent = find(parent, every)
            assert absent.is_empty, f"{node.key} after {parent}: {absent}"


def test_every_asset_tells_operators_what_it_is_and_whose() -> None:
    for node in defs.get_repository_def().asset_graph.asset_nodes:
        assert node.description, node.key
        assert node.owners, node.key
        assert node.kinds, node.key
        assert node.group_name != "default", node.key


def test_sensors_collector_and_review_run_unless_switched_off_and_shipped_projects_do_not() -> None:
    repository = defs.get_repository_def()
    for sensor in repository.sensor_defs:
        if sensor.name in OWN:
            continue
        assert sensor.default_status is dagster.DefaultSensorStatus.RUNNING
        every_s = 15 if sensor.name == names.WATCH_HEALTH else 5
        assert sensor.minimum_interval_seconds == every_s
        assert sensor.description
    schedules = {
        each.name: each.default_status for each in repository.schedule_defs if each.name not in OWN
    }
    assert schedules == {
        "retrain_gpt": dagster.DefaultScheduleStatus.STOPPED,
        "retrain_tabular": dagster.DefaultScheduleStatus.STOPPED,
        names.COLLECT_CHECKPOINTS: dagster.DefaultScheduleStatus.RUNNING,
        names.REVIEW_DAILY: dagster.DefaultScheduleStatus.RUNNING,
        names.DRILL_WEEKLY: dagster.DefaultScheduleStatus.STOPPED,
    }


def test_training_runs_are_never_retried_by_dagster() -> None:
    job = defs.resolve_job_def(names.TRAIN_ATTEMPT_JOB)
    assert job.tags["dagster/max_retries"] == "0"
    assert job.executor_def is dagster.in_process_executor
