"""A project of one's own in Dagster: its schedule, its sensor, and the launchpad's choice of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from dagster import (
    DagsterInstance,
    DagsterInvalidConfigError,
    DagsterRunStatus,
    DefaultScheduleStatus,
    Definitions,
    RunRequest,
    ScheduleDefinition,
    SkipReason,
    build_schedule_context,
    build_sensor_context,
)
from dagster._core.snap.snap_to_yaml import default_values_yaml_from_type_snap

from tests.bodies import ended, placed
from tests.code_location.test_launchpad import declare, description
from tests.examples import EXAMPLES
from tests.histories import DatasetHistory
from tests.plain_site import declare_training_run, materialized, site_of, training_runs_of
from tracks_dagster.defs.sensors.retraining import retraining_schedules, retraining_sensors
from tracks_dagster.projects.effects.registered import Registered, add_project, load_projects
from tracks_dagster.track.bodies import CheckpointCadence, RunFinished
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import code_of
from tracks_dagster.wiring import App

ROOT = Path(__file__).resolve().parents[2]
MONDAY, NEXT = (datetime(2026, 2, day, 3, tzinfo=UTC) for day in (2, 9))
TRACKS_YAML = """
name: my-model
entry: train.py --lr={lr}
config: {lr: 0.1, layers: 2, words: [a], model.tied: false}
dataset: corpus
ranks: 2
checkpoint: {every: 1min}
retention: {keep_last: 2}
schedule: {cron: "0 3 * * 1", on: new snapshot, only_if: snapshot differs}
"""


@pytest.fixture
def folder(app: App, tmp_path: Path) -> Path:
    """A project of that home."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text("import model\n")
    (folder / "tracks.yaml").write_text(TRACKS_YAML)
    add_project(app.settings.home, "my-model", folder)
    return folder


@pytest.fixture
def corpus(app: App) -> DatasetHistory:
    """Its dataset, with one snapshot."""
    return committed(app, DatasetHistory("corpus").declare())


def committed(app: App, history: DatasetHistory) -> DatasetHistory:
    """Commit another snapshot of it."""
    history.commit().write_to(app.store)
    return history


def projects_of(app: App) -> tuple[Registered, ...]:
    """Return the projects of its home."""
    return load_projects(app.settings.home, EXAMPLES)


def loaded(app: App, name: str = "retrain_my_model") -> ScheduleDefinition:
    """Return its schedule of that name."""
    schedules = retraining_schedules(site_of(projects_of(app)))
    [schedule] = [each for each in schedules if each.name == name]
    return schedule


def tick(
    app: App,
    instance: DagsterInstance,
    at: datetime = MONDAY,
    *,
    schedule: ScheduleDefinition | None = None,
) -> RunRequest | SkipReason:
    schedule = schedule or loaded(app)
    with build_schedule_context(
        instance=instance, resources={"app": app}, scheduled_execution_time=at
    ) as context:
        answer = schedule(context)
    assert isinstance(answer, RunRequest | SkipReason)
    return answer


def launch(app: App, instance: DagsterInstance, asked: RunRequest | SkipReason) -> str:
    """Execute what a tick asked for; return the training run's id."""
    projects = projects_of(app)
    done = declare(app, instance, config_of(asked), projects=projects)
    run_id = materialized(done, "training_runs").metadata["run_id"].value
    assert isinstance(asked, RunRequest)
    assert asked.run_key == f"{run_id}/{app.now():%Y-%m-%d}"
    return str(run_id)


def config_of(asked: RunRequest | SkipReason) -> Mapping[str, object]:
    """Return what a tick fills in."""
    assert isinstance(asked, RunRequest)
    return asked.run_config["ops"]["training_runs"]["config"]  # type: ignore[no-any-return]


def end(app: App, run_id: str) -> None:
    """Finish the run, as a person asked."""
    finished = RunFinished(stop_cause="user", why="enough", decided_by="ann", final=None)
    bodies = {
        Kind.ATTEMPT_ENDED: ended("user_cancelled", last_step=None),
        Kind.RUN_FINISHED: finished,
    }
    for kind, body in bodies.items():
        attempt_id = 1 if kind is Kind.ATTEMPT_ENDED else None
        draft = app.tracks.draft(kind, body, attempt_id=attempt_id)
        app.tracks.decide_run(run_id, lambda _, draft=draft: draft)


def succeed(app: App, run_id: str) -> None:
    """Let the run train five steps where it was declared, and succeed."""
    environment = app.tracks.run(run_id).declared.environment
    finished = RunFinished(stop_cause="step_budget", why="done", decided_by="tests", final=None)
    bodies = {
        Kind.ATTEMPT_PLACED: placed("launch-1", environment=environment),
        Kind.ATTEMPT_ENDED: ended("completed", last_step=5),
        Kind.RUN_FINISHED: finished,
    }
    for kind, body in bodies.items():
        attempt_id = None if kind is Kind.RUN_FINISHED else 1
        draft = app.tracks.draft(kind, body, attempt_id=attempt_id)
        app.tracks.decide_run(run_id, lambda _, draft=draft: draft)


