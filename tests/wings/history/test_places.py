"""Folders and databases of other systems, made by their own tools (`golden/make_trackers.py`)."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.wings.history.worlds import BEGIN, ImportWorld, import_world
from tracks_dagster.curves.effects.reading import read_curves
from tracks_dagster.reasons.user_rules import NO_RULES
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.wings.history.edge.imports import PLACES, import_command
from tracks_dagster.wings.history.effects import mlflow, skypilot
from tracks_dagster.wings.history.effects.importing import Imported, import_history
from tracks_dagster.wings.history.effects.mlflow import MLflow, MLflowServer
from tracks_dagster.wings.history.source import BadRow, NotEnded, SourceAttempt

GOLDEN = Path(__file__).parent / "golden"
NOW = datetime(2027, 2, 1, tzinfo=UTC)
AS_IT_RUNS = datetime(
    2026, 1, 1, 4, tzinfo=UTC
)  # within six hours of the newest thing in MLflow's run
ALL = {
    "mlflow": "mlflow/mlruns",
    "mlflow-db": "mlflow/mlflow.db",
    "wandb": "wandb/wandb",
    "neptune": "neptune",
    "ray": "ray",
    "ray-tune": "raytune",
    "ray-train": "raytrain",
    "tensorboard": "tensorboard",
    "skypilot": "skypilot/spot_jobs.db",
    "optuna": "optuna/optuna.db",
}
SECRETS = (b"hf_abcdefghij", b"hunter2")  # of the golden files
SEED = random.SystemRandom().randrange(10**6)


def needs(system: str) -> None:
    """Skip what only Optuna itself reads."""
    if system == "optuna":
        pytest.importorskip("optuna", reason="the extra tune is not installed")


def add(world: ImportWorld, system: str, path: Path, *, now: datetime = NOW) -> Imported:
    source = PLACES[system.partition("-")[0]](path, now, UTC)
    name = system.partition("-")[0]
    return import_history(world.tracks, source, name, rules=NO_RULES, by="tests")


def of(world: ImportWorld, sql: str) -> list[tuple[object, ...]]:
    return [tuple(each.values()) for each in world.ledger.query(sql)]


def curve(world: ImportWorld, run_id: str, name: str) -> dict[int, list[tuple[int, float]]]:
    """Return the kept points of each attempt."""
    found = read_curves(world.tracks, run_id, [name], cache=None).find(name)
    assert found is not None
    return {s.attempt_id: [(p.step, round(p.value, 3)) for p in s.points] for s in found.kept}


@pytest.fixture
def world(tmp_path: Path) -> ImportWorld:
    """An empty home."""
    return import_world(tmp_path)


@pytest.mark.parametrize("system", ALL)
def test_importing_again_appends_nothing(world: ImportWorld, system: str) -> None:
    needs(system)
    first = add(world, system, GOLDEN / ALL[system])
    before = world.ledger.dump()
    again = add(world, system, GOLDEN / ALL[system])
    assert (again.new, again.known) == (0, first.new)
    assert first.new > 1
    assert first.bad_count == 0, first.bad
    assert world.ledger.dump() == before
    stored = b"".join(world.store.get(each) or b"" for each in world.store.list(""))
    assert not [each for each in SECRETS if each in stored]


@pytest.mark.parametrize("system", ALL)
def test_a_damaged_file_is_answered_in_words(tmp_path: Path, system: str) -> None:
    """A file is cut, or bytes of it are changed, at places that SEED draws; what is raised fails it."""
    needs(system)
    drawn = random.Random(SEED)
    for number in range(12):
        copy = tmp_path / f"{number}"
        source = GOLDEN / ALL[system]
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
        files = [copy] if copy.is_file() else [each for each in copy.rglob("*") if each.is_file()]
        path = drawn.choice(sorted(files))
        data = bytearray(path.read_bytes())
        at = drawn.randrange(max(1, len(data)))
        if number % 2:
            del data[at:]
        else:
            data[at : at + 8] = drawn.randbytes(8)
        path.write_bytes(data)
        try:
            list(PLACES[system.partition("-")[0]](copy, NOW, UTC).read())
        except InvalidInput:
            continue  # a database that cannot be read at all
        except Exception as error:
            raise AssertionError(f"SEED={SEED}, copy {number}, {path.name} at {at}") from error


@pytest.mark.parametrize("system", sorted({each.partition("-")[0] for each in ALL}))
def test_a_place_without_anything_of_it_is_refused_in_words(tmp_path: Path, system: str) -> None:
    needs(system)
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in (empty, tmp_path / "missing"):
        with pytest.raises(InvalidInput, match=str(path)):
            list(PLACES[system](path, NOW, UTC).read())


@pytest.mark.parametrize("system", ["mlflow", "mlflow-db"])
def test_runs_of_mlflow(world: ImportWorld, system: str) -> None:
    done = add(world, system, GOLDEN / ALL[system], now=AS_IT_RUNS)
    assert (done.new, len(done.runs), done.not_ended) == (4, 3, 1)
    done = add(world, system, GOLDEN / ALL[system])  # a year later: its process was killed
    assert (done.new, done.known, done.not_ended) == (1, 4, 0)
    sql = (
        "select r.model_family, r.owner, attempt_id, termination_reason, last_step "
        "from training_attempts a join training_runs r on r.run_id = a.run_id order by a.started_at"
    )
    assert of(world, sql) == [
        ("gpt / finished", "alice", 1, "unknown", 3),
        ("gpt / finished", "alice", 2, "completed", 4),
        ("gpt / failed", "alice", 1, "unknown", 1),
        ("gpt / killed", "alice", 1, "user_cancelled", 1),
        ("gpt / running", "alice", 1, "unknown", 1),
    ]
    (run_id,) = of(world, "select run_id from training_runs where model_family = 'gpt / finished'")[
        0
    ]
    assert curve(world, str(run_id), "val/accuracy") == {
        1: [(0, 0.0), (1, 0.1)],
        2: [(2, 0.2), (3, 0.3), (4, 0.4)],
    }
    config = of(world, f"select newest_config_json from training_runs where run_id = '{run_id}'")
    assert config == [('{"api_token":"[hidden]","lr":0.001}',)]


@pytest.fixture
def mlflow_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a copy of the golden folder, for MLflow's client, which may write to it."""
    pytest.importorskip("mlflow", reason="mlflow is not installed: ./run test --full installs it")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    shutil.copytree(GOLDEN / ALL["mlflow"], tmp_path / "mlruns")
    for run in (tmp_path / "mlruns").glob("*/*/"):
        (run / "artifacts").mkdir()  # which git has not, as it is empty
    return (tmp_path / "mlruns").as_uri()


