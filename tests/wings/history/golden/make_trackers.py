"""Makes the files of trackers beside it with the real tools, in an environment of their own:

    python -m venv /tmp/tools && /tmp/tools/bin/pip install mlflow wandb tensorboard optuna
    /tmp/tools/bin/python tests/wings/history/golden/make_trackers.py mlflow wandb tensorboard optuna

Names of the machine, of its user and of its folders are replaced.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path

HERE = Path(__file__).parent
BEGAN_S = 1_767_225_600  # 2026-01-01
TOKEN = "hf_abcdefghijklmnopqrstuvwxyzABCDEF"  # nobody's, and nowhere in what is imported
STEPS = [0, 1, 2, 3, 2, 3, 4]  # it went back to step 1, and on


def mlflow(folder: Path) -> None:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    for uri in ((folder / "mlruns").as_uri(), f"sqlite:///{folder / 'mlflow.db'}"):
        client = MlflowClient(tracking_uri=uri)
        experiment = client.create_experiment("gpt", artifact_location="file:///artifacts")
        for number, status in enumerate(("FINISHED", "FAILED", "KILLED", "RUNNING")):
            begin_ms = (BEGAN_S + 3600 * number) * 1000
            tags = {"mlflow.user": "alice", "mlflow.runName": status.lower()}
            run = client.create_run(experiment, start_time=begin_ms, tags=tags)
            steps = STEPS if number == 0 else [0, 1]
            metrics = [
                Metric(name, value, begin_ms + 60_000 * (at + 1), step)
                for at, step in enumerate(steps)
                for name, value in (("loss", 2.0 / (step + 1)), ("val/accuracy", step / 10))
            ]
            metrics.append(Metric("odd", float("nan"), begin_ms + 60_000, 0))
            params = [
                Param("lr", "0.001"),
                Param("api_token", TOKEN),
            ]
            client.log_batch(run.info.run_id, metrics, params, [RunTag("team", "nlp")])
            if status != "RUNNING":
                client.set_terminated(run.info.run_id, status, end_time=begin_ms + 1_800_000)
    with sqlite3.connect(folder / "mlflow.db") as opened:
        keep = {
            "experiments",
            "runs",
            "params",
            "metrics",
            "latest_metrics",
            "tags",
            "alembic_version",
        }
        names = [
            row[0] for row in opened.execute("select name from sqlite_master where type='table'")
        ]
        for name in set(names) - keep - {"sqlite_sequence"}:
            opened.execute(f"drop table {name}")
        opened.execute("delete from experiments where experiment_id = 0")
    sqlite3.connect(folder / "mlflow.db").execute("vacuum")
    for name in (".trash", "0"):  # the default experiment names a folder of the machine
        shutil.rmtree(folder / "mlruns" / name, ignore_errors=True)


def wandb(folder: Path) -> None:
    import json
    import subprocess

    script = """
import wandb, sys
begin, end, fails = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "fails"
settings = wandb.Settings(host="machine", username="alice", program="train.py", disable_git=True,
    disable_code=True, x_disable_stats=True, console="off", x_disable_machine_info=True)
config = {"lr": 0.001, "model": {"layers": 2}, "api_token": "hf_abcdefghijklmnopqrstuvwxyzABCDEF"}
run = wandb.init(project="gpt", id="abcd1234", name="large", mode="offline", dir=".", config=config,
    resume="allow", settings=settings)
for step in range(begin, end):
    run.log({"loss": 2.0 / (step + 1), "eval": {"accuracy": step / 10}}, step=step)
if fails:
    raise RuntimeError("CUDA out of memory")
run.finish()
"""
    for begin, end, how in ((0, 4, "fails"), (2, 5, "ends")):
        command = [sys.executable, "-c", script, str(begin), str(end), how]
        subprocess.run(command, cwd=folder, check=False)
    for path in folder.rglob("*"):
        if path.name == "latest-run" or path.suffix == ".log" or path.name == "requirements.txt":
            path.unlink()
    # Its keys are W&B's; what it would say of this machine is not for a repository.
    metadata = {"host": "machine", "username": "alice", "program": "train.py", "gpu_count": 8}
    metadata |= {"gpu": "NVIDIA H100", "args": ["--token", "hunter2hunter2"]}
    first = sorted(folder.glob("wandb/offline-run-*"))[0]
    (first / "files").mkdir(exist_ok=True)
    (first / "files" / "wandb-metadata.json").write_text(json.dumps(metadata))


def raytune(folder: Path) -> None:
    """Four trials of Ray Tune on a node of one CPU, with Ray 2.60: `pip install 'ray[tune]==2.60.0'`.

    Of the state's pickles those that name the machine are None; all else is as Ray wrote it.
    """
    import re
    import socket
    import subprocess
    import tempfile

    script = """