def test_a_tick_declares_a_run_of_the_folder_as_it_is_then(
    app: App, instance: DagsterInstance, folder: Path, corpus: DatasetHistory
) -> None:
    (folder / "model.py").write_text("a = 1\n")
    run_id = launch(app, instance, tick(app, instance))
    state = app.tracks.run(run_id)
    declared = state.declared
    assert run_id == f"my-model-{corpus.state.snapshots[0].body.snapshot_id[:12]}"
    assert (declared.model_family, declared.owner, declared.stage) == (
        "my-model",
        "schedule",
        "full",
    )
    assert declared.snapshot is not None
    assert declared.snapshot.snapshot_id == corpus.state.snapshots[0].body.snapshot_id
    assert declared.config == {"lr": 0.1, "layers": 2, "words": ["a"], "model.tied": False}
    assert declared.cadence == CheckpointCadence(every_s=60.0)
    assert (declared.compute.ranks, declared.retention.keep_last) == (2, 2)
    assert code_of(state, state.attempts[0]).git_commit is None  # the folder's, which has none
    assert b"a = 1" in (app.store.get(declared.trainer or "") or b"")
    again = tick(app, instance)
    assert isinstance(again, SkipReason)
    assert "is not finished" in (again.skip_message or "")


def test_a_closed_gate_makes_its_dagster_run_red_and_the_next_day_it_is_asked_again(
    app: App, instance: DagsterInstance, folder: Path, corpus: DatasetHistory
) -> None:
    (app.settings.home / "policy.yaml").write_text("stages: {full: {needs: [smoke]}}")
    asked = config_of(tick(app, instance))
    refused = declare(app, instance, asked, projects=projects_of(app))
    snapshot_id = corpus.state.snapshots[0].body.snapshot_id
    command = f"`tracks smoke --project {folder} --snapshot {snapshot_id[:12]}`"
    assert f"smoke: there is none of this project; {command}" in description(refused)
    [red] = instance.get_runs()
    assert red.status is DagsterRunStatus.FAILURE
    smoke = {"run_id": "s-1", "stage": "smoke", "intent": "Rehearse."}
    done = declare(app, instance, {"project": {"my-model": {}}, **smoke}, projects=projects_of(app))
    assert done.success
    succeed(app, "s-1")
    tomorrow = replace(app, now=lambda: app.now() + timedelta(days=1))
    keys = [
        each.run_key
        for each in (tick(app, instance), tick(app, instance), tick(tomorrow, instance))
    ]  # type: ignore[union-attr]
    assert keys[0] == keys[1] != keys[2]  # of one key Dagster starts one run, whatever became of it
    run_id = launch(tomorrow, instance, tick(tomorrow, instance))
    assert app.tracks.run(run_id).declared.passed_gates == {"smoke": "s-1"}


def test_a_tick_is_skipped_in_words_until_the_snapshot_differs(
    app: App, instance: DagsterInstance, folder: Path
) -> None:
    none = tick(app, instance)
    assert isinstance(none, SkipReason)
    assert "no snapshot of dataset 'corpus'" in (none.skip_message or "")
    history = committed(app, DatasetHistory("corpus").declare())
    end(app, launch(app, instance, tick(app, instance)))
    skipped = tick(app, instance, NEXT)
    assert isinstance(skipped, SkipReason)
    assert "skipped: the snapshot did not change" in (skipped.skip_message or "")
    committed(app, history)
    newest = history.state.snapshots[-1].body.snapshot_id
    assert launch(app, instance, tick(app, instance, NEXT)) == f"my-model-{newest[:12]}"


@pytest.mark.usefixtures("folder")
def test_a_new_snapshot_declares_one_run_and_what_was_there_before_none(
    app: App, instance: DagsterInstance, corpus: DatasetHistory
) -> None:
    [sensor] = retraining_sensors(site_of(projects_of(app)))
    assert sensor.name == "new_snapshot_retrains_my_model"
    with build_sensor_context(instance=instance, resources={"app": app}) as context:
        assert isinstance(sensor(context), SkipReason)
        committed(app, corpus)
        run_id = launch(app, instance, sensor(context))  # type: ignore[arg-type]
        assert run_id == f"my-model-{corpus.state.snapshots[1].body.snapshot_id[:12]}"
        assert isinstance(sensor(context), SkipReason)


def test_many_projects_look_for_snapshots_seldom_so_that_a_daemon_idles(
    app: App, folder: Path
) -> None:
    own = next(each for each in projects_of(app) if each.name == "my-model")
    for count, every_s in ((1, 30), (7, 30), (15, 60), (200, 800)):
        many = [replace(own, name=f"my-model-{number}") for number in range(count)]
        sensors = retraining_sensors(site_of(many))
        assert {each.minimum_interval_seconds for each in sensors} == {every_s}