def test_mlflows_client_has_what_its_folder_has(
    world: ImportWorld, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "PAGE", 2)
    add(world, "mlflow", GOLDEN / ALL["mlflow"])
    before = world.ledger.dump()
    server = MLflowServer(uri=mlflow_uri, now=NOW)
    again = import_history(world.tracks, server, "mlflow", rules=NO_RULES, by="tests")
    assert (again.new, again.known, again.bad) == (0, 5, [])
    assert world.ledger.dump() == before
    points = [
        sorted(
            (each.id, *sorted(map(str, each.points)))
            for each in history.read()
            if isinstance(each, SourceAttempt)
        )
        for history in (server, MLflow(path=GOLDEN / ALL["mlflow"], now=NOW))
    ]
    assert points[0] == points[1]


def test_a_server_that_does_not_answer_is_named_without_its_password(
    world: ImportWorld, mlflow_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = MLflowServer(uri="http://alice:hunter2-secret@127.0.0.1:9/#/runs", now=NOW)
    with pytest.raises(
        InvalidInput, match=re.escape("MLflow server http://127.0.0.1:9 cannot")
    ) as found:
        list(server.read())
    assert "hunter2-secret" not in f"{found.value}{server}"


def test_without_mlflows_client_its_install_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InvalidInput, match=re.escape("pip install 'tracks-dagster[mlflow]'")):
        list(MLflowServer(uri="http://127.0.0.1:5000", now=NOW).read())


@pytest.mark.parametrize(
    ("system", "address", "words"),
    [
        ("mlflow", "postgresql://alice:hunter2@db/mlflow", "mlflow server --backend-store-uri"),
        ("ray", "s3://bucket/experiment", "reads a folder or database of this machine: copy it"),
        ("jsonl", "https://host/runs.jsonl", "reads a file of this machine: copy it"),
    ],
)
def test_an_address_that_is_not_read_is_refused_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, address: str, words: str
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    found = CliRunner().invoke(import_command, [system, address])
    assert words in str(found.exception)
    assert "hunter2" not in str(found.exception)


