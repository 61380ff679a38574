"""The roles of deploy/: just what the doctor asks for, and enough for what is really asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import FakeObjectStore
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.launching import (
    is_gone,
    launcher_on,
    pods_of,
    running,
    seen,
    spec,
)
from tests.wings.kubernetes.double.run_workers import (
    begin,
    instance_on,
    launch,
    launcher_of,
    running_pod,
)
from tracks_dagster.track.effects.settings_file import open_settings
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.wings.kubernetes.effects.cluster_file import read_cluster
from tracks_dagster.wings.kubernetes.needs import QUOTAS, permissions
from tracks_dagster.wings.kubernetes.settings import JOB_SET, ClusterSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
OBJECTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((DEPLOY / "manifests" / "accounts.yaml").read_text(encoding="utf-8"))
)
SUPERVISOR, DAGSTER, GANG = "tracks-supervisor", "tracks-dagster", "tracks-gang"
Grant = tuple[str, str, str, bool]  # API group, resource, verb, whether in a namespace


@pytest.fixture(name="kube")
def _kube(tmp_path: Path) -> Iterator[KubeDouble]:
    """A double whose pods have no processes."""
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


@pytest.fixture(name="store")
def _store() -> FakeObjectStore:
    return FakeObjectStore()


def test_the_supervisor_may_do_all_that_the_doctor_asks_for_and_no_more() -> None:
    asked = {
        (need.group, need.resource, verb, need.is_namespaced)
        for need in (*permissions(_cluster(job_kind=JOB_SET)), *QUOTAS)
        for verb in need.verbs
    }
    assert granted(SUPERVISOR) == asked


def test_dagster_itself_may_do_a_part_of_it_and_gangs_pods_nothing() -> None:
    assert granted(DAGSTER) < granted(SUPERVISOR)
    assert granted(GANG) == set()
    forgotten = {"services", "nodes", "jobsets"} & {each[1] for each in granted(DAGSTER)}
    assert forgotten == set()


def test_a_gang_is_started_watched_drained_and_ended_by_what_the_supervisor_may(
    kube: KubeDouble, store: FakeObjectStore
) -> None:
    refused = allow_only(kube, SUPERVISOR)
    with launcher_on(kube, store) as launcher:
        assert launcher.start(spec())
        running(kube)
        seen(launcher, lambda report: bool(report.ranks), "the gang is observed")
        launcher.drain(AttemptRef("r-1", 1), grace_s=5.0)
        seen(launcher, is_gone, "the gang is drained")
        assert launcher.start(spec("r-2"))
        running(kube, "r-2")
        launcher.kill(AttemptRef("r-2", 1))
        assert pods_of(kube, "r-2") == []
    assert refused == set()
    assert {("create", "jobs.batch"), ("deletecollection", "pods")} <= {*kube.requests}


def test_a_run_worker_is_started_looked_at_and_ended_by_what_dagster_may(
    kube: KubeDouble, tmp_path: Path
) -> None:
    refused = allow_only(kube, DAGSTER)
    with instance_on(kube, tmp_path / "dagster") as instance:
        run = launch(instance)
        running_pod(kube, run)
        run = begin(instance, run)
        launcher_of(instance).check_run_worker_health(run)
        assert launcher_of(instance).terminate(run.run_id)
        launcher_of(instance).check_run_worker_health(run)
    assert refused == set()
    assert {("create", "jobs.batch"), ("delete", "jobs.batch")} <= {*kube.requests}


def granted(account: str) -> set[Grant]:
    """Return what the roles that are bound to an account allow."""
    found: set[Grant] = set()
    for binding in OBJECTS:
        if not binding["kind"].endswith("Binding"):
            continue
        if account not in {subject["name"] for subject in binding["subjects"]}:
            continue
        ref = binding["roleRef"]
        (role,) = [
            each
            for each in OBJECTS
            if (each["kind"], each["metadata"]["name"]) == (ref["kind"], ref["name"])
        ]
        found |= {
            (group, resource, verb, role["kind"] == "Role")
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
    return found


def allow_only(kube: KubeDouble, account: str) -> set[tuple[str, str]]:
    """Let the double refuse what the account's roles do not grant; return what it refused so far."""
    refused: set[tuple[str, str]] = set()
    may = {(verb, _known_as(resource, group)) for group, resource, verb, _ in granted(account)}

    def allows(verb: str, resource: str) -> bool:
        if (verb, resource) not in may:
            refused.add((verb, resource))
        return (verb, resource) in may

    kube._desk.allows = allows  # type: ignore[method-assign]
    return refused


def _known_as(resource: str, group: str) -> str:
    """Return the double's word for a resource: `jobs.batch`, `jobs.batch/status`, `pods/log`."""
    whole, separator, part = resource.partition("/")
    return f"{whole}.{group}".rstrip(".") + separator + part


def _cluster(**changed: str) -> ClusterSettings:
    found = read_cluster(open_settings(DEPLOY / "kubernetes.yaml", "The file"))
    return replace(found, **changed)  # type: ignore[arg-type]