@pytest.mark.usefixtures("corpus")
def test_a_folder_that_vanished_is_reported_by_its_tick_and_in_the_ui_and_hides_nothing_else(
    app: App, instance: DagsterInstance, folder: Path
) -> None:
    asked = config_of(tick(app, instance))
    before = projects_of(app)
    folder.rename(folder.parent / "elsewhere")
    refused = declare(app, instance, asked, projects=before)
    assert "does not exist any more" in description(refused)
    with pytest.raises(InvalidInput, match="does not exist any more"):
        tick(app, instance)
    schedule = loaded(app)
    assert "does not exist any more" in (schedule.description or "")
    assert (schedule.default_status, schedule.cron_schedule) == (
        DefaultScheduleStatus.RUNNING,
        "0 * * * *",
    )
    (folder.parent / "elsewhere").rename(folder)
    early = tick(app, instance, schedule=schedule)
    assert isinstance(early, SkipReason)
    assert "can be read again" in (early.skip_message or "")


def test_the_schedule_of_an_example_trains_on_new_data_and_skips_while_there_is_none(
    app: App, instance: DagsterInstance
) -> None:
    for dataset in ("aws-docs", "aws-docs-heldout"):
        committed(app, DatasetHistory(dataset).declare())
    run_id = launch(app, instance, tick(app, instance, schedule=loaded(app, "retrain_gpt")))
    declared = app.tracks.run(run_id).declared
    assert (declared.model_family, declared.folder) == ("gpt", str(EXAMPLES / "gpt"))
    assert [each.suite for each in declared.evals] == ["heldout-loss"]
    assert declared.promotion is not None
    end(app, run_id)
    skipped = tick(app, instance, NEXT, schedule=loaded(app, "retrain_gpt"))
    assert isinstance(skipped, SkipReason)
    assert "skipped: the snapshot did not change" in (skipped.skip_message or "")


@pytest.mark.usefixtures("folder", "corpus")
def test_the_launchpad_knows_the_projects_keys_and_their_types(
    app: App, instance: DagsterInstance
) -> None:
    def declared(**config: object) -> str | None:
        done = declare(app, instance, config, projects=projects_of(app))
        return None if done.success else description(done)

    asked = {"project": {"my-model": {"lr": 1, "words": ["b"]}}, "ranks": 1}
    assert (
        declared(run_id="r-1", checkpoint_every_steps=5, retention={"keep_best": 0}, **asked)
        is None
    )
    found = app.tracks.run("r-1").declared
    assert found.config == {"lr": 1.0, "layers": 2, "words": ["b"], "model.tied": False}
    assert found.cadence == CheckpointCadence(every_steps=5)
    assert (found.compute.ranks, found.retention.keep_last, found.retention.keep_best) == (1, 2, 0)
    with pytest.raises(DagsterInvalidConfigError, match="layers"):
        declared(project={"my-model": {"layers": "two"}})
    with pytest.raises(DagsterInvalidConfigError, match="my-modle"):
        declared(project={"my-modle": {}})
    with pytest.raises(DagsterInvalidConfigError, match="lrr"):
        declared(project={"my-model": {"lrr": 1}})
    assert (
        declared(run_id="r-2", project={"my-model": {"hang_s": 90.0, "skip_windows": []}}) is None
    )


def test_the_launchpad_opens_with_nothing_that_would_overrule_a_file_and_with_no_secret(
    app: App, folder: Path
) -> None:
    text = TRACKS_YAML.replace(
        "lr: 0.1", "lr: 0.1, api_token: {default: hunter2, meaning: of ours}"
    )
    (folder / "tracks.yaml").write_text(text)
    made = Definitions(
        assets=[training_runs_of(projects_of(app))],
        jobs=[declare_training_run],
        resources={"app": app},
    )
    job = made.resolve_job_def("declare_training_run")
    schema = job.get_config_schema_snapshot()
    root = schema.get_config_snap(job.run_config_schema.run_config_schema_type.key)
    opened = default_values_yaml_from_type_snap(schema, root)
    assert yaml.safe_load(opened) == {"ops": {"training_runs": {"config": {"owner": "dagster"}}}}
    assert "api_token" in repr(schema)
    assert "hunter2" not in repr(schema)


def test_the_code_location_loads_a_homes_projects_with_their_switches_on_and_no_network(
    app: App, folder: Path
) -> None:
    script = (
        "import socket\n"
        "def refuse(*_):\n"
        "    raise AssertionError('the network is read at load')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse\n"
        "from tracks_dagster.definitions import defs\n"
        "found = defs.get_repository_def()\n"
        "each = found.get_schedule_def('retrain_my_model')\n"
        "print(each.default_status.value, each.cron_schedule, each.description)\n"
        "print(found.get_sensor_def('new_snapshot_retrains_my_model').default_status.value)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"TRACKS_HOME": str(app.settings.home), "TRACKS_STORE": "s3://far/away"},
        capture_output=True,
        text=True,
        check=True,
    )
    shown, sensor = done.stdout.splitlines()
    assert (shown.split(" Retrains ")[0], sensor) == ("RUNNING 0 3 * * 1", "RUNNING")
    assert f"The code is that of {folder} at the tick." in shown
