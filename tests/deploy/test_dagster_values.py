"""The values for Dagster's Helm chart: keys, one image, no secret, the accounts, our run launcher."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart_keys import strangers
from tests.deploy.values import (
    DEPLOY,
    NAMESPACE,
    RELEASE,
    VALUES,
    accepted,
    class_of,
    launcher_values,
)
from tests.deploy.worker_jobs import check_run_worker, run_worker_job
from tracks_dagster.home import dagster_home
from tracks_dagster.home.dagster_home import DEADLINES
from tracks_dagster.wings.kubernetes.edge import cluster_home
from tracks_dagster.wings.kubernetes.edge.run_launcher import TrackedK8sRunLauncher
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

ROOT = Path(__file__).parents[2]


def test_every_key_is_one_of_the_chart_and_has_its_type() -> None:
    assert list(strangers(VALUES)) == []


def test_an_existing_release_gets_one_code_location_that_differs_in_its_code_alone() -> None:
    values = yaml.safe_load((DEPLOY / "existing-release-values.yaml").read_text(encoding="utf-8"))
    assert list(strangers(values)) == []
    (added,) = values["dagster-user-deployments"]["deployments"]
    (ours,) = VALUES["dagster-user-deployments"]["deployments"]
    own = {"image", "dagsterApiGrpcArgs", "podSecurityContext", "securityContext", "env"}
    assert {key: added[key] for key in added if key not in own} == {
        key: ours[key] for key in ours if key not in own
    }
    variables = {each["name"]: each["value"] for each in added["env"]}
    assert {each["name"]: each["value"] for each in ours["env"]}.items() <= variables.items()


def test_a_key_or_a_type_that_the_chart_does_not_have_is_found() -> None:
    wrong = {"telemetry": {"enabled": "no"}, "dagit": {}, "dagsterWebserver": {"env": [{"nam": 1}]}}
    assert list(strangers(wrong)) == [
        "values.telemetry.enabled is 'no'; expected bool",
        "values.dagit is not a key of the chart that is described here",
        "values.dagsterWebserver.env[0].nam is not a key of the chart that is described here",
    ]


def test_a_run_worker_has_its_account_its_secrets_and_time_to_let_a_gang_save(
    launcher: TrackedK8sRunLauncher,
) -> None:
    (code,) = VALUES["dagster-user-deployments"]["deployments"]
    # What the chart makes of a deployment with includeConfigInLaunchedRuns.
    context = {
        "k8s": {
            "env_secrets": [each["name"] for each in code["envSecrets"]],
            "env": code["env"],
            "volumes": code["volumes"],
            "volume_mounts": code["volumeMounts"],
            "resources": code["resources"],
            "namespace": NAMESPACE,
            "service_account_name": VALUES["dagster-user-deployments"]["serviceAccount"]["name"],
        }
    }
    check_run_worker(run_worker_job(launcher, context))


def test_no_account_is_named_that_would_go_before_the_two() -> None:
    assert "serviceAccountName" not in VALUES["global"]
    assert VALUES["serviceAccount"] == {"create": False, "name": "tracks-dagster"}
    code = VALUES["dagster-user-deployments"]["serviceAccount"]
    assert code == {"create": False, "name": launcher_values()["config"]["service_account_name"]}


def test_accounts_and_config_maps_that_are_named_are_made() -> None:
    accounts = (DEPLOY / "manifests" / "accounts.yaml").read_text(encoding="utf-8")
    made = {
        each["metadata"]["name"]
        for each in yaml.safe_load_all(accounts)
        if each["kind"] == "ServiceAccount"
    }
    kustomization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text(encoding="utf-8"))
    maps = {each["name"] for each in kustomization["configMapGenerator"]}
    assert {"tracks-dagster", "tracks-supervisor"} <= made
    assert {*values_of(VALUES, "configMap")} == {"tracks-settings"} <= maps
    # The release's name is the chart's, so it stands once in this name.
    assert launcher_values()["config"]["instance_config_map"] == f"{RELEASE}-instance"


def test_the_namespace_is_the_same_everywhere(cluster: ClusterSettings) -> None:
    kustomization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text(encoding="utf-8"))
    assert {
        cluster.namespace,
        kustomization["namespace"],
        launcher_values()["config"]["job_namespace"],
    } == {NAMESPACE}


def test_one_image_runs_everywhere(cluster: ClusterSettings) -> None:
    images = {f"{each['repository']}:{each['tag']}" for each in images_of(VALUES)}
    started = {
        container["image"]
        for part in ("dagsterWebserver", "dagsterDaemon")
        for container in VALUES[part]["extraPrependedInitContainers"]
    }
    assert images == started == {cluster.image}


def test_secrets_are_named_and_never_written(cluster: ClusterSettings) -> None:
    code = VALUES["dagster-user-deployments"]["deployments"][0]
    for part in (VALUES["dagsterWebserver"], VALUES["dagsterDaemon"], code):
        assert part["envSecrets"] == [{"name": "tracks-postgres-url"}, {"name": "tracks-store"}]
        env = {each["name"]: each["value"] for each in part["env"]}
        assert set(env) == {"TRACKS_STORE", "TRACKS_KUBERNETES", "DAGSTER_GRPC_TIMEOUT_SECONDS"}
        assert env.items() & DEADLINES.items()  # as long as on a laptop
    assert "postgresqlPassword" not in VALUES["postgresql"]
    assert VALUES["generatePostgresqlPasswordSecret"] is False
    assert VALUES["global"]["postgresqlSecretName"] == "tracks-postgres"
    config = launcher_values()["config"]
    assert config["postgres_password_secret"] == VALUES["global"]["postgresqlSecretName"]
    # Nor does what `tracks up --kubernetes` starts lack one.
    urls = {"store_url": "s3://tracks", "postgres_url": "postgresql://postgres.example/tracks"}
    assert cluster_home.unreachable(cluster, **urls) == []


def test_the_settings_are_mounted_where_the_processes_look() -> None:
    code = VALUES["dagster-user-deployments"]["deployments"][0]
    for part in (VALUES["dagsterWebserver"], VALUES["dagsterDaemon"], code):
        (mount,) = part["volumeMounts"]
        result = {each["name"]: each["value"] for each in part["env"]}
        assert result["TRACKS_KUBERNETES"] == f"{mount['mountPath']}/kubernetes.yaml"


def test_the_launcher_is_there_and_takes_its_config() -> None:
    given = launcher_values()
    found = class_of(given["module"], given["class"])
    assert found is TrackedK8sRunLauncher
    accepted(found, given["config"])
    with pytest.raises(AssertionError, match="service_acount_name"):
        accepted(found, {**given["config"], "service_acount_name": "x"})


def test_runs_are_queued_and_monitored_as_by_a_daemon_on_a_laptop(cluster: ClusterSettings) -> None:
    text = cluster_home.in_pods(cluster, config_map="x", store_url="s3://tracks", files=set())
    laptop = yaml.safe_load(text)
    daemon = VALUES["dagsterDaemon"]
    queued = daemon["runCoordinator"]["config"]["queuedRunCoordinator"]
    assert laptop["run_coordinator"]["config"] == snake(queued)
    assert laptop["run_monitoring"] == {
        f"{key}s" if key.endswith("_second") else key: value
        for key, value in snake(daemon["runMonitoring"]).items()
    }
    assert laptop["run_retries"] == daemon["runRetries"] == {"enabled": False}
    assert laptop["sensors"] == snake(daemon["sensors"])
    worker = laptop["run_launcher"]["config"]
    code = VALUES["dagster-user-deployments"]["deployments"][0]
    assert worker["resources"] == code["resources"]
    config = launcher_values()["config"]
    pod = config["run_k8s_config"]["pod_spec_config"]
    key = "terminationGracePeriodSeconds"
    assert worker["run_k8s_config"]["pod_spec_config"][key] == pod[key]
    key = "priorityClassName"
    assert worker["run_k8s_config"]["pod_spec_config"][key] == pod[key]


def test_the_location_has_its_name_and_address_on_a_laptop_and_here() -> None:
    (location,) = yaml.safe_load((ROOT / "workspace.yaml").read_text(encoding="utf-8"))["load_from"]
    (code,) = VALUES["dagster-user-deployments"]["deployments"]
    (server,) = VALUES["dagsterWebserver"]["workspace"]["servers"]
    assert server == {
        "host": code["name"],
        "port": code["port"],
        "name": location["python_module"]["location_name"],
    }
    assert code["dagsterApiGrpcArgs"] == ["--module-name", dagster_home.DEFINITIONS]


def test_the_schema_of_dagsters_tables_is_made_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setenv("TRACKS_POSTGRES_URL", "postgresql://tracks@postgres.example/tracks")
    monkeypatch.setattr(dagster_home, "create_schema", asked.append)
    for part in ("dagsterWebserver", "dagsterDaemon"):
        (container,) = VALUES[part]["extraPrependedInitContainers"]
        assert container["command"][:2] == ["python", "-c"]
        exec(container["command"][2], {})
    assert asked == ["postgresql+psycopg2://tracks@postgres.example/tracks"] * 2
    assert VALUES["postgresql"]["postgresqlParams"] == {
        "options": f"-csearch_path={dagster_home.SCHEMA}"
    }


def images_of(value: Any) -> Iterator[dict[str, str]]:
    for each in _mappings(value):
        if "repository" in each:
            yield each


def values_of(value: Any, key: str) -> Iterator[str]:
    for each in _mappings(value):
        if key in each:
            yield each[key]["name"]


def snake(value: Any) -> Any:
    """Return the chart's keys as `dagster.yaml` has them."""
    if isinstance(value, list):
        return [snake(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        "".join(f"_{c.lower()}" if c.isupper() else c for c in key): snake(each)
        for key, each in value.items()
    }


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _mappings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _mappings(each)
