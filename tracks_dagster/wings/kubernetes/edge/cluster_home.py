"""Dagster outside of a cluster, its run workers inside: puts in place what both need."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from tracks_dagster.home.dagster_home import STOCK, DagsterHome, instance_config
from tracks_dagster.home.programs import Programs
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import LABEL_APP, MANAGED_BY, TAG_ATTEMPT, TAG_EVAL
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.effects.client import connect
from tracks_dagster.wings.kubernetes.effects.kube_requests import KubeRequests
from tracks_dagster.wings.kubernetes.pod_template import CONTAINER_SECURITY, POD_SECURITY
from tracks_dagster.wings.kubernetes.settings import ClusterSettings, why_unreachable

# --- dagster config -------------------------------------------------------------------------------
#
# Dagster's instance where run workers are pods: its `dagster.yaml`, here and in the pods. Pure.
#
# The daemon that launches runs may be outside of the cluster (`tracks up --kubernetes`); the pods read
# their own variant, and the cluster's settings without the kubeconfig, from a ConfigMap. Secrets are
# named, never written: the pods get TRACKS_POSTGRES_URL from a Secret.

RUNS_MAX = 500  # at once, of all kinds: supervisors are small
ATTEMPTS_MAX = 450  # of these, so that evals and snapshots always find a place
EVALS_MAX = 40  # of these, so that many evals of commits hold no attempt up
POLL_S = 15  # between two looks at the run workers
CANCEL_S_SLACK = 180  # beyond the gang's own grace: to gather its evidence and close the attempt
WORKER_GRACE_S_SLACK = 60  # a cancelled run worker drains its gang before it ends

POSTGRES_SECRET = "TRACKS_POSTGRES_URL"  # the key that a Secret of the run workers has to have
SETTINGS_FOLDER = "/etc/tracks"  # of the ConfigMap's files in a pod; its DAGSTER_HOME as well
HOME_FOLDER = "/tracks"  # TRACKS_HOME in a pod; an emptyDir
CLUSTER_KEY = "kubernetes.yaml"
DAGSTER_KEY = "dagster.yaml"
# The pods' variables TRACKS_<…>, by the file's name in the ConfigMap.
FILES = {CLUSTER_KEY: "TRACKS_KUBERNETES", "policy.yaml": "TRACKS_POLICY", "rules": "TRACKS_RULES"}
# Of a run worker, unless `run_worker` says otherwise: enough to evaluate a checkpoint. Without a limit
# of memory one that grows would end its neighbours on the node; CPU has none, for imports.
RESOURCES = {
    "requests": {"cpu": "250m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
    "limits": {"memory": "4Gi"},
}
_OUTSIDE = ("kubeconfig", "context")  # what leads to the cluster from outside


def config_map_name(namespace: str, home: str) -> str:
    """Return the name of the ConfigMap of one home; `home` names the machine as well."""
    digest = hashlib.sha256(f"{namespace}\n{home}".encode()).hexdigest()[:12]
    return f"tracks-settings-{digest}"


def here(cluster: ClusterSettings, *, config_map: str, store_url: str, files: set[str]) -> str:
    """Return the `dagster.yaml` of the daemon that launches run workers from outside.

    files: the keys of FILES that the ConfigMap has.
    """
    config = worker_config(cluster, config_map=config_map, store_url=store_url, files=files)
    outside = {
        "load_incluster_config": False,
        "kubeconfig_file": cluster.kubeconfig,
        "context": cluster.context,
        "python": cluster.python,
    }
    return instance_config(_runs(cluster, {**config, **outside}), on_postgres=True)


def in_pods(cluster: ClusterSettings, *, config_map: str, store_url: str, files: set[str]) -> str:
    """Return the `dagster.yaml` that run workers read: the same instance, seen from inside."""
    config = worker_config(cluster, config_map=config_map, store_url=store_url, files=files)
    writable = {"base_dir": {"env": "TRACKS_HOME"}}  # the settings' folder is not
    folders = {
        "local_artifact_storage": {
            "module": "dagster._core.storage.root",
            "class": "LocalArtifactStorage",
            "config": writable,
        },
        "compute_logs": {
            "module": "dagster._core.storage.local_compute_log_manager",
            "class": "LocalComputeLogManager",
            "config": writable,
        },
    }
    runs = _runs(cluster, {**config, "load_incluster_config": True})
    return instance_config(runs + _yaml(folders), on_postgres=True)


def config_map(name: str, cluster: ClusterSettings, data: Mapping[str, str]) -> dict[str, Json]:
    """Return the ConfigMap. data: its files; the cluster's is taken without its way from outside."""
    found = yaml.safe_load(data[CLUSTER_KEY])
    inside = {key: value for key, value in found.items() if key not in _OUTSIDE}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "labels": {LABEL_APP: MANAGED_BY},
        },
        "data": {**data, CLUSTER_KEY: _yaml(inside)},
    }


