"""Dagster at home outside of a cluster, with its run workers inside: what both need is put in place."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

from tracks_dagster.home import dagster_config
from tracks_dagster.home.dagster_home import DagsterHome
from tracks_dagster.kubernetes.effects.api.client import connect
from tracks_dagster.kubernetes.effects.api.kube_requests import KubeRequests
from tracks_dagster.kubernetes.settings.cluster import ClusterSettings
from tracks_dagster.track.errors import SettingsError


def open_cluster_home(
    folder: Path,
    cluster: ClusterSettings,
    *,
    root: Path,
    environment: Mapping[str, str],
    store_url: str,
    postgres_url: str | None,
    files: Mapping[str, Path],
) -> DagsterHome:
    """Return the home whose daemon starts run workers as pods, after their ConfigMap was put.

    files: the keys of `dagster_config.FILES` that there are, the cluster's settings among them.
    Raises SettingsError with all that pods cannot use, GangError when the ConfigMap cannot be put.
    """
    problems = dagster_config.unreachable(cluster, store_url=store_url, postgres_url=postgres_url)
    if problems:
        raise SettingsError("Run workers cannot be pods:\n" + "\n".join(f"- {p}" for p in problems))
    name = dagster_config.config_map_name(cluster.namespace, f"{socket.gethostname()}:{folder}")
    keys = set(files)
    data = {key: path.read_text(encoding="utf-8") for key, path in files.items()}
    data[dagster_config.DAGSTER_KEY] = dagster_config.in_pods(
        cluster, config_map=name, store_url=store_url, files=keys
    )
    put_config_map(KubeRequests(connect(cluster), cluster), name, cluster, data)
    return DagsterHome(
        folder,
        root=root,
        environment=environment,
        postgres_url=postgres_url,
        config=dagster_config.here(cluster, config_map=name, store_url=store_url, files=keys),
    )


def put_config_map(
    requests: KubeRequests, name: str, cluster: ClusterSettings, data: Mapping[str, str]
) -> None:
    """Create the ConfigMap, or replace it as a whole. Pods that run keep what they were born with."""
    body = dagster_config.config_map(name, cluster, data)
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    doing = f"put the run workers' settings into ConfigMap {name}"
    there = {HTTPStatus.CONFLICT}
    if requests.ask("POST", path, doing=doing, body=body, none_at=there) is None:
        requests.ask("PUT", f"{path}/{name}", doing=doing, body=body)
