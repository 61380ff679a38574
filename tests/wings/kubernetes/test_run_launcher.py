"""Dagster's run workers on the double, by our run launcher: why they end, and why they do not start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.launcher import WorkerStatus

from tests.wings.kubernetes.double.faults import Misbehaviour
from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import WAIT_S_MAX, until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.run_workers import (
    begin,
    dead,
    failure_of,
    image_env,
    instance_on,
    launch,
    launcher_of,
    monitor,
    new_run,
    pods_of,
    reread,
    running_pod,
    started,
)
from tracks_dagster.defs.resources import run_processes
from tracks_dagster.track.names import LABEL_ATTEMPT, LABEL_RUN, TAG_WORKER_REASON
from tracks_dagster.wings.kubernetes.edge.run_worker_ends import job_name
from tracks_dagster.wings.kubernetes.effects import run_worker_watch as run_worker_api
from tracks_dagster.wings.kubernetes.effects.run_worker_watch import RunWorkerApi

FAILED, STARTED = DagsterRunStatus.FAILURE, DagsterRunStatus.STARTED


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes: a test says how they end."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture
def instance(
    kube: KubeDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DagsterInstance]:
    """Dagster on that double; what its launcher waits for is due at once."""
    monkeypatch.setattr(run_worker_api, "WINDOW_S", 1)
    with instance_on(kube, tmp_path / "dagster") as made:
        yield made


FAULTS: dict[str, tuple[Callable[[KubeDouble, str], None], str, str]] = {
    "preempted": (KubeDouble.preempt, "preempted", "PreemptionByScheduler"),
    "evicted": (KubeDouble.evict, "node_drained", "EvictionByEvictionAPI"),
    "evicted by Kueue": (KubeDouble.evict_by_queue, "preempted", "TerminationTarget"),
    "evicted for memory": (KubeDouble.press_memory, "host_oom", "TerminationByKubelet"),
    "OOM-killed": (KubeDouble.oom, "host_oom", "OOMKilled"),
    "killed": (KubeDouble.kill, "unknown", "exit code 137"),
    "exit 3": (lambda kube, pod: kube.finish(pod, 3), "unknown", "exit code 3"),
    "exit 0": (
        lambda kube, pod: kube.finish(pod, 0),
        "unknown",
        "before the Dagster run had ended",
    ),
    "node lost": (
        lambda kube, pod: kube.lose_node(kube.pod(pod)["spec"]["nodeName"]),
        "node_failure",
        "DeletionByTaintManager",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_reason_is_a_tag_before_the_failure_and_in_its_message(
    kube: KubeDouble, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    deed, reason, words = FAULTS[fault]
    run, pod = started(instance, kube)
    assert monitor(instance, run).status is STARTED
    tags: list[str | None] = []
    report = DagsterInstance.report_run_failed

    def spy(self: DagsterInstance, failed: DagsterRun, *more: Any, **named: Any) -> Any:
        tags.append(reread(instance, failed).tags.get(TAG_WORKER_REASON))
        return report(self, failed, *more, **named)

    monkeypatch.setattr(DagsterInstance, "report_run_failed", spy)
    deed(kube, pod)
    assert dead(instance, run).status is FAILED
    assert tags == [reason]
    message = failure_of(instance, run)
    assert f"The run worker ended ({reason})" in message
    assert words in message
    assert pod in message


def test_a_secret_in_the_log_of_a_worker_is_in_no_event_of_its_run(
    kube: KubeDouble, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = (
        'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    save()\n'
        "OSError: [Errno 28] No space left on device: ghp_abcdefghijklmnop0123\n"
    )
    monkeypatch.setattr(RunWorkerApi, "log", lambda *_: log)
    run, pod = started(instance, kube)
    kube.finish(pod, 3)
    assert dead(instance, run).status is FAILED
    assert "No space left on device: [hidden]" in failure_of(instance, run)


def test_a_worker_that_ends_its_run_itself_on_sigterm_is_tagged_all_the_same(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    run, pod = started(instance, kube)
    kube.preempt(pod)
    instance.report_run_failed(run, "Execution was interrupted unexpectedly.")  # as the worker does
    until(
        lambda: reread(instance, run).tags.get(TAG_WORKER_REASON) == "preempted",
        "the watch tags the run",
    )


def test_a_worker_that_is_taken_away_is_explained_in_the_runs_events(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    run, pod = started(instance, kube)
    kube.preempt(pod)

    def is_recorded() -> bool:
        logged = instance.all_logs(run.run_id, of_type=DagsterEventType.ENGINE_EVENT)
        words = [each.user_message or each.message for each in logged]
        return any(f"{pod}" in each and "(preempted)" in each for each in words)

    until(is_recorded, "an event of the run says that its worker was preempted")


def test_a_run_that_a_command_executes_itself_is_not_a_run_whose_worker_is_gone(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    """As `tracks run` makes snapshots beside `tracks up --kubernetes`: there is no Job."""
    run = begin(instance, new_run(instance))
    assert monitor(instance, run).status is STARTED
    assert launcher_of(instance).terminate(run.run_id) is False
    assert reread(instance, run).status is STARTED
    instance.report_dagster_event(_success(run), run_id=run.run_id)
    assert launcher_of(instance).check_run_worker_health(run).status is WorkerStatus.SUCCESS


def test_a_run_whose_own_command_writes_nothing_any_more_is_given_up(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_processes, "SILENT_S_MAX", -1.0)
    run = begin(instance, new_run(instance))
    assert monitor(instance, run).status is FAILED
    assert "has written nothing for" in failure_of(instance, run)


def test_a_run_that_succeeded_is_never_called_preempted(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    run, pod = started(instance, kube)
    instance.report_dagster_event(_success(run), run_id=run.run_id)
    kube.preempt(pod)
    until(lambda: not pods_of(kube, run), "the pod is gone")
    assert launcher_of(instance).check_run_worker_health(run).status is WorkerStatus.SUCCESS
    assert TAG_WORKER_REASON not in reread(instance, run).tags


def _success(run: DagsterRun) -> Any:
    return DagsterEvent(event_type_value=DagsterEventType.RUN_SUCCESS.value, job_name=run.job_name)


def test_what_ended_a_pod_is_read_from_events_where_nobody_watched(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    launcher = launcher_of(instance)
    launcher._watch.stop()
    launcher._watch.start = lambda: None  # type: ignore[method-assign]
    run = launch(instance)
    pod = running_pod(kube, run)
    kube.preempt(pod)
    until(lambda: not pods_of(kube, run), "the pod is gone")
    assert dead(instance, begin(instance, run)).tags[TAG_WORKER_REASON] == "preempted"


def test_an_api_server_that_does_not_answer_or_refuses_kills_no_run(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    run, _ = started(instance, kube)
    kube.deny("list", "pods")
    health = launcher_of(instance).check_run_worker_health(run)
    assert health.status is WorkerStatus.RUNNING
    assert "may not list pods" in str(health.msg)
    kube.allow("list", "pods")
    with kube.misbehaving(Misbehaviour(status=503)):
        assert monitor(instance, run).status is STARTED
    assert monitor(instance, run).status is STARTED


def test_the_requests_of_a_health_check_are_few(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    run, pod = started(instance, kube)
    watch = launcher_of(instance)._watch
    watch.stop()
    assert watch._thread is not None
    watch._thread.join(WAIT_S_MAX)  # a last list of the watch may be on its way
    before = kube.requests.copy()
    monitor(instance, run)
    assert (kube.requests - before).total() <= 3
    kube.kill(pod)
    until(lambda: pods_of(kube, run)[0]["status"]["phase"] == "Failed", "the pod has failed")
    before = kube.requests.copy()
    monitor(instance, run)
    assert (kube.requests - before).total() <= 6


def test_a_run_worker_is_one_pod_with_the_labels_of_its_attempt(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    run = launch(instance)
    job = kube.objects.get("jobs.batch", NAMESPACE, job_name(run))
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["completions"], spec["parallelism"]) == (0, 1, 1)
    for meta in (job["metadata"], spec["template"]["metadata"]):
        assert meta["labels"][LABEL_RUN] == "bold-run"
        assert meta["labels"][LABEL_ATTEMPT] == "2"
        assert meta["labels"].get("app.kubernetes.io/managed-by") is None  # a gang's own


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[KubeDouble, DagsterInstance]]:
    """A double whose pods are processes that hold this checkout, and Dagster on it."""
    with (
        kube_double(tmp_path / "kube", image_env=image_env(tmp_path)) as kube,
        instance_on(kube, tmp_path / "dagster") as instance,
    ):
        yield kube, instance


def test_a_real_worker_runs_its_job_in_a_pod(
    real: tuple[KubeDouble, DagsterInstance], tmp_path: Path
) -> None:
    kube, instance = real
    run = launch(instance)
    running_pod(kube, run)
    until(lambda: reread(instance, run).status is STARTED, "the run has begun")
    assert monitor(instance, run).status is STARTED
    (tmp_path / "may-end").touch()
    until(lambda: reread(instance, run).is_finished, "the run has ended")
    assert reread(instance, run).status is DagsterRunStatus.SUCCESS
    assert TAG_WORKER_REASON not in reread(instance, run).tags


def test_a_real_worker_that_is_preempted_fails_its_run_and_the_tag_says_why(
    real: tuple[KubeDouble, DagsterInstance],
) -> None:
    kube, instance = real
    run = launch(instance)
    pod = running_pod(kube, run)
    until(lambda: reread(instance, run).status is STARTED, "the run has begun")
    kube.preempt(pod)
    assert dead(instance, run).status is FAILED
    until(
        lambda: reread(instance, run).tags.get(TAG_WORKER_REASON) == "preempted",
        "the run is tagged",
    )
