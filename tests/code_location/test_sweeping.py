"""The watcher sweeps the cluster where one is set up, and never asks for one where none is."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta

import pytest
from dagster import DagsterInstance, SensorResult, build_sensor_context

from tests.fakes import FakeGangs, FakeOrchestrator
from tests.plain_site import watch_attempts
from tracks_dagster.attempts.orphans import UNKNOWN_GRACE, StandingGang
from tracks_dagster.attempts.ports import GangLauncher
from tracks_dagster.ledger.effects.ticks import read_cursor
from tracks_dagster.track.errors import GangError
from tracks_dagster.wings.kubernetes.settings import KUBERNETES
from tracks_dagster.wiring import App


class StandingFakes(FakeGangs):
    """A launcher on whose cluster one Job of an unknown run stands."""

    def __init__(self, gang: StandingGang) -> None:
        super().__init__()
        self.left = [gang]
        self.looks = 0
        self.tainted: list[frozenset[str]] = []

    @property
    def taints_nodes(self) -> bool:
        return True

    def taint(self, nodes: AbstractSet[str]) -> Sequence[str]:
        self.tainted.append(frozenset(nodes))
        return ()

    def standing(self) -> Sequence[StandingGang]:
        self.looks += 1
        return tuple(self.left)

    def sweep(self, gang: StandingGang) -> None:
        self.left.remove(gang)


@pytest.fixture
def cluster(app: App) -> StandingFakes:
    made_at = app.now() - UNKNOWN_GRACE - timedelta(minutes=1)
    return StandingFakes(
        StandingGang(
            run_id="gone",
            attempt_id=1,
            kind="Job",
            name="tracks-gone-a01",
            made_at=made_at,
            store_url=app.store.url,
        )
    )


def tick(app: App, instance: DagsterInstance, cursor: str | None = None) -> str | None:
    """Tick once; return the cursor."""
    resources = {"app": app, "orchestrator": FakeOrchestrator()}
    with build_sensor_context(instance=instance, resources=resources, cursor=cursor) as context:
        assert isinstance(watch_attempts(context), SensorResult)
        return context.cursor


def test_an_orphan_is_swept_and_the_cluster_is_not_asked_again_within_a_minute(
    app: App, instance: DagsterInstance, cluster: StandingFakes
) -> None:
    (app.settings.home / "kubernetes.yaml").write_text("image: train:1\n")
    app = replace(app, launcher_of=lambda name: cluster)
    cursor = tick(app, instance)
    assert cluster.left == []
    assert cluster.tainted == [frozenset()]
    assert read_cursor(cursor)["sweep"].done_at is not None
    tick(app, instance, cursor)
    assert cluster.looks == 1


def test_without_a_cluster_nobody_looks_for_one(
    app: App, instance: DagsterInstance, cluster: StandingFakes
) -> None:
    app = replace(app, launcher_of=lambda name: cluster)
    assert read_cursor(tick(app, instance))["sweep"].done_at is None
    assert cluster.looks == 0


def test_a_cluster_whose_settings_are_broken_keeps_no_tick_from_its_work(
    app: App, instance: DagsterInstance
) -> None:
    def broken(name: str) -> GangLauncher:
        assert name == KUBERNETES
        raise GangError("kubernetes.yaml names no image")

    (app.settings.home / "kubernetes.yaml").write_text("image:\n")
    cursor = tick(replace(app, launcher_of=broken), instance)
    assert read_cursor(cursor)["sweep"].done_at is not None
