"""The cluster's settings and the run launcher, as deploy/ configures them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.deploy.values import DEPLOY, accepted, launcher_values
from tracks_dagster.track.effects.settings_file import open_settings
from tracks_dagster.wings.kubernetes.edge.run_launcher import TrackedK8sRunLauncher
from tracks_dagster.wings.kubernetes.effects.cluster_file import read_cluster
from tracks_dagster.wings.kubernetes.settings import ClusterSettings


@pytest.fixture(name="cluster", scope="module")
def _cluster() -> ClusterSettings:
    return read_cluster(open_settings(DEPLOY / "kubernetes.yaml", "The file"))


@pytest.fixture(name="launcher")
def _launcher(tmp_path: Path) -> TrackedK8sRunLauncher:
    """The launcher that the values configure, for a cluster that is not there."""
    kubeconfig = tmp_path / "kubeconfig"
    server = {"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "none", "context": {"cluster": "none", "user": "none"}}
    found = {
        "clusters": [server],
        "contexts": [context],
        "users": [{"name": "none", "user": {}}],
        "current-context": "none",
    }
    kubeconfig.write_text(yaml.safe_dump(found), encoding="utf-8")
    config = accepted(TrackedK8sRunLauncher, launcher_values()["config"])
    outside = {"load_incluster_config": False, "kubeconfig_file": str(kubeconfig)}
    return TrackedK8sRunLauncher.from_config_value(None, {**config, **outside})