import sys, tempfile
from pathlib import Path
import ray
from ray import tune

def train(config):
    how, begin = config["how"], 0
    if before := tune.get_checkpoint():
        with before.as_directory() as saved:
            begin = int(Path(saved, "step").read_text())
    for step in range(begin + 1, 5):
        if how == "fails-at-start":
            raise ValueError("x is not y")
        if step == 3 and how == "fails" or step == 3 and how == "fails-once" and not begin:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        with tempfile.TemporaryDirectory() as saved:
            Path(saved, "step").write_text(str(step))
            saved = tune.Checkpoint.from_directory(saved) if how == "fails-once" else None
            tune.report({"loss": 2.0 / step, "eval": {"accuracy": step / 10}}, checkpoint=saved)

ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20)
space = {"lr": 0.001, "api_token": "hf_abcdefghijklmnopqrstuvwxyzABCDEF"}
space["how"] = tune.grid_search(["ends", "fails-once", "fails", "fails-at-start"])
tune.Tuner(
    train,
    param_space=space,
    run_config=tune.RunConfig(
        name="real", storage_path=sys.argv[1], failure_config=tune.FailureConfig(max_failures=1)
    ),
).fit()
"""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "train.py").write_text(script)
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, f"{made}/train.py", str(folder)]
        subprocess.run(command, cwd=made, env=environment, check=True)
        names = {made: "", sys.prefix: "/venv", str(folder): "/runs", tempfile.gettempdir(): "/tmp"}

    def without(match: re.Match[str]) -> str:
        pickled = bytes.fromhex(match[0])
        is_named = any(each.encode() in pickled for each in (*names, socket.gethostname()))
        return "80054e2e" if is_named else match[0]

    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
            continue
        if path.suffix not in (".json", ".txt") or path.name.startswith("basic-variant"):
            path.unlink()
            continue
        text = re.sub(r"\b80(?:[0-9a-f]{2}){4,}\b", without, path.read_text())
        for name, other in names.items():
            text = text.replace(name, other)
        text = re.sub(r'("hostname\\*": \\*")[^"\\]*', r"\1machine", text)
        text = re.sub(r'("node_ip\\*": \\*"|\bip=)[^"\\,]*', r"\g<1>10.0.0.1", text)
        path.write_text(text)


def raytrain(folder: Path) -> None:
    """Three runs of Ray Train v2 on a node of two CPUs: `pip install 'ray[train]==2.60.0'`.

    What it stores of each is one file, beside the checkpoints, which are removed.
    """
    import subprocess
    import tempfile

    script = """
import sys, tempfile
from pathlib import Path
import ray
from ray import train
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def loop(config):
    begin, how = 0, config["how"]
    if before := train.get_checkpoint():
        with before.as_directory() as saved:
            begin = int(Path(saved, "step").read_text())
    for step in range(begin + 1, 6):
        if step == 4 and (how == "fails" or how == "fails-once" and begin < 2):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        metrics = {"loss": 2.0 / step, "step": 100 * step, "eval": {"accuracy": step / 10}}
        if step % 2:
            train.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as saved:
            Path(saved, "step").write_text(str(step))
            train.report(metrics, checkpoint=train.Checkpoint.from_directory(saved))

ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20)
for how in ("ends", "fails-once", "fails"):
    try:
        DataParallelTrainer(
            loop,
            train_loop_config={"lr": 0.001, "how": how},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                name=how,
                storage_path=sys.argv[1],
                failure_config=FailureConfig(max_failures=1),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
            ),
        ).fit()
    except train.TrainingFailedError as error:
        print(how, error)