def test_a_line_of_mlflow_that_is_wrong_is_named_by_file_and_line(
    world: ImportWorld, tmp_path: Path
) -> None:
    copy = tmp_path / "mlruns"
    shutil.copytree(GOLDEN / ALL["mlflow"], copy)
    path = sorted(copy.rglob("metrics/loss"))[0]
    with path.open("a") as file:
        file.write("1767225600000 0,5 3\n-5 1.0 4\n1767225600000 1.0 -4\n1767225600000")
    done = add(world, "mlflow", copy)
    count = len(path.read_text().splitlines())
    assert [each.line for each in done.bad] == [count - 3, count - 2, count - 1, count]
    assert {each.file for each in done.bad} == {str(path.relative_to(copy))}
    assert done.new == 5


def test_folders_of_event_files(world: ImportWorld) -> None:
    add(world, "tensorboard", GOLDEN / ALL["tensorboard"])
    assert {tuple(each) for each in world.runs().values()} == {("unknown", "unknown"), ("unknown",)}
    (run_id,) = of(world, "select run_id from training_runs where model_family = 'gpt/train'")[0]
    assert curve(world, str(run_id), "accuracy") == {
        1: [(0, 0.0), (1, 0.1)],
        2: [(2, 0.2), (3, 0.3), (4, 0.4)],
    }
    config = of(world, f"select newest_config_json from training_runs where run_id = '{run_id}'")
    assert config == [('{"lr":0.001,"optimizer":"adamw"}',)]


@pytest.mark.parametrize("paths", [("", "gpt"), ("gpt", "")], ids=["inside", "around"])
def test_a_folder_inside_of_one_that_was_imported_is_refused(
    world: ImportWorld, paths: tuple[str, str]
) -> None:
    """Its runs would have other names, and be there twice."""
    first, second = (GOLDEN / ALL["tensorboard"] / each for each in paths)
    add(world, "tensorboard", first)
    before = world.ledger.dump()
    with pytest.raises(InvalidInput, match=re.escape(f"import {first} again")):
        add(world, "tensorboard", second)
    assert world.ledger.dump() == before


def test_a_run_that_may_still_run_is_left_out(world: ImportWorld) -> None:
    done = add(world, "tensorboard", GOLDEN / ALL["tensorboard"], now=BEGIN)
    assert (done.new, done.not_ended) == (0, 2)


def test_offline_runs_of_wandb(world: ImportWorld) -> None:
    add(world, "wandb", GOLDEN / ALL["wandb"])
    assert world.runs() == {"wandb.abcd1234": ["unknown", "completed"]}
    assert curve(world, "wandb.abcd1234", "eval.accuracy") == {
        1: [(0, 0.0), (1, 0.1)],
        2: [(2, 0.2), (3, 0.3), (4, 0.4)],
    }
    first = world.tracks.run("wandb.abcd1234").attempts[0]
    assert (first.opened.compute.ranks, first.opened.compute.device_class) == (8, "NVIDIA H100")
    newest = of(world, "select newest_config_json, newest_metrics_json from training_runs")
    assert newest == [
        (
            '{"api_token":"[hidden]","lr":0.001,"model.layers":2}',
            '{"eval.accuracy":0.4,"loss":0.4}',
        )
    ]


def test_trials_and_runs_of_ray(world: ImportWorld) -> None:
    add(world, "ray", GOLDEN / ALL["ray"])
    assert world.runs() == {
        "ray.a1-00000-1c788c85": ["gpu_oom", "completed"],
        "ray.a1-00001-2d8efa11": ["code_error"],
        "ray.a1-00002-2641f1b6": ["unknown", "completed"],
        "ray.train": ["unknown"],
    }
    assert curve(world, "ray.train", "loss") == {1: [(100, 2.0), (200, 1.0), (300, 0.667)]}
    trial = "ray.a1-00000-1c788c85"
    assert curve(world, trial, "eval/accuracy") == {
        1: [(1, 0.1)],
        2: [(2, 0.2), (3, 0.3), (4, 0.4)],
    }


