"""Dagster's instance for run workers that are pods: what its files say, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.instance.ref import InstanceRef

from tracks_dagster.track.names import MANAGED_BY
from tracks_dagster.wings.kubernetes.edge import cluster_home
from tracks_dagster.wings.kubernetes.edge.cluster_home import (
    config_map,
    config_map_name,
    here,
    in_pods,
    unreachable,
    worker_config,
)
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

CLUSTER = ClusterSettings(
    image="registry.example/tracks:1",
    namespace="training",
    kubeconfig="/home/ada/.kube/config",
    context="lab",
    image_pull_policy="Always",
    image_pull_secrets=("registry",),
    environment={"AWS_REGION": "eu-1"},
    environment_from=({"secretRef": {"name": "object-store"}, "prefix": "S3_"},),
    volumes=({"name": "data", "persistentVolumeClaim": {"claimName": "data"}},),
    volume_mounts=({"name": "data", "mountPath": "/data"},),
    termination_grace_s=120,
    scheduling_timeout_s=900,
    start_timeout_s=600,
    run_worker={
        "service_account_name": "tracks-supervisor",
        "env_secrets": ["tracks-postgres-url"],
        "env_vars": ["LOG_LEVEL=debug"],
        "resources": {"limits": {"memory": "2Gi"}},
        "run_k8s_config": {"pod_spec_config": {"priorityClassName": "supervisors"}},
    },
)
FILES = {"kubernetes.yaml", "policy.yaml"}
POSTGRES = "postgresql+psycopg2://u:hunter22@h/d"


def outside(cluster: ClusterSettings = CLUSTER) -> dict[str, Any]:
    text = here(cluster, config_map="settings", store_url="s3://bucket", files=FILES)
    return dict(yaml.safe_load(text))


def launcher(config: dict[str, Any]) -> dict[str, Any]:
    return dict(config["run_launcher"]["config"])


def test_the_daemon_outside_launches_pods_by_its_kubeconfig_and_monitors_them() -> None:
    config = outside()
    assert config["run_launcher"]["class"] == "TrackedK8sRunLauncher"
    found = launcher(config)
    assert (found["load_incluster_config"], found["context"]) == (False, "lab")
    assert found["kubeconfig_file"] == "/home/ada/.kube/config"
    assert (found["python"], found["job_namespace"]) == ("python", "training")
    monitoring = config["run_monitoring"]
    assert monitoring["enabled"] is True
    assert monitoring["start_timeout_seconds"] == 900 + 600
    assert monitoring["max_resume_run_attempts"] == 0
    assert monitoring["cancel_timeout_seconds"] > CLUSTER.termination_grace_s
    assert config["run_retries"] == {"enabled": False}


def test_pods_read_the_same_instance_without_the_way_from_outside() -> None:
    text = in_pods(CLUSTER, config_map="settings", store_url="s3://bucket", files=FILES)
    found = launcher(yaml.safe_load(text))
    assert found["load_incluster_config"] is True
    assert "kubeconfig" not in text
    assert "/home/ada" not in text
    assert yaml.safe_load(text)["storage"] == outside()["storage"]


def test_no_file_holds_the_url_of_the_database() -> None:
    assert outside()["storage"]["postgres"]["postgres_url"] == {
        "env": "TRACKS_DAGSTER_POSTGRES_URL"
    }


def test_what_a_person_says_of_run_workers_goes_before_ours_and_lists_are_added_to() -> None:
    found = worker_config(CLUSTER, config_map="settings", store_url="s3://bucket", files=FILES)
    assert found["service_account_name"] == "tracks-supervisor"
    assert found["resources"] == {"limits": {"memory": "2Gi"}}
    assert found["env_secrets"] == ["tracks-postgres-url"]
    assert set(found["env_vars"]) == {
        "TRACKS_STORE=s3://bucket",
        "TRACKS_HOME=/tracks",
        "TRACKS_KUBERNETES=/etc/tracks/kubernetes.yaml",
        "TRACKS_POLICY=/etc/tracks/policy.yaml",
        "AWS_REGION=eu-1",
        "LOG_LEVEL=debug",
    }
    raw = found["run_k8s_config"]
    assert raw["pod_spec_config"]["priorityClassName"] == "supervisors"
    assert raw["pod_spec_config"]["terminationGracePeriodSeconds"] > CLUSTER.termination_grace_s
    assert raw["container_config"]["envFrom"][0]["prefix"] == "S3_"
    assert found["volumes"][0]["name"] == "data"


@pytest.mark.parametrize("make", [here, in_pods])
def test_dagster_accepts_the_instance(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = make(CLUSTER, config_map="settings", store_url="s3://bucket", files=FILES)
    (tmp_path / "dagster.yaml").write_text(text)
    ref = InstanceRef.from_dir(str(tmp_path))
    assert ref.run_launcher_data is not None
    assert ref.run_launcher_data.class_name == "TrackedK8sRunLauncher"
    _check_launcher(ref)


def _check_launcher(ref: InstanceRef) -> None:
    """Raise what Dagster says of the launcher's config; it is not connected."""
    from dagster._config import process_config, resolve_to_config_type

    from tracks_dagster.wings.kubernetes.edge.run_launcher import TrackedK8sRunLauncher

    config_type = resolve_to_config_type(TrackedK8sRunLauncher.config_type())
    result = process_config(config_type, ref.run_launcher_data.config_dict)  # type: ignore[union-attr]
    assert result.success, result.errors


