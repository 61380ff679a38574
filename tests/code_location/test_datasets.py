"""Datasets of one's own in Dagster: frozen there, or shown there once the terminal has made them."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import (
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    ExecuteInProcessResult,
    SensorResult,
    build_sensor_context,
    materialize,
)

from tests.plain_site import datasets, show_datasets
from tracks_dagster.data.effects.own_checks import read_checks
from tracks_dagster.data.effects.snapshots import add_files, find_snapshot
from tracks_dagster.holds.effects.quarantines import quarantine_snapshot
from tracks_dagster.track import names
from tracks_dagster.wiring import App

CHECKS = "def check_not_empty(folder):\n    assert (folder / 'a').read_text(), 'a is empty'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("1")
    (tmp_path / "in" / "b").write_text("2")
    (tmp_path / "checks.py").write_text(CHECKS)
    return tmp_path / "in"


def make(app: App, instance: DagsterInstance, **config: object) -> ExecuteInProcessResult:
    instance.add_dynamic_partitions(names.DATASET_PARTITIONS, ["mine"])
    return materialize(
        [datasets],
        instance=instance,
        resources={"app": app},
        partition_key="mine",
        run_config={"ops": {"datasets": {"config": config}}},
        raise_on_error=False,
    )


def test_a_materialized_dataset_freezes_the_same_source_again_after_the_same_checks(
    app: App, instance: DagsterInstance, folder: Path
) -> None:
    checks = str(folder.parent / "checks.py")
    result = make(app, instance, source=str(folder), checks=checks)
    assert result.success
    (made,) = result.asset_materializations_for_node("datasets")
    first = find_snapshot(app.tracks, "mine").snapshot_id
    assert (made.partition, made.tags["dagster/data_version"]) == ("mine", first)
    (folder / "a").write_text("changed")
    assert make(app, instance).success
    second = find_snapshot(app.tracks, "mine").snapshot_id
    assert second != first
    (folder / "a").write_text("")
    result = make(app, instance)
    assert not result.success
    (check,) = result.get_asset_check_evaluations()
    assert "check_not_empty: AssertionError: a is empty" in (check.description or "")
    assert not check.passed
    assert check.blocking
    assert find_snapshot(app.tracks, "mine").snapshot_id == second


def test_a_dataset_that_nobody_added_needs_a_source(app: App, instance: DagsterInstance) -> None:
    result = make(app, instance)
    failure = result.failure_data_for_node("datasets")
    assert failure is not None
    assert failure.user_failure_data is not None
    assert "give its `source`" in (failure.user_failure_data.description or "")


def tick(app: App, instance: DagsterInstance, cursor: str | None) -> tuple[SensorResult, str]:
    """Do what the daemon does in a tick."""
    context = build_sensor_context(instance=instance, resources={"app": app}, cursor=cursor)
    result = show_datasets(context)
    assert isinstance(result, SensorResult)
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    return result, context.cursor or ""


def test_what_the_terminal_added_is_shown_once_without_a_reload(
    app: App, instance: DagsterInstance, folder: Path
) -> None:
    assert not tick(app, instance, None)[0].asset_events
    checks = read_checks(folder.parent / "checks.py")
    for in_place in (False, True):
        add_files(
            app.tracks,
            app.datasets,
            "mine",
            str(folder),
            in_place=in_place,
            cache=app.settings.cache,
            checks=checks,
        )
    result, cursor = tick(app, instance, None)
    (added,) = result.dynamic_partitions_requests or []
    assert list(added.partition_keys) == ["mine"]
    made = [e for e in result.asset_events if isinstance(e, AssetMaterialization)]
    assert [each.metadata["bytes_lie"].value for each in made] == ["in the store", str(folder)]
    assert len(result.asset_events) == 4  # and a check of each
    again, cursor = tick(app, instance, cursor)
    assert not again.asset_events
    quarantine_snapshot(app.tracks, find_snapshot(app.tracks, "mine"), by="me", why="rows twice")
    result, _ = tick(app, instance, cursor)
    (seen,) = result.asset_events
    assert isinstance(seen, AssetObservation)
    assert "quarantined: rows twice" in (seen.description or "")
    lost, _ = tick(app, instance, None)  # Dagster stored the events and lost the cursor
    assert not lost.asset_events
    for cursor in ("no JSON", "7", "[]", '{"mine": "x"}', '{"mine": {}}', "[" * 100_000):
        by_hand, _ = tick(app, instance, cursor)  # a person may set any
        assert not by_hand.asset_events
