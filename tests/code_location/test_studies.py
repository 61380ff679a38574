"""Studies in Dagster: what each has come to, shown once, also where somebody missed it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    SensorResult,
    build_sensor_context,
)

from tests.plain_site import show_studies
from tests.studies.played import LR, Played, make_study
from tracks_dagster.defs.sensors import show_studies as showing
from tracks_dagster.factory import build_defs
from tracks_dagster.track import names
from tracks_dagster.track.bodies import StudyExtended
from tracks_dagster.track.records import Kind
from tracks_dagster.wiring import App

HALVING = {"scheduler": {"kind": "halving", "eta": 3}, "budgets": (10, 30), "trials": 3, "slots": 1}


def played(**changes: Any) -> Played:
    """A study of which a larger learning rate is better."""
    study = make_study(**{"params": LR, **HALVING, **changes})
    return Played(study, lambda config, steps: 1 / config["lr"] / steps)


def store(app: App, study: Played) -> None:
    study.write_to(app.store)
    app.projector.scan()


def look(
    app: App, instance: DagsterInstance, cursor: str | None = None
) -> tuple[SensorResult, str]:
    """Do a tick, of which nothing is stored yet."""
    context = build_sensor_context(instance=instance, resources={"app": app}, cursor=cursor)
    result = show_studies(context)
    assert isinstance(result, SensorResult)
    return result, context.cursor or ""


def tick(app: App, instance: DagsterInstance, cursor: str | None = None) -> tuple[list[Any], str]:
    """Do what the daemon does in a tick."""
    result, after = look(app, instance, cursor)
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    return list(result.asset_events), after


def values(event: Any) -> dict[str, Any]:
    return {name: each.value for name, each in event.metadata.items()}


def test_a_study_is_a_partition_with_its_best_trial_and_where_that_comes_from(
    app: App, instance: DagsterInstance
) -> None:
    study = played()
    best = study.play().best
    assert best is not None
    store(app, study)
    result, _ = look(app, instance)
    (added,) = result.dynamic_partitions_requests or []
    assert (added.partitions_def_name, list(added.partition_keys)) == ("studies", ["s"])
    (event,) = result.asset_events
    assert isinstance(event, AssetMaterialization)
    assert (event.asset_key, event.partition) == (AssetKey("studies"), "s")
    shown, run_id = values(event), best.last.proposed.run_id
    assert (event.tags or {})[names.TAG_DATA_VERSION] == shown["manifest_sha256"]
    assert (shown["best_run_id"], shown["step"], shown["cause"]) == (run_id, 30, "complete")
    assert shown["config/lr"] == best.config["lr"]
    assert shown["look_up/where_it_comes_from"] == f"tracks lineage {run_id}@30"
    first = best.rungs[0].proposed.run_id
    assert f"{first}@10" in shown["comes_from"].replace("\\", "")
    assert "step 0" in shown["comes_from"]
    assert set(shown["trials_by_state"].split(", ")) == {"2 stopped", "1 done"}


def test_a_better_trial_and_the_end_are_shown_once_whatever_is_lost(
    app: App, instance: DagsterInstance
) -> None:
    study = played()
    study.decide()
    store(app, study)
    assert tick(app, instance)[0] == []  # nothing was measured yet
    study.judge(study.state.open_rungs[0])
    store(app, study)
    (first,), cursor = tick(app, instance)
    assert values(first)["state"] == "open"
    assert tick(app, instance, cursor)[0] == []
    assert tick(app, instance)[0] == []  # the cursor was lost
    assert tick(app, instance, "no JSON")[0] == []
    study.play()
    store(app, study)
    lost, after = look(app, instance, cursor)  # the daemon died before it stored the event
    assert len(lost.asset_events) == 1
    assert look(app, instance, after)[0].asset_events == []
    at = app.now() + timedelta(hours=1)
    later = replace(app, now=lambda: at)
    (found,), cursor = tick(later, instance, after)
    assert values(found)["state"] == "finished"
    assert tick(later, instance, cursor)[0] == []
    assert tick(later, instance)[0] == []


def test_a_study_that_goes_on_and_ends_again_is_shown_again(
    app: App, instance: DagsterInstance
) -> None:
    study = played(scheduler={"kind": "fifo"}, budgets=(10,), trials=1)
    study.play()
    store(app, study)
    tick(app, instance)
    study.add(Kind.STUDY_EXTENDED, StudyExtended(by="ann", why="more", trials=2))
    store(app, study)
    (goes_on,), _ = tick(app, instance)
    study.play()
    store(app, study)
    (ended,), _ = tick(app, instance)
    assert [values(each)["state"] for each in (goes_on, ended)] == ["open", "finished"]


def test_a_study_without_a_value_is_an_observation(app: App, instance: DagsterInstance) -> None:
    study = played()
    study.curve = lambda config, steps: None
    study.play()
    store(app, study)
    (event,), _ = tick(app, instance)
    assert isinstance(event, AssetObservation)
    assert values(event)["cause"] == "all_failed"
    assert "the last so: played" in values(event)["why"]
    assert tick(app, instance)[0] == []


def test_one_that_cannot_be_read_hides_no_other_and_many_are_shown_in_turn(
    app: App, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showing, "LOOKS_MAX", 2)
    for name in ("a", "b", "c"):
        study = played(study=name, scheduler={"kind": "fifo"}, budgets=(10,), trials=1)
        study.play()
        store(app, study)
    find = app.tracks.study

    def broken(name: str) -> Any:
        if name == "a":
            raise ValueError("of no track")
        return find(name)

    monkeypatch.setattr(app.tracks, "study", broken)
    shown, cursor = tick(app, instance)
    shown += tick(app, instance, cursor)[0]
    assert {each.partition for each in shown} == {"b", "c"}


def test_a_set_with_a_prefix_has_studies_of_its_own(app: App, instance: DagsterInstance) -> None:
    study = played()
    study.play()
    store(app, study)
    made = build_defs(prefix="a").get_repository_def()
    node = made.asset_graph.get(AssetKey(["a", "studies"]))
    assert node.partitions_def is not None
    assert node.partitions_def.name == "a_studies"
    sensor = made.get_sensor_def("a_show_studies")
    context = build_sensor_context(instance=instance, resources={"a_app": app})
    (event,) = sensor.evaluate_tick(context).asset_events
    assert event.asset_key == AssetKey(["a", "studies"])