def worker_config(
    cluster: ClusterSettings, *, config_map: str, store_url: str, files: set[str]
) -> dict[str, Any]:
    """Return the run launcher's config; what `run_worker` of the settings says goes before it.

    Its lists are added to, everything else replaces what is here.
    """
    variables = {"TRACKS_STORE": store_url, "TRACKS_HOME": HOME_FOLDER}
    variables |= {FILES[key]: f"{SETTINGS_FOLDER}/{key}" for key in sorted(files)}
    variables |= cluster.environment
    ours: dict[str, Any] = {
        "instance_config_map": config_map,
        "dagster_home": SETTINGS_FOLDER,
        "job_namespace": cluster.namespace,
        "job_image": cluster.image,
        "image_pull_policy": cluster.image_pull_policy,
        "image_pull_secrets": [{"name": name} for name in cluster.image_pull_secrets],
        "service_account_name": "default",
        "env_vars": [f"{name}={value}" for name, value in variables.items()],
        "resources": RESOURCES,
        "security_context": _plain(CONTAINER_SECURITY),
        **_volumes(cluster, config_map),
        "run_k8s_config": {
            "container_config": {"envFrom": _plain(cluster.environment_from)},
            "pod_spec_config": {
                "securityContext": _plain(POD_SECURITY),
                "terminationGracePeriodSeconds": cluster.termination_grace_s + WORKER_GRACE_S_SLACK,
            },
        },
    }
    given = _plain(cluster.run_worker)
    return {**ours, **{key: _joined(ours.get(key), value) for key, value in given.items()}}


def _volumes(cluster: ClusterSettings, config_map: str) -> dict[str, list[Json]]:
    """Return the cluster's volumes, which may hold the store, and those of settings and home."""
    settings, home = {"name": "tracks-settings"}, {"name": "tracks-home"}
    return {
        "volumes": [
            *_plain(cluster.volumes),
            {**settings, "configMap": {"name": config_map}},
            {**home, "emptyDir": {}},
        ],
        "volume_mounts": [
            *_plain(cluster.volume_mounts),
            {**settings, "mountPath": SETTINGS_FOLDER, "readOnly": True},
            {**home, "mountPath": HOME_FOLDER},
        ],
    }


def unreachable(cluster: ClusterSettings, *, store_url: str, postgres_url: str | None) -> list[str]:
    """Return in words what of the settings pods cannot use, and what to set instead."""
    return [*_no_store(cluster, store_url), *_no_postgres(cluster, postgres_url)]


def _no_store(cluster: ClusterSettings, store_url: str) -> Iterator[str]:
    """Run workers have the cluster's volumes and their own, and nothing of the gangs' template."""
    own = {
        key: tuple(_in_camel_case(each) for each in cluster.run_worker.get(key) or ())
        for key in ("volumes", "volume_mounts")
    }
    worker = replace(
        cluster,
        pod_template={},
        volumes=(*cluster.volumes, *own["volumes"]),
        volume_mounts=(*cluster.volume_mounts, *own["volume_mounts"]),
    )
    problem = why_unreachable(store_url, worker)
    if problem is not None:
        yield problem


def _in_camel_case(given: Mapping[str, Json]) -> dict[str, Json]:
    """Return an object of the API as the API has it: Dagster takes `mount_path` as well."""
    return {re.sub(r"_([a-z])", lambda m: m[1].upper(), key): each for key, each in given.items()}


def _no_postgres(cluster: ClusterSettings, postgres_url: str | None) -> Iterator[str]:
    if postgres_url is None:
        yield (
            "The ledger and Dagster's storage are SQLite files of this machine: set "
            "TRACKS_POSTGRES_URL=postgresql://user:password@host:port/database, of a server that "
            "pods reach as well."
        )
    if not _names_postgres(cluster.run_worker):
        yield (
            f"Nothing gives run workers {POSTGRES_SECRET}: put the URL under which pods reach the "
            f"database into a Secret (`kubectl create secret generic tracks-postgres-url "
            f"--from-file={POSTGRES_SECRET}=/dev/stdin`), and name it in the cluster's settings: "
            "`run_worker: {env_secrets: [tracks-postgres-url]}`."
        )