def test_trials_that_ray_tune_ran(world: ImportWorld) -> None:
    """What a function returned is said by the state alone; what fails at its start has no report."""
    done = add(
        world, "ray-tune", GOLDEN / ALL["ray-tune"], now=datetime(2026, 11, 29, 16, tzinfo=UTC)
    )
    assert (done.bad, done.not_ended) == ([], 0)
    names = dict(of(world, "select run_id, model_family from training_runs"))
    found = {str(names[run_id])[-1]: reasons for run_id, reasons in world.runs().items()}
    assert found == {
        "0": ["completed"],
        "1": ["gpu_oom", "completed"],
        "2": ["gpu_oom", "gpu_oom"],
        "3": ["code_error", "code_error"],
    }
    once = next(run_id for run_id, name in names.items() if str(name).endswith("1"))
    assert curve(world, str(once), "eval/accuracy") == {
        1: [(1, 0.1), (2, 0.2)],
        2: [(3, 0.3), (4, 0.4)],
    }


@pytest.mark.parametrize("has_steps", [True, False])
def test_runs_that_ray_train_ran(world: ImportWorld, tmp_path: Path, has_steps: bool) -> None:
    """Of each report with a checkpoint it stores which of all reports that was."""
    copy = tmp_path / "raytrain"
    shutil.copytree(GOLDEN / ALL["ray-train"], copy)
    if not has_steps:
        for path in copy.rglob("*.json"):
            path.write_text(re.sub(r'"step":[0-9]+,', "", path.read_text()))
    done = add(world, "ray-train", copy, now=datetime(2026, 11, 30, 16, tzinfo=UTC))
    assert (done.bad, done.not_ended) == ([], 0)
    assert world.runs() == {
        "ray.ends": ["unknown"],
        "ray.fails": ["unknown"],
        "ray.fails-once": ["unknown"],
    }
    steps = (200, 400) if has_steps else (2, 4)
    assert curve(world, "ray.ends", "eval/accuracy") == {1: [*zip(steps, (0.2, 0.4), strict=True)]}
    steps = (200, 400) if has_steps else (2, 5)  # it failed after its third report
    assert curve(world, "ray.fails-once", "loss") == {1: [*zip(steps, (1.0, 0.5), strict=True)]}


def test_a_trial_that_ray_tune_still_runs_is_left_out_though_it_failed(tmp_path: Path) -> None:
    copy = tmp_path / "raytune"
    shutil.copytree(GOLDEN / ALL["ray-tune"], copy)
    (state,) = copy.rglob("experiment_state-*.json")
    state.write_text(state.read_text().replace("TERMINATED", "RUNNING"))
    found = list(PLACES["ray"](copy, datetime(2026, 11, 29, 16, tzinfo=UTC), UTC).read())
    assert [type(each) for each in found].count(NotEnded) == 2
    assert len(found) == 2 + 4


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("2x[A100:8]", (16, "a100")),
        ("1x[A100-80GB:8]", (8, "a100-80gb")),
        ("1x[L40S:4, cpus=8+]", (4, "l40s")),
        ("2x GCP(a2-highgpu-8g, {'A100': 8})", (16, "a100")),
        ("1x AWS(p4d.24xlarge, {'A100': 8})", (8, "a100")),
        ("4x[CPU:32]", (4, "cpu")),
        ("1x AWS(m6i.large)", (1, "unknown")),
    ],
)
def test_devices_of_skypilot_are_those_asked_for(resources: str, expected: tuple[int, str]) -> None:
    assert skypilot._devices({"resources": resources}, {})[:2] == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ('[["node-1"], ["node-2", "node-3"], []]', ("node-1", "node-3")),  # as 0.14 writes them
        ("node-1, node-2", ("node-1", "node-2")),
        ("", ()),
    ],
)
def test_nodes_of_skypilot_are_the_newest_of_each(names: str, expected: tuple[str, ...]) -> None:
    assert skypilot._nodes(names) == expected


def test_a_job_that_skypilot_cancelled_as_it_waited_ended_then_and_one_that_waits_has_not(
    tmp_path: Path,
) -> None:
    """As SkyPilot 0.14 leaves both: submitted_at and end_at are null, an event has the time."""
    path = tmp_path / "spot_jobs.db"
    shutil.copy(GOLDEN / ALL["skypilot"], path)
    with closing(sqlite3.connect(path)) as opened, opened:
        for job, status in ((8, "CANCELLED"), (9, "PENDING")):
            opened.execute(
                "insert into spot (status, spot_job_id, task_id) values (?, ?, 0)", (status, job)
            )
            opened.execute(
                "insert into job_events (spot_job_id, task_id, new_status, timestamp) "
                "values (?, 0, 'PENDING', '2026-01-01 00:00:00')",
                (job,),
            )
        opened.execute(
            "insert into job_events (spot_job_id, new_status, timestamp) "
            "values (8, 'CANCELLED', '2026-01-01 00:05:00')"
        )
    found = list(skypilot.SkyPilot(path=path).read())
    assert [each for each in found if isinstance(each, BadRow)] == []
    (waited,) = (each for each in found if isinstance(each, SourceAttempt) and each.run == "8")
    assert (waited.ended_at - waited.submitted_at).total_seconds() == 300
    assert waited.started_at is None


