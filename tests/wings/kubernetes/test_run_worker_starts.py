"""Run workers that do not start, or are cancelled before they do, and what becomes of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus

from tests.wings.kubernetes.double.gangs import until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.run_workers import (
    IMAGE,
    failure_of,
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
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import TAG_WORKER_REASON
from tracks_dagster.wings.kubernetes.edge import run_worker_ends
from tracks_dagster.wings.kubernetes.effects import run_worker_watch as run_worker_api

FAILED = DagsterRunStatus.FAILURE


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


def look_at_starting(instance: DagsterInstance) -> None:
    launcher_of(instance)._ends.look_at_starting()


def given_up(instance: DagsterInstance, run: DagsterRun) -> DagsterRun:
    """Return the run as soon as the watch's looks have given it up."""

    def found() -> DagsterRun | None:
        look_at_starting(instance)
        now = reread(instance, run)
        return now if now.is_finished else None

    return until(found, "the run is given up")


def test_an_image_that_cannot_be_pulled_ends_the_start_with_the_kubelets_words(
    kube: KubeDouble, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.missing_images.add(IMAGE)
    run = launch(instance)
    until(lambda: _waiting(kube, run) == "ImagePullBackOff", "the pull backs off")
    monkeypatch.setattr(run_worker_ends, "PROBLEM_S_MAX", 0.0)
    assert given_up(instance, run).tags[TAG_WORKER_REASON] == "image_pull"
    assert IMAGE in failure_of(instance, run)
    until(lambda: not pods_of(kube, run), "the Job is deleted")


def test_a_registry_that_does_not_answer_is_given_time(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    kube.missing_images.add(IMAGE)
    run = launch(instance)
    until(lambda: _waiting(kube, run) == "ImagePullBackOff", "the pull backs off")
    look_at_starting(instance)
    look_at_starting(instance)
    assert reread(instance, run).status is DagsterRunStatus.STARTING


def _waiting(kube: KubeDouble, run: DagsterRun) -> str:
    for pod in pods_of(kube, run):
        for each in pod["status"].get("containerStatuses", ()):
            return str(each["state"].get("waiting", {}).get("reason"))
    return ""


def test_a_worker_that_dies_before_its_run_begins_ends_the_run(
    kube: KubeDouble, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_worker_ends, "ENDED_S_MAX", 0.0)
    run = launch(instance)
    kube.oom(running_pod(kube, run))
    assert given_up(instance, run).tags[TAG_WORKER_REASON] == "host_oom"
    assert "OOMKilled" in failure_of(instance, run)


def test_a_worker_without_a_node_is_waited_for_until_dagsters_timeout_tells_why(
    kube: KubeDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_worker_ends, "PROBLEM_S_MAX", 0.0)
    resources = {"requests": {"cpu": "4000"}}
    with instance_on(kube, tmp_path / "dagster", resources=resources) as instance:
        run = launch(instance)
        until(lambda: _unscheduled(kube, run), "the scheduler says that there is no node")
        look_at_starting(instance)
        assert monitor(instance, run).status is DagsterRunStatus.STARTING
        monkeypatch.setattr(type(instance), "run_monitoring_start_timeout_seconds", 0)
        failed = monitor(instance, run)
        assert failed.status is FAILED
        assert failed.tags[TAG_WORKER_REASON] == "scheduling_timeout"
        assert "nodes are available" in failure_of(instance, run)
        until(lambda: not pods_of(kube, run), "its Job is gone: nobody would take a late worker")


def _unscheduled(kube: KubeDouble, run: DagsterRun) -> bool:
    found = [c for pod in pods_of(kube, run) for c in pod["status"].get("conditions", ())]
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in found)


def test_a_quota_without_room_for_the_pod_is_reported_by_the_timeout(
    kube: KubeDouble, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.set_quota("small", {"pods": "0"})
    run = launch(instance)
    until(lambda: _has_event(kube, "FailedCreate"), "the Job's controller was refused")
    monkeypatch.setattr(type(instance), "run_monitoring_start_timeout_seconds", 0)
    failed = monitor(instance, run)
    assert failed.tags[TAG_WORKER_REASON] == "scheduling_timeout"
    assert "exceeded quota: small" in failure_of(instance, run)


def _has_event(kube: KubeDouble, reason: str) -> bool:
    events, _ = kube.objects.all("events")
    return any(event["reason"] == reason for event in events)


@pytest.mark.parametrize(
    ("refusal", "reason", "words"),
    [
        (
            lambda kube: kube.deny("create", "jobs.batch"),
            "permission_denied",
            "may not create jobs",
        ),
        (
            lambda kube: kube.set_quota("none", {"count/jobs.batch": "0"}),
            "scheduling_timeout",
            "exceeds the quota none",
        ),
    ],
)
def test_a_job_that_is_refused_fails_the_run_with_the_reason(
    kube: KubeDouble,
    instance: DagsterInstance,
    refusal: Callable[[KubeDouble], None],
    reason: str,
    words: str,
) -> None:
    refusal(kube)
    run = new_run(instance)
    with pytest.raises(GangError, match=words):
        instance.launch_run(run.run_id, None)  # type: ignore[arg-type]
    assert reread(instance, run).status is FAILED
    assert reread(instance, run).tags[TAG_WORKER_REASON] == reason


def test_a_run_that_is_cancelled_before_its_worker_began_is_cancelled_at_once(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    kube.missing_images.add(IMAGE)
    run = launch(instance)
    until(lambda: _waiting(kube, run) == "ImagePullBackOff", "the pull backs off")
    assert launcher_of(instance).terminate(run.run_id)
    assert reread(instance, run).status is DagsterRunStatus.CANCELED


def test_a_worker_that_runs_ends_a_cancelled_run_itself(
    kube: KubeDouble, instance: DagsterInstance
) -> None:
    run, _ = started(instance, kube)
    assert launcher_of(instance).terminate(run.run_id)
    assert reread(instance, run).status is DagsterRunStatus.CANCELING