def _names_postgres(run_worker: Mapping[str, Json]) -> bool:
    """Whether a Secret may bring it: which keys one has is not asked, that is a right of its own."""
    raw = run_worker.get("run_k8s_config")
    container = raw.get("container_config") if isinstance(raw, Mapping) else None
    return bool(run_worker.get("env_secrets")) or POSTGRES_SECRET in json.dumps(_plain(container))


def _runs(cluster: ClusterSettings, launcher: Mapping[str, Any]) -> str:
    """Return the part of `dagster.yaml` on how runs are queued, launched and monitored."""
    start_s = round(cluster.scheduling_timeout_s + cluster.start_timeout_s)
    limits = [
        {"key": TAG_ATTEMPT, "limit": ATTEMPTS_MAX},
        {"key": TAG_EVAL, "limit": EVALS_MAX},
    ]
    found = {
        "run_coordinator": {
            "module": "tracks_dagster.defs.resources.run_coordinator",
            "class": "TracksRunCoordinator",
            "config": {
                "max_concurrent_runs": RUNS_MAX,
                "dequeue_interval_seconds": 1,
                "tag_concurrency_limits": limits,
            },
        },
        "run_launcher": {
            "module": "tracks_dagster.wings.kubernetes.edge.run_launcher",
            "class": "TrackedK8sRunLauncher",
            "config": {key: value for key, value in launcher.items() if value is not None},
        },
        # Without it nobody asks whether a run worker lives. Nothing is resumed: attempts are adopted.
        "run_monitoring": {
            "enabled": True,
            "poll_interval_seconds": POLL_S,
            "start_timeout_seconds": start_s,
            "cancel_timeout_seconds": cluster.termination_grace_s + CANCEL_S_SLACK,
            "max_resume_run_attempts": 0,
        },
    }
    return _yaml(found)


def _joined(ours: Any, given: Any) -> Any:
    """Return a person's value beside ours: lists follow one another, of objects each key counts."""
    if isinstance(ours, list) and isinstance(given, list):
        return [*ours, *given]
    if isinstance(ours, dict) and isinstance(given, dict) and ours is not RESOURCES:
        merged = {key: _joined(ours.get(key), value) for key, value in given.items()}
        return {**ours, **merged}
    return given


def _plain(value: Any) -> Any:
    """Return JSON in lists and dicts, as YAML writes them."""
    return parse_json(json.dumps(value, default=lambda each: dict(each)))


def _yaml(value: Mapping[str, Any]) -> str:
    # Without sharing: an anchor (`&id001`) would be right, and no reader expects one.
    return yaml.safe_dump(_plain(value), sort_keys=False, width=100)


def open_cluster_home(
    folder: Path,
    cluster: ClusterSettings,
    *,
    root: Path,
    environment: Mapping[str, str],
    store_url: str,
    postgres_url: str | None,
    files: Mapping[str, Path],
    programs: Programs = STOCK,
) -> DagsterHome:
    """Return the home whose daemon starts run workers as pods, after their ConfigMap was put.

    files: those of `FILES` that there are, the cluster's settings among them.
    Raises SettingsError with all that pods cannot use, GangError when the ConfigMap cannot be put.
    """
    problems = unreachable(cluster, store_url=store_url, postgres_url=postgres_url)
    if problems:
        raise SettingsError("Run workers cannot be pods:\n" + "\n".join(f"- {p}" for p in problems))
    name = config_map_name(cluster.namespace, f"{socket.gethostname()}:{folder}")
    keys = set(files)
    data = {key: path.read_text(encoding="utf-8") for key, path in files.items()}
    data[DAGSTER_KEY] = in_pods(cluster, config_map=name, store_url=store_url, files=keys)
    put_config_map(KubeRequests(connect(cluster), cluster), name, cluster, data)
    return DagsterHome(
        folder,
        root=root,
        environment=environment,
        postgres_url=postgres_url,
        programs=programs,
        config=here(cluster, config_map=name, store_url=store_url, files=keys),
    )


def put_config_map(
    requests: KubeRequests, name: str, cluster: ClusterSettings, data: Mapping[str, str]
) -> None:
    """Create the ConfigMap, or replace it as a whole. Pods that run keep what they were born with."""
    body = config_map(name, cluster, data)
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    doing = f"put the run workers' settings into ConfigMap {name}"
    there = {HTTPStatus.CONFLICT}
    if requests.ask("POST", path, doing=doing, body=body, none_at=there) is None:
        requests.ask("PUT", f"{path}/{name}", doing=doing, body=body)
