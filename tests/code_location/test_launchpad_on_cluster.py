"""The launchpad's job with a cluster: what is asked for, and what is refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult

from tests.code_location.test_launchpad import declare, description
from tests.histories import DatasetHistory
from tests.wings.kubernetes.double.furniture import kubeconfig
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.names import LOCAL
from tracks_dagster.wings.kubernetes.settings import KUBERNETES
from tracks_dagster.wiring import App

CLUSTER = {
    "ranks_per_node": 2,
    "memory_bytes": 1024,
    "queue": "team-a",
    "node_selector": {"gpu": "a100"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}


@pytest.fixture
def on_cluster(app: App, tmp_path: Path) -> App:
    """The application with a cluster whose pods see its store."""
    path = tmp_path / "kubernetes.yaml"
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig("http://127.0.0.1:1")))
    path.write_text(
        f"kubeconfig: {tmp_path / 'kubeconfig'}\n"
        "image: train:1\ndevice_classes: {a100: {}}\n"
        "volumes: [{name: s, persistentVolumeClaim: {claimName: s}}]\n"
        f"volume_mounts: [{{name: s, mountPath: {tmp_path}}}]\n"
    )
    return replace(app, settings=replace(app.settings, files={"TRACKS_KUBERNETES": path}))


def declared(app: App, instance: DagsterInstance, **config: Any) -> ExecuteInProcessResult:
    return declare(app, instance, {"run_id": "from-ui", "intent": "Try the cluster.", **config})


@pytest.fixture(autouse=True)
def _snapshots(app: App) -> None:
    for dataset in ("aws-docs", "aws-docs-heldout"):
        DatasetHistory(dataset).declare().commit().write_to(app.store)


def test_the_launchpad_asks_a_cluster(on_cluster: App, instance: DagsterInstance) -> None:
    config = {"launcher": KUBERNETES, "ranks": 4, "device_class": "a100", "cluster": CLUSTER}
    assert declared(on_cluster, instance, **config, pool="big").success
    compute = on_cluster.tracks.run("from-ui").declared.compute
    assert compute == ComputeRequest(
        launcher=KUBERNETES,
        ranks=4,
        device_class="a100",
        ranks_per_node=2,
        memory_bytes=1024,
        queue="team-a",
        node_selector={"gpu": "a100"},
        tolerations=({"key": "gpu", "operator": "Exists"},),
        pool="big",
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"launcher": KUBERNETES, "device_class": "h100"}, "There are: a100, cpu"),
        ({"launcher": "lsf"}, "there are: local, kubernetes"),
        ({"cluster": CLUSTER}, "launcher: kubernetes"),
        ({"launcher": KUBERNETES, "cluster": {"slurm": {"nice": "1"}}}, "is of gangs on Slurm"),
        ({"launcher": KUBERNETES, "cluster": {"ranks_per_node": 2}}, "cannot be 2 on each node"),
    ],
)
def test_what_cannot_be_started_is_refused_in_words(
    config: dict[str, Any], words: str, on_cluster: App, instance: DagsterInstance
) -> None:
    assert words in description(declared(on_cluster, instance, **config))
    assert on_cluster.tracks.find_run("from-ui") is None


def test_without_a_clusters_settings_it_names_where_they_would_lie(
    app: App, instance: DagsterInstance
) -> None:
    assert "kubernetes.yaml" in description(declared(app, instance, launcher=KUBERNETES))


@pytest.mark.parametrize("launcher", [LOCAL, KUBERNETES])
def test_a_full_run_obeys_the_gates_of_the_policy_wherever_its_gang_runs(
    launcher: str, on_cluster: App, instance: DagsterInstance
) -> None:
    (on_cluster.settings.home / "policy.yaml").write_text("stages: {full: {needs: [smoke]}}")
    asked = {"stage": "full", "launcher": launcher}
    refused = description(declared(on_cluster, instance, **asked))
    assert "Refused by policy stages.full.needs: from-ui" in refused
    assert "smoke: there is none of this project; `tracks smoke" in refused
    assert on_cluster.tracks.find_run("from-ui") is None
    skip = {"skip_gates": ["smoke"], "skip_why": "It was shown elsewhere."}
    assert declared(on_cluster, instance, **asked, **skip).success
    skipped = on_cluster.tracks.run("from-ui").declared.skipped
    assert skipped is not None
    assert (skipped.gates, skipped.why) == (("smoke",), "It was shown elsewhere.")