"""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "train.py").write_text(script)
        own = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
        command = [sys.executable, f"{made}/train.py", str(folder)]
        subprocess.run(command, cwd=made, env=os.environ | own, check=True)
    for path in folder.glob("*/*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name.startswith("."):
            path.unlink()


def ray(folder: Path) -> None:
    """By hand, after Ray's source: cases that `raytune` has not, and Train v2."""
    import json

    def trial(name: str, steps: list[int], restored: list[int], done: bool, error: str) -> None:
        path = folder / "tune" / f"train_{name}"
        path.mkdir(parents=True)
        params = {
            "train_loop_config": {"lr": 0.001, "api_token": "hf_abcdefghijklmnopqrstuvwxyzABCDEF"}
        }
        (path / "params.json").write_text(json.dumps(params))
        reports = [
            {
                "loss": 2.0 / step,
                "eval": {"accuracy": step / 10},
                "training_iteration": step,
                "timestamp": BEGAN_S + 60 * (at + 1),
                "time_this_iter_s": 60.0,
                "trial_id": name,
                "done": done and at == len(steps) - 1,
                "iterations_since_restore": since,
                "node_ip": "10.0.0.1",
                "hostname": "machine",
                "pid": 1,
                "config": params,
            }
            for at, (step, since) in enumerate(zip(steps, restored, strict=True))
        ]
        (path / "result.json").write_text("".join(json.dumps(each) + "\n" for each in reports))
        if error:
            (path / "error.txt").write_text(error)

    failure = "Failure # 1 (occurred at 2026-01-01_00-02-00)\nray::train()\n{}\n"
    out_of_memory = failure.format(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    )
    trial("a1_00000", [1, 2, 3, 2, 3, 4], [1, 2, 3, 1, 2, 3], True, out_of_memory)
    trial("a1_00001", [1, 2], [1, 2], False, failure.format("ValueError: x is not y"))
    trial("a1_00002", [1, 2, 3, 4], [1, 2, 1, 2], True, "")
    results = [
        {
            "version": 0,
            "checkpoint_dir_name": f"checkpoint_2026-01-01_0{step}-00-00.000001",
            "metrics": {"loss": 2.0 / step, "step": 100 * step},
        }
        for step in (1, 2, 3)
    ]
    (folder / "train").mkdir()
    snapshot = {
        "version": 0,
        "checkpoint_results": results,
        "latest_checkpoint_result": results[-1],
    }
    (folder / "train" / "checkpoint_manager_snapshot.json").write_text(json.dumps(snapshot))


def skypilot(folder: Path) -> None:
    """By hand, with the tables of SkyPilot's sky/jobs/state.py: it needs a cloud to run a job."""
    import datetime as dt

    def at(minutes: float) -> str:
        when = dt.datetime.fromtimestamp(BEGAN_S + 60 * minutes, dt.UTC)
        return str(when.replace(tzinfo=None))

    with sqlite3.connect(folder / "spot_jobs.db") as opened:
        opened.execute(
            "create table spot (job_id integer primary key, job_name text, resources text, "
            "submitted_at float, status text, run_timestamp text, start_at float, end_at float, "
            "last_recovered_at float default -1, recovery_count integer default 0, "
            "job_duration float default 0, failure_reason text, spot_job_id integer, "
            "task_id integer default 0, task_name text)"
        )
        opened.execute(
            "create table job_info (spot_job_id integer primary key, name text, schedule_state text, "
            "env_file_content text, user_hash text, workspace text, priority integer, cloud text, "
            "region text, zone text, node_names text)"
        )
        opened.execute(
            "create table job_events (id integer primary key, spot_job_id integer, task_id integer, "
            "new_status text, code text, reason text, timestamp datetime, recovery_source text)"
        )
        for job, (status, end, why) in enumerate(
            [("SUCCEEDED", 180, None), ("FAILED", 60, "CUDA out of memory. Tried to allocate 2 GiB"),
             ("CANCELLED", 60, None), ("RUNNING", None, None)], 1
        ):  # fmt: skip
            ended = None if end is None else BEGAN_S + 60 * end
            opened.execute(
                "insert into spot (job_name, resources, submitted_at, status, start_at, end_at, "
                "failure_reason, spot_job_id, task_id, task_name) values (?,?,?,?,?,?,?,?,?,?)",
                (
                    "train",
                    "2x[A100:8]",
                    BEGAN_S,
                    status,
                    BEGAN_S + 600,
                    ended,
                    why,
                    job,
                    0,
                    "train",
                ),
            )
            info = (job, "train", "DONE", "TOKEN=hunter2hunter2", "alice", "nlp", "node-1,node-2")
            opened.execute(
                "insert into job_info (spot_job_id, name, schedule_state, env_file_content, user_hash, "
                "workspace, node_names) values (?,?,?,?,?,?,?)",
                info,
            )
        for status, minute, why, source in (
            ("PENDING", 0, "Job submitted", None),
            ("RUNNING", 10, "Job started", None),
            ("RECOVERING", 60, "Cluster is preempted or failed", "FAILURE"),
            ("RUNNING", 70, "Job recovered", None),
            ("RECOVERING", 90, "Controller restarted", "RESTART"),
            ("RUNNING", 100, "Job recovered", None),
            ("SUCCEEDED", 180, "Job has succeeded", None),
        ):
            opened.execute(
                "insert into job_events (spot_job_id, task_id, new_status, reason, timestamp, "
                "recovery_source) values (1, 0, ?, ?, ?, ?)",
                (status, why, at(minute), source),
            )


