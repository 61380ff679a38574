"""What Dagster's event log knows of assets that rest on a data version of ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dagster import AssetMaterialization, AssetSpec, DagsterInstance, Definitions, asset

from tracks_dagster.home.asset_lineage import EVENTS_MAX, origins_in, uses_in


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as made:
        yield made


PROMOTED, NEWER = "a" * 64, "b" * 64


@asset(deps=["model"])
def scores() -> None: ...


@asset(deps=[scores])
def report() -> None: ...


@asset
def other() -> None: ...


def promote(instance: DagsterInstance, version: str) -> None:
    instance.report_runless_asset_event(
        AssetMaterialization("model", tags={"dagster/data_version": version})
    )


def score(instance: DagsterInstance) -> str:
    made = Definitions(assets=[AssetSpec("model"), scores, report, other])
    job = made.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(instance=instance).run_id


def test_what_read_a_promoted_model_is_found_and_what_read_that_and_nothing_else(
    instance: DagsterInstance,
) -> None:
    promote(instance, PROMOTED)
    first = score(instance)
    promote(instance, NEWER)
    score(instance)
    found = uses_in(instance, {PROMOTED}, "here")
    assert [(use.asset, use.read, use.dagster_run_id) for use in found.uses] == [
        ("scores", "model", first),
        ("report", "scores", first),
    ]
    assert not found.is_cut
    assert uses_in(instance, {"c" * 64}, "here").uses == ()


def test_more_materializations_than_are_looked_at_are_named_as_cut(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EVENTS_MAX >= 100
    monkeypatch.setattr("tracks_dagster.home.asset_lineage.EVENTS_MAX", 1)
    promote(instance, PROMOTED)
    score(instance)
    score(instance)
    assert uses_in(instance, {PROMOTED}, "here").is_cut


def test_an_asset_leads_back_to_the_model_that_its_newest_materialization_rests_on(
    instance: DagsterInstance,
) -> None:
    assert origins_in(instance, "report") is None
    promote(instance, PROMOTED)
    score(instance)
    promote(instance, NEWER)
    newest = score(instance)
    found = origins_in(instance, "report")
    assert found is not None
    assert (found.asset, found.dagster_run_id) == ("report", newest)
    assert [asset for asset, _ in found.reads] == ["scores", "model"]
    assert found.reads[-1] == ("model", NEWER)