def test_managed_jobs_of_skypilot(world: ImportWorld) -> None:
    done = add(world, "skypilot", GOLDEN / ALL["skypilot"])
    assert done.not_ended == 1
    assert world.runs() == {
        "skypilot.1": [
            "unknown",
            "unknown",
            "completed",
        ],  # "preempted or failed", and its controller
        "skypilot.2": ["gpu_oom"],
        "skypilot.3": ["user_cancelled"],
    }
    sql = (
        "select gpu_seconds from training_attempts where run_id = 'skypilot.1' order by attempt_id"
    )
    assert of(world, sql) == [(16 * 60.0 * minutes,) for minutes in (50, 20, 80)]


def test_managed_jobs_as_skypilots_own_functions_write_them(world: ImportWorld) -> None:
    done = add(world, "skypilot", GOLDEN / "skypilot" / "spot_jobs-0.14.1.db")
    assert done.not_ended == 2  # one runs, one waits
    assert world.runs() == {
        "skypilot.1": ["unknown", "unknown", "completed"],
        "skypilot.2": ["gpu_oom", "gpu_oom"],
        "skypilot.3": ["user_cancelled"],
        "skypilot.6": ["user_cancelled"],
        "skypilot.7": ["unknown"],
        "skypilot.8": ["completed"],
        "skypilot.8.1": ["code_error"],
    }
    sql = (
        "select gpu_seconds from training_attempts where run_id = 'skypilot.1' order by attempt_id"
    )
    assert of(world, sql) == [(16 * 60.0 * minutes,) for minutes in (50, 20, 80)]


def test_trials_of_optuna_are_finished_runs(world: ImportWorld) -> None:
    needs("optuna")
    done = add(world, "optuna", GOLDEN / ALL["optuna"])
    assert done.not_ended == 1
    assert world.runs() == {
        "optuna.lr.0": ["completed"],
        "optuna.lr.1": ["completed"],
        "optuna.lr.2": ["unknown"],
    }
    assert curve(world, "optuna.lr.0", "value") == {1: [(1, 0.9), (2, 0.7), (3, 0.5)]}
    config = of(world, "select newest_config_json from training_runs where run_id = 'optuna.lr.0'")
    assert config == [('{"lr":0.001,"optimizer":"adamw"}',)]


def test_what_the_exporter_of_neptune_wrote(world: ImportWorld) -> None:
    add(world, "neptune", GOLDEN / ALL["neptune"])
    assert sorted(world.runs().values()) == [["unknown"], ["unknown", "completed"]]
    (run_id,) = of(world, "select run_id from training_attempts where attempt_id = 2")[0]
    assert curve(world, str(run_id), "metrics/accuracy") == {
        1: [(0, 0.0), (1, 0.1)],
        2: [(2, 0.2), (3, 0.3), (4, 0.4)],
    }
    config = of(world, f"select newest_config_json from training_runs where run_id = '{run_id}'")
    assert config == [('{"config/api_token":"[hidden]","config/lr":0.001}',)]


def test_the_command_reads_a_place_and_names_what_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    copy = tmp_path / "tensorboard"
    shutil.copytree(GOLDEN / ALL["tensorboard"], copy)
    path = sorted(copy.rglob("*.tfevents.*"))[-1]
    path.write_bytes(path.read_bytes()[:-3])
    for options, words in (
        (["--dry-run"], "Would import 3 attempts of 2 runs"),
        ([], "Imported 3 attempts of 2 runs"),
        ([], "Imported 0 attempts of 0 runs"),
    ):
        found = CliRunner().invoke(import_command, ["tensorboard", str(copy), *options])
        assert found.exit_code == 0, found.output
        assert words in found.output
        assert f"Not read: {path.relative_to(copy)}: it is cut at byte" in found.output
    other_name = CliRunner().invoke(import_command, ["raytune", str(GOLDEN / ALL["ray"]), "--json"])
    assert parse_json(other_name.output)["history"] == "ray"
    without = CliRunner().invoke(import_command, ["mlflow"])
    assert "Name the folder or database to import" in str(without.exception)