def test_the_config_map_has_the_files_and_no_kubeconfig() -> None:
    text = "image: x\nkubeconfig: /home/ada/.kube/config\ncontext: lab\nnamespace: training\n"
    made = config_map("settings", CLUSTER, {"kubernetes.yaml": text, "policy.yaml": "{}"})
    assert made["metadata"]["namespace"] == "training"
    assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == MANAGED_BY
    assert yaml.safe_load(made["data"]["kubernetes.yaml"]) == {
        "image": "x",
        "namespace": "training",
    }
    assert set(made["data"]) == {"kubernetes.yaml", "policy.yaml"}


def test_every_home_and_namespace_has_a_config_map_of_its_own() -> None:
    pairs = [("a", "h:/x"), ("b", "h:/x"), ("a", "h:/y")]
    made = {config_map_name(*pair) for pair in pairs}
    assert len(made) == 3
    assert all(len(name) <= 63 for name in made)


def problems(cluster: ClusterSettings = CLUSTER, **given: Any) -> str:
    settings = {"store_url": "s3://bucket", "postgres_url": POSTGRES, **given}
    return "\n".join(unreachable(cluster, **settings))


def test_what_pods_reach_is_accepted() -> None:
    assert problems() == ""
    assert problems(store_url="/data/store") == ""
    assert problems(store_url="file:///data/store") == ""


def test_what_pods_do_not_reach_is_refused_with_what_to_set() -> None:
    assert "TRACKS_POSTGRES_URL=postgresql://" in problems(postgres_url=None)
    assert "The store /home/ada/store is a folder of this machine" in problems(
        store_url="/home/ada/store"
    )
    assert "The store /database is" in problems(store_url="/database")
    bare = ClusterSettings(image="x")
    assert "run_worker: {env_secrets: [tracks-postgres-url]}" in problems(bare)
    assert "hunter22" not in problems(bare)


def test_a_run_worker_has_its_own_volumes_and_not_those_of_the_gangs_template() -> None:
    mount = {"name": "shared", "mount_path": "/mnt/shared"}
    volume = {"name": "shared", "persistent_volume_claim": {"claim_name": "shared"}}
    own = {**CLUSTER.run_worker, "volumes": [volume], "volume_mounts": [mount]}
    assert problems(replace(CLUSTER, run_worker=own), store_url="/mnt/shared/store") == ""
    read_only = {**own, "volume_mounts": [{**mount, "read_only": True}]}
    answer = problems(replace(CLUSTER, run_worker=read_only), store_url="/mnt/shared/store")
    assert "volume shared at /mnt/shared, which is read-only" in answer
    each_its_own = {**own, "volumes": [{"name": "shared", "empty_dir": {}}]}
    answer = problems(replace(CLUSTER, run_worker=each_its_own), store_url="/mnt/shared/store")
    assert "an emptyDir: every pod has its own" in answer
    of_gangs = {
        "spec": {
            "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
            "containers": [
                {"name": "t", "volumeMounts": [{"name": "shared", "mountPath": "/mnt/shared"}]}
            ],
        }
    }
    answer = problems(replace(CLUSTER, pod_template=of_gangs), store_url="/mnt/shared/store")
    assert "no volume mounts into the pods" in answer
    here_only = replace(CLUSTER, environment={"AWS_ENDPOINT_URL_S3": "http://localhost:9000"})
    assert "in a pod, that is the pod itself" in problems(here_only)


def test_a_variable_taken_from_a_secret_names_the_database_too() -> None:
    source = {"secretKeyRef": {"name": "pg", "key": "url"}}
    env = [{"name": cluster_home.POSTGRES_SECRET, "valueFrom": source}]
    raw = {"run_k8s_config": {"container_config": {"env": env}}}
    assert problems(ClusterSettings(image="x", run_worker=raw)) == ""