def neptune(folder: Path) -> None:
    """By hand, after the schema in its exporter's README: Neptune's server is closed."""
    import datetime as dt

    import pyarrow as pa
    import pyarrow.parquet as pq

    text = ("project_id", "run_id", "attribute_path", "attribute_type")
    schema = pa.schema(
        [
            *((name, pa.string()) for name in text),
            ("step", pa.decimal128(18, 6)),
            ("timestamp", pa.timestamp("ms", "UTC")),
            ("int_value", pa.int64()),
            ("float_value", pa.float64()),
            ("string_value", pa.string()),
            ("bool_value", pa.bool_()),
            ("datetime_value", pa.timestamp("ms", "UTC")),
            ("string_set_value", pa.list_(pa.string())),
        ]
    )
    for number, has_failed in enumerate((False, True)):
        begin = dt.datetime.fromtimestamp(BEGAN_S + 3600 * number, dt.UTC)
        plain = (
            ("sys/creation_time", "datetime", begin),
            ("sys/modification_time", "datetime", begin + dt.timedelta(hours=1)),
            ("sys/failed", "bool", has_failed),
            ("sys/owner", "string", "alice"),
            ("sys/name", "string", "large"),
            ("sys/tags", "string_set", ["a", "b"]),
            ("config/lr", "float", 0.001),
            ("config/api_token", "string", TOKEN),
        )
        rows = [
            {"attribute_path": path, "attribute_type": kind, f"{kind}_value": value}
            for path, kind, value in plain
        ]
        rows += [
            {
                "attribute_path": path,
                "attribute_type": "float_series",
                "step": step,
                "timestamp": begin + dt.timedelta(minutes=at + 1),
                "float_value": value,
            }
            for at, step in enumerate(STEPS if number == 0 else [0, 1])
            for path, value in (("loss", 2.0 / (step + 1)), ("metrics/accuracy", step / 10))
        ]
        ids = {"project_id": "lab/gpt", "run_id": f"GPT-{number}"}
        path = folder / "lab_gpt_0123abcd"
        path.mkdir(exist_ok=True)
        for part, some in enumerate((rows[:12], rows[12:])):
            table = pa.Table.from_pylist([{**ids, **each} for each in some], schema=schema)
            pq.write_table(table, path / f"GPT-{number}_part_{part}.parquet", compression="snappy")


def optuna(folder: Path) -> None:
    import datetime as dt

    import optuna

    storage = f"sqlite:///{folder / 'optuna.db'}"
    study = optuna.create_study(study_name="lr", storage=storage, direction="minimize")
    states = optuna.trial.TrialState
    begin = dt.datetime.fromtimestamp(BEGAN_S, dt.UTC).replace(tzinfo=None)
    for number, state in enumerate((states.COMPLETE, states.PRUNED, states.FAIL, states.RUNNING)):
        start = begin + dt.timedelta(hours=number)
        end = None if state == states.RUNNING else start + dt.timedelta(minutes=30)
        trial = optuna.trial.create_trial(
            state=state,
            value=0.5 if state == states.COMPLETE else None,
            params={"lr": 0.001, "optimizer": "adamw"},
            distributions={
                "lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
                "optimizer": optuna.distributions.CategoricalDistribution(["sgd", "adamw"]),
            },
            intermediate_values={1: 0.9, 2: 0.7, 3: 0.5},
        )
        trial.datetime_start, trial.datetime_complete = start, end
        study.add_trial(trial)


def tensorboard(folder: Path) -> None:
    import time

    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2
    from tensorboard.summary.writer import event_file_writer

    event_file_writer.time.time = time.time = lambda: float(BEGAN_S)
    for name, pieces in (("gpt/train", [STEPS[:4], STEPS[4:]]), ("gpt/validation", [[2, 4]])):
        at = BEGAN_S
        for number, steps in enumerate(pieces):
            writer = event_file_writer.EventFileWriter(
                str(folder / name), filename_suffix=f".{number}"
            )
            if name == "gpt/train":
                began = plugin_data_pb2.SessionStartInfo(start_time_secs=at)
                began.hparams["lr"].number_value = 0.001
                began.hparams["optimizer"].string_value = "adamw"
                info = plugin_data_pb2.HParamsPluginData(session_start_info=began)
                name_of = metadata.SESSION_START_INFO_TAG
                given = Summary.Value(tag=name_of, metadata=metadata.create_summary_metadata(info))
                summary = Summary(value=[given])
                text = TensorProto(dtype=7, string_val=[b"hello"])
                summary.value.add(tag="text", tensor=text)
                writer.add_event(Event(wall_time=at, summary=summary))
            for step in steps:
                at += 60
                old = Summary.Value(tag="loss", simple_value=2.0 / (step + 1))
                plugin = SummaryMetadata(
                    plugin_data=SummaryMetadata.PluginData(plugin_name="scalars")
                )
                tensor = TensorProto(dtype=1, float_val=[step / 10])
                new = Summary.Value(tag="accuracy", tensor=tensor, metadata=plugin)
                writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=[old, new])))
            writer.close()
    for path in folder.rglob("*.tfevents.*"):
        number = path.name.rpartition(".")[2]
        path.rename(path.with_name(f"events.out.tfevents.{BEGAN_S}.machine.{number}"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        globals()[name](folder)
