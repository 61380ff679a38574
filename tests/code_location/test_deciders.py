"""A new decider is one file (`tests/stage_gates.py`) and one line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from dagster import DagsterInstance, Definitions, SkipReason, build_sensor_context
from dagster._core.scheduler.instigation import InstigatorStatus

from tests.fakes import FakeOrchestrator
from tests.histories import History
from tests.plain_site import SITE, watch_attempts
from tests.stage_gates import StageGates
from tracks_dagster.attempts.effects.heartbeat import read_heartbeat
from tracks_dagster.defs.sensors.deciders import decider_sensor
from tracks_dagster.wiring import App

stage_gates = decider_sensor(
    SITE, StageGates(), idle="no run is at a gate", description="Opens gates."
)


def ticked(app: App, instance: DagsterInstance) -> str:
    resources = {"app": app, "orchestrator": FakeOrchestrator()}
    with build_sensor_context(instance=instance, resources=resources) as context:
        result = stage_gates(context)
    assert isinstance(result, SkipReason)
    return result.skip_message or ""


def test_its_sensor_ticks_and_is_its_switch(app: App, instance: DagsterInstance) -> None:
    assert ticked(app, instance) == "no run is at a gate"
    history = History("r-1").declare(stage="smoke").open().place().restore().commit(20)
    history.write_to(app.store)
    app.tracks.project(history.name)
    assert app.tracks.run("r-1").notes == ()  # while it is off nothing asks it
    assert ticked(app, instance) == "r-1: passed: Passed at step 20."
    assert [note.body.by for note in app.tracks.run("r-1").notes] == ["stage_gates"]


def test_the_heartbeat_names_it_and_its_switch_without_another_list(
    app: App, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched_off = SimpleNamespace(name="stage_gates", status=InstigatorStatus.STOPPED)
    monkeypatch.setattr(instance, "all_instigator_state", lambda **_: [switched_off])
    loaded = Definitions(sensors=[stage_gates, watch_attempts])
    resources = {"app": app, "orchestrator": FakeOrchestrator()}
    with build_sensor_context(
        instance=instance, resources=resources, definitions=loaded
    ) as context:
        watch_attempts(context)
    heartbeat = read_heartbeat(app.store)
    assert heartbeat is not None
    assert heartbeat.sensors == {"stage_gates": False, "watch_attempts": True}
