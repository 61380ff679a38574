"""Dagster's Helm chart with our values: rendered, and taken by Kubernetes and by Dagster.

Only where `TRACKS_DAGSTER_CHART` names the chart (a folder or an archive) and helm is on PATH;
elsewhere `test_dagster_values` checks the values key by key, and the skip says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from dagster._core.instance.ref import InstanceRef

from tests.deploy.values import (
    FILE,
    KUBERNETES_VERSIONS,
    NAMESPACE,
    RELEASE,
    accepted,
    class_of,
    launcher_values,
)
from tests.deploy.worker_jobs import check_not_root, check_run_worker, run_worker_job
from tracks_dagster.wings.kubernetes.edge.run_launcher import TrackedK8sRunLauncher

CHART = os.environ.get("TRACKS_DAGSTER_CHART")
HELM = shutil.which("helm")
NO_CHART = (
    "Checked key by key only: TRACKS_DAGSTER_CHART names no chart, or there is no helm on PATH."
)
HELM_S_MAX = 60.0


@pytest.fixture(name="rendered", scope="module")
def _rendered() -> list[dict[str, Any]]:
    if not CHART or HELM is None:
        pytest.skip(NO_CHART)
    chosen = (CHART, "--namespace", NAMESPACE, "--values", str(FILE))
    helm("lint", "--strict", *chosen)
    return [each for each in yaml.safe_load_all(helm("template", RELEASE, *chosen)) if each]


def test_helm_renders_objects_that_each_kubernetes_takes(rendered: list[dict[str, Any]]) -> None:
    for each in rendered:
        for version in KUBERNETES_VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
    assert {"Deployment", "Service", "ConfigMap"} <= {each["kind"] for each in rendered}


def test_dagster_takes_the_configuration_that_helm_renders(
    rendered: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "none")
    config = named(rendered, "ConfigMap", launcher_values()["config"]["instance_config_map"])
    (tmp_path / "dagster.yaml").write_text(config["data"]["dagster.yaml"], encoding="utf-8")
    found, _ = dagster_instance_config(str(tmp_path))
    assert "run_retries" not in found
    ref = InstanceRef.from_dir(str(tmp_path))
    for data in (
        *(ref.run_launcher_data, ref.run_coordinator_data, ref.scheduler_data),
        *(ref.run_storage_data, ref.event_storage_data, ref.schedule_storage_data),
    ):
        assert data is not None
        accepted(class_of(data.module_name, data.class_name), data.config_dict)


def test_no_pod_that_helm_renders_is_root(rendered: list[dict[str, Any]]) -> None:
    pods = [each["spec"]["template"]["spec"] for each in rendered if each["kind"] == "Deployment"]
    assert len(pods) == 3
    for pod in pods:
        check_not_root(pod)


def test_helm_gives_each_pod_the_account_that_is_meant_for_it(
    rendered: list[dict[str, Any]],
) -> None:
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in rendered
        if each["kind"] == "Deployment"
    }
    assert {name: pod["serviceAccountName"] for name, pod in pods.items()} == {
        "dagster-webserver": "tracks-dagster",
        "dagster-daemon": "tracks-dagster",
        "dagster-dagster-user-deployments-tracks": "tracks-supervisor",
    }
    assert not [each for each in rendered if each["kind"] in ("ServiceAccount", "Role")]


def test_helm_gives_run_workers_the_code_servers_settings(
    rendered: list[dict[str, Any]], launcher: TrackedK8sRunLauncher
) -> None:
    code = named(rendered, "Deployment", "dagster-dagster-user-deployments-tracks")
    (container,) = code["spec"]["template"]["spec"]["containers"]
    result = {each["name"]: each.get("value") for each in container["env"]}
    context = json.loads(result["DAGSTER_CLI_API_GRPC_CONTAINER_CONTEXT"])
    check_run_worker(run_worker_job(launcher, context))


def helm(*arguments: str) -> str:
    assert HELM is not None
    done = subprocess.run(
        [HELM, *arguments], capture_output=True, text=True, timeout=HELM_S_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [
        each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found
