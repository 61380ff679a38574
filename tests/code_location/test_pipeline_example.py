"""The example of a team's own Dagster project: raw files, a snapshot, training, a model, scores."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
from dagster import AssetKey, AutomationCondition, DagsterInstance, Definitions, materialize

from tests.plain_site import asset_of
from tracks_dagster.factory import DatasetSource, build_defs
from tracks_dagster.settings import EXAMPLES
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.dataset_state import SnapshotState
from tracks_dagster.wiring import App

DATASET = AssetKey(["datasets", "mine"])


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Definitions]:
    monkeypatch.syspath_prepend(str(EXAMPLES / "pipeline"))
    monkeypatch.setenv("CHURN_DATA", str(tmp_path))
    made: Definitions = import_module("churn_pipeline.definitions").defs
    yield made
    for name in [each for each in sys.modules if each.partition(".")[0] == "churn_pipeline"]:
        del sys.modules[name]


def test_every_step_from_raw_files_to_scores_is_an_edge_of_the_graph(example: Definitions) -> None:
    graph = example.resolve_asset_graph()
    way = [
        AssetKey(["raw_customers"]),
        AssetKey(["datasets", "customers"]),
        AssetKey(["churn", "training"]),
        AssetKey(["churn", "model"]),
        AssetKey(["churn_scores"]),
    ]
    for above, below in pairwise(way):
        assert above in graph.get(below).parent_keys
    by_itself = [key for key in way if graph.get(key).automation_condition is not None]
    assert by_itself == [key for key in way if key != AssetKey(["churn", "model"])]


def snapshots_of(app: App) -> list[SnapshotState]:
    state = app.tracks.find_dataset("mine")
    assert state is not None
    return list(state.snapshots)


def test_a_source_of_the_deployment_is_frozen_without_a_launchpad(
    app: App, instance: DagsterInstance, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "a").write_text("1")
    (tmp_path / "checks.py").write_text(
        "def check_a(folder):\n    assert (folder / 'a').read_text()\n"
    )
    source = DatasetSource(
        path=files,
        deps=("raw",),
        checks=tmp_path / "checks.py",
        in_place=True,
        automation=AutomationCondition.eager(),
    )
    made = build_defs(datasets={"mine": source})
    node = made.resolve_asset_graph().get(DATASET)
    assert node.parent_keys == {AssetKey("raw")}
    assert node.automation_condition == AutomationCondition.eager()
    dataset = asset_of(made, DATASET)
    assert materialize([dataset], instance=instance, resources={"app": app}).success
    (frozen,) = snapshots_of(app)
    assert (frozen.body.source, frozen.body.in_place is not None) == (str(files), True)
    (files / "a").write_text("")
    refused = materialize(
        [dataset], instance=instance, resources={"app": app}, raise_on_error=False
    )
    assert not refused.success
    assert snapshots_of(app) == [frozen]


def test_a_source_of_a_dataset_that_ships_is_refused() -> None:
    with pytest.raises(InvalidInput, match="flights is one of the examples"):
        build_defs(examples=True, datasets={"flights": DatasetSource(path="/data")})
