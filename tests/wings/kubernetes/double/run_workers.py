"""Dagster instances whose runs are pods of a double, and runs on them."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import yaml
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, reconstructable
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.workspace.context import BaseWorkspaceRequestContext
from dagster._daemon.monitoring import run_monitoring

import tracks_dagster
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import until
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tests.wings.kubernetes.double.worker_jobs import waiting_job
from tracks_dagster.track import names
from tracks_dagster.wings.kubernetes.edge.run_launcher import TrackedK8sRunLauncher
from tracks_dagster.wings.kubernetes.edge.run_worker_ends import job_name

ROOT = Path(tracks_dagster.__file__).parents[1]
IMAGE = "tracks-dagster:1"
TAGS = {names.TAG_ATTEMPT: "bold-run/a02", names.TAG_TRAINING_RUN: "bold-run"}


def image_env(folder: Path) -> dict[str, str]:
    """Return the variables of an image that holds this checkout."""
    path = os.pathsep.join([str(ROOT), *(each for each in sys.path if each)])
    return {"PYTHONPATH": path, "WORKER_MAY_END": str(folder / "may-end")}


@contextmanager
def instance_on(kube: KubeDouble, folder: Path, **config: object) -> Iterator[DagsterInstance]:
    """Return an instance with our run launcher; `config` goes into the launcher's."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "telemetry": {"enabled": False},
        "run_launcher": {
            "module": "tracks_dagster.wings.kubernetes.edge.run_launcher",
            "class": "TrackedK8sRunLauncher",
            "config": {
                "load_incluster_config": False,
                "kubeconfig_file": str(kube.kubeconfig),
                "job_namespace": NAMESPACE,
                "job_image": IMAGE,
                "service_account_name": "tracks-supervisor",
                "instance_config_map": "instance",
                "dagster_home": str(folder),
                **config,
            },
        },
        "run_monitoring": {"enabled": True, "start_timeout_seconds": 300},
    }
    (folder / "dagster.yaml").write_text(yaml.safe_dump(settings))
    with DagsterInstance.from_config(str(folder)) as made:
        yield made


def launcher_of(instance: DagsterInstance) -> TrackedK8sRunLauncher:
    return cast(TrackedK8sRunLauncher, instance.run_launcher)


def new_run(instance: DagsterInstance, tags: Mapping[str, str] = TAGS) -> DagsterRun:
    """Create a run; nothing is started."""
    return instance.create_run_for_job(
        waiting_job,
        tags=dict(tags),
        job_code_origin=reconstructable(waiting_job).get_python_origin(),
    )


def launch(instance: DagsterInstance) -> DagsterRun:
    """Create and launch a run, as Dagster's daemon does; it is STARTING then."""
    run = new_run(instance)
    instance.launch_run(run.run_id, cast(BaseWorkspaceRequestContext, None))
    return reread(instance, run)


def begin(instance: DagsterInstance, run: DagsterRun) -> DagsterRun:
    """Let the run be STARTED, as its worker would say."""
    started = DagsterEvent(event_type_value=DagsterEventType.RUN_START.value, job_name=run.job_name)
    instance.report_dagster_event(started, run_id=run.run_id)
    return reread(instance, run)


def reread(instance: DagsterInstance, run: DagsterRun) -> DagsterRun:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found


def pods_of(kube: KubeDouble, run: DagsterRun) -> list[Any]:
    found, _ = kube.objects.all("pods")
    return [pod for pod in found if pod["metadata"]["labels"].get("job-name") == job_name(run)]


def running_pod(kube: KubeDouble, run: DagsterRun) -> str:
    """Wait until the run's pod runs; return its name."""

    def name() -> str | None:
        up = [pod for pod in pods_of(kube, run) if pod["status"]["phase"] == "Running"]
        return str(up[0]["metadata"]["name"]) if up else None

    return until(name, f"the worker of run {run.run_id} runs")


def monitor(instance: DagsterInstance, run: DagsterRun) -> DagsterRun:
    """Do what Dagster's run monitoring does in one round for this run; return the run after it."""
    record = instance.get_run_record_by_id(run.run_id)
    assert record is not None
    log = logging.getLogger("monitoring")
    if record.dagster_run.status is DagsterRunStatus.STARTED:
        run_monitoring.monitor_started_run(
            instance, cast(BaseWorkspaceRequestContext, None), record, log
        )
    elif record.dagster_run.status is DagsterRunStatus.STARTING:
        run_monitoring.monitor_starting_run(instance, record, log)
    return reread(instance, run)


def failure_of(instance: DagsterInstance, run: DagsterRun) -> str:
    """Return the message of the run's failure event."""
    logged = instance.all_logs(run.run_id, of_type=DagsterEventType.RUN_FAILURE)
    assert len(logged) == 1
    event = logged[0].dagster_event
    assert event is not None
    return event.message or ""


def seen_by_watch(instance: DagsterInstance, run: DagsterRun, phase: str = "Running") -> None:
    watch = launcher_of(instance)._watch
    until(
        lambda: any(pod["status"].get("phase") == phase for pod in watch.history(run.run_id)),
        f"the watch has seen the pod {phase}",
    )


def started(instance: DagsterInstance, kube: KubeDouble) -> tuple[DagsterRun, str]:
    """Return a run that goes on, and its pod."""
    run = launch(instance)
    pod = running_pod(kube, run)
    seen_by_watch(instance, run)
    return begin(instance, run), pod


def dead(instance: DagsterInstance, run: DagsterRun) -> DagsterRun:
    """Return the run as soon as Dagster's monitoring has found its worker dead."""

    def found() -> DagsterRun | None:
        now = monitor(instance, run)
        return now if now.is_finished else None

    return until(found, "the monitoring finds the worker dead")
