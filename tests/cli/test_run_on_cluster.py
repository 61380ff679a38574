"""`tracks run --on kubernetes`: what is asked for, and what is refused with nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tests.wings.kubernetes.double.furniture import kubeconfig
from tracks_dagster.attempts.effects.preparing import Prepared
from tracks_dagster.cli.start import run

RUN = ("run", "--run-id", "r-1", "--intent", "Try it.")
ON = (*RUN, "--on", "kubernetes")
SETTINGS = (
    "image: train:1\ndevice_classes: {a100: {}}\n"
    "volumes: [{name: s, persistentVolumeClaim: {claimName: s}}]\n"
    "volume_mounts: [{name: s, mountPath: /shared}]\n"
)


@pytest.fixture
def settings(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The settings of a cluster, with a store that its pods see."""
    path = tmp_path / "kubernetes.yaml"
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig("http://127.0.0.1:1")))
    path.write_text(f"{SETTINGS}kubeconfig: {tmp_path / 'kubeconfig'}\n")
    monkeypatch.setenv("TRACKS_KUBERNETES", str(path))
    monkeypatch.setenv("TRACKS_STORE", "/shared/store")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Prepared]:
    """What the command would declare; it ends there, before anything is built."""
    requests: list[Prepared] = []
    checked = run._checked

    def stop(*args: Any, **named: Any) -> Prepared:
        requests.append(checked(*args, **named))
        raise SystemExit(0)

    monkeypatch.setattr(run, "_checked", stop)
    return requests


def test_every_option_sets_its_field(settings: Path, asked: list[Prepared], call: Call) -> None:
    done = call(
        *(*ON, "--ranks", "4", "--ranks-per-node", "2", "--memory", "64GiB", "--cpus", "7.5"),
        *("--device-class", "a100", "--queue", "team-a", "--priority-class", "high"),
        *("--node-selector", "gpu=a100", "--node-selector", "zone=", "--pool", "big"),
        *("--toleration", "gpu=yes:NoSchedule", "--toleration", "spot:NoExecute"),
        *("--topology-key", "topology.kubernetes.io/zone"),
    )
    assert done.exit_code == 0, done.output
    request = asked[0].body.compute
    assert (request.launcher, request.ranks, request.ranks_per_node) == ("kubernetes", 4, 2)
    assert (request.memory_bytes, request.cpus) == (64 * 1024**3, 7.5)
    assert (request.device_class, request.pool, request.queue) == ("a100", "big", "team-a")
    assert request.priority_class == "high"
    assert request.topology_key == "topology.kubernetes.io/zone"
    assert request.node_selector == {"gpu": "a100", "zone": ""}
    assert request.tolerations == (
        {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists", "effect": "NoExecute"},
    )


def test_a_run_stays_local_where_nothing_is_said(asked: list[Prepared], call: Call) -> None:
    assert call(*RUN).exit_code == 0
    request = asked[0].body.compute
    assert (request.launcher, request.device_class, request.pool) == ("local", "cpu", None)


@pytest.mark.parametrize(
    "option",
    [
        ("--ranks-per-node", "2", "--ranks", "2"),
        ("--memory", "1GiB"),
        ("--cpus", "2"),
        ("--device-class", "a100"),
        ("--queue", "q"),
        ("--priority-class", "p"),
        ("--node-selector", "a=b"),
        ("--toleration", "a:NoSchedule"),
        ("--topology-key", "zone"),
        ("--slurm", "account=a"),
        ("--pool", "p"),
    ],
    ids=lambda option: option[0],
)
def test_an_option_of_a_cluster_is_wrong_use_of_a_local_run(
    option: tuple[str, ...], call: Call, home: Path
) -> None:
    refused = call(*RUN, *option)
    assert refused.exit_code == 2
    assert f"{option[0]} asks something of a cluster" in refused.stderr
    assert "--on kubernetes" in refused.stderr
    assert not home.exists()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--ranks", "4", "--ranks-per-node", "3"), "use 2, for example"),
        (("--memory", "64"), "64' is not a size"),
        (("--memory", "lots"), "16GiB"),
        (("--cpus", "0"), "more than 0"),
        (("--node-selector", "gpu"), "not KEY=VALUE"),
        (("--node-selector", "a=b", "--node-selector", "a=c"), "'b' and 'c'; give one of them"),
        (("--toleration", "gpu"), "KEY:EFFECT"),
        (("--toleration", "gpu=a:Never"), "NoSchedule"),
        (("--device-class", "h100"), "There are: a100, cpu"),
        (("--queue", "Team A"), "team-a"),
    ],
    ids=" ".join,
)
def test_what_a_cluster_cannot_give_is_wrong_use_and_nothing_is_written(
    options: tuple[str, ...], hint: str, settings: Path, call: Call, home: Path
) -> None:
    refused = call(*ON, *options)
    assert refused.exit_code == 2
    assert hint in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not home.exists()


def test_a_store_that_pods_cannot_reach_is_refused(
    settings: Path, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRACKS_STORE")
    refused = call(*ON)
    assert refused.exit_code == 2
    assert "no volume mounts into the pods" in refused.stderr
    assert not home.exists()


def test_a_pod_template_that_no_gang_can_have_is_refused(
    settings: Path, call: Call, home: Path
) -> None:
    with settings.open("a") as file:
        file.write("pod_template: {spec: {restartPolicy: Always}}\n")
    refused = call(*ON)
    assert refused.exit_code == 2
    assert "restartPolicy" in refused.stderr
    assert not home.exists()


def test_without_a_clusters_settings_it_names_where_they_would_lie(
    call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRACKS_KUBERNETES", raising=False)
    refused = call(*ON)
    assert refused.exit_code == 2
    assert str(home / "kubernetes.yaml") in refused.stderr
    assert not home.exists()


def test_a_kubeconfig_that_is_not_there_is_reported_before_anything_is_declared(
    settings: Path, home: Path, tmp_path: Path, call: Call
) -> None:
    (tmp_path / "kubeconfig").unlink()
    done = call(*ON)
    assert done.exit_code == 2
    assert str(tmp_path / "kubeconfig") in done.output
    assert not home.exists()
