"""`tracks up --kubernetes`: what it puts into the cluster, and the run workers that come of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from dagster import DagsterInstance, DagsterRunStatus, reconstructable
from dagster._core.instance.ref import InstanceRef

from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.gangs import until
from tests.wings.kubernetes.double.kube_double import KubeDouble, kube_double
from tests.wings.kubernetes.double.run_workers import TAGS, image_env, launch, reread
from tests.wings.kubernetes.double.worker_jobs import waiting_job
from tracks_dagster import run_worker
from tracks_dagster.cli.start import up
from tracks_dagster.home.dagster_home import POSTGRES_VARIABLE
from tracks_dagster.processes.process import Process
from tracks_dagster.track.errors import GangError, OrchestratorError, SettingsError
from tracks_dagster.wings.kubernetes.edge.cluster_home import POSTGRES_SECRET, open_cluster_home
from tracks_dagster.wings.kubernetes.edge.run_launcher import RUN_WORKER, TrackedK8sRunLauncher
from tracks_dagster.wings.kubernetes.edge.run_worker_ends import job_name
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

POSTGRES = "postgresql+psycopg2://tracks:hunter22@db.example/tracks"
IMAGE = "registry.example/tracks:1"


@pytest.fixture
def kube(tmp_path: Path) -> Any:
    with kube_double(tmp_path / "kube", pretend=True) as double:
        yield double


def cluster_of(kube: KubeDouble, **more: Any) -> ClusterSettings:
    """Return settings as a person would give them for the double."""
    given: dict[str, Any] = {
        "image": IMAGE,
        "namespace": NAMESPACE,
        "kubeconfig": str(kube.kubeconfig),
        "python": "/opt/venv/bin/python",
        "environment_from": ({"secretRef": {"name": "object-store"}},),
        "run_worker": {
            "service_account_name": "tracks-supervisor",
            "env_secrets": ["tracks-postgres-url"],
        },
    }
    return ClusterSettings(**{**given, **more})


def open_home(
    kube: KubeDouble, folder: Path, cluster: ClusterSettings, postgres_url: str = POSTGRES
) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(
        {"image": cluster.image, "namespace": NAMESPACE, "kubeconfig": cluster.kubeconfig}
    )
    (folder / "kubernetes.yaml").write_text(text)
    return open_cluster_home(
        folder / "dagster",
        cluster,
        root=folder,
        environment={},
        store_url="s3://bucket",
        postgres_url=postgres_url,
        files={"kubernetes.yaml": folder / "kubernetes.yaml"},
    )


def config_maps(kube: KubeDouble) -> list[Any]:
    found, _ = kube.objects.all("configmaps")
    return [each for each in found if each["metadata"]["name"].startswith("tracks-settings-")]


def test_the_settings_of_the_pods_are_put_once_and_replaced(
    kube: KubeDouble, tmp_path: Path
) -> None:
    open_home(kube, tmp_path / "home", cluster_of(kube))
    open_home(kube, tmp_path / "home", cluster_of(kube, image="registry.example/tracks:2"))
    (made,) = config_maps(kube)
    assert yaml.safe_load(made["data"]["kubernetes.yaml"]) == {
        "image": "registry.example/tracks:2",
        "namespace": NAMESPACE,
    }
    assert set(made["data"]) == {"kubernetes.yaml", "dagster.yaml"}
    assert "hunter22" not in json.dumps(made)
    assert str(kube.kubeconfig) not in json.dumps(made)


def test_an_account_that_may_not_put_them_learns_which_right_is_missing(
    kube: KubeDouble, tmp_path: Path
) -> None:
    kube.deny("create", "configmaps")
    with pytest.raises(GangError, match="may not create configmaps"):
        open_home(kube, tmp_path / "home", cluster_of(kube))


def launched(kube: KubeDouble, tmp_path: Path, cluster: ClusterSettings) -> Any:
    """Launch a run by the `dagster.yaml` of the daemon outside; return its Job."""
    home = open_home(kube, tmp_path / "home", cluster)
    config = yaml.safe_load(home._config)
    del config["storage"]  # SQLite stands in for Postgres here
    folder = tmp_path / "instance"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(yaml.safe_dump(config))
    with DagsterInstance.from_ref(InstanceRef.from_dir(str(folder))) as instance:
        origin = reconstructable(waiting_job).get_python_origin()
        run = instance.create_run_for_job(waiting_job, tags=TAGS, job_code_origin=origin)
        instance.launch_run(run.run_id, cast(Any, None))
        assert isinstance(instance.run_launcher, TrackedK8sRunLauncher)
    return kube.objects.get("jobs.batch", NAMESPACE, job_name(run))


def test_a_run_worker_has_the_images_python_its_settings_and_secrets_by_reference(
    kube: KubeDouble, tmp_path: Path
) -> None:
    job = launched(kube, tmp_path, cluster_of(kube))
    spec = job["spec"]["template"]["spec"]
    container = spec["containers"][0]
    assert container["image"] == IMAGE
    assert container["args"][:5] == [
        "/opt/venv/bin/python",
        "-m",
        RUN_WORKER,
        "api",
        "execute_run",
    ]
    assert json.loads(container["args"][5])["instance_ref"] is None
    sources = [each["secretRef"]["name"] for each in container["envFrom"]]
    assert sorted(sources) == ["object-store", "tracks-postgres-url"]
    assert spec["serviceAccountName"] == "tracks-supervisor"
    assert spec["terminationGracePeriodSeconds"] == 180
    assert spec["restartPolicy"] == "Never"
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert values["TRACKS_STORE"] == "s3://bucket"
    assert values["TRACKS_KUBERNETES"] == "/etc/tracks/kubernetes.yaml"
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert set(mounts) == {"/etc/tracks", "/tracks"}
    assert values["DAGSTER_HOME"] == "/etc/tracks"
    assert POSTGRES_VARIABLE not in values
    assert "hunter22" not in json.dumps(job)


@pytest.mark.parametrize("version", ["1.32", "1.34", kubernetes_validate.latest_version()])
def test_what_is_put_into_the_cluster_is_valid_for_its_version(
    kube: KubeDouble, tmp_path: Path, version: str
) -> None:
    launched(kube, tmp_path, cluster_of(kube))
    sent = [each for each in kube.received if each["kind"] in ("Job", "ConfigMap")]
    assert {each["kind"] for each in sent} == {"Job", "ConfigMap"}
    for manifest in sent:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_run_worker_in_a_pod_joins_the_instance_of_the_daemon_outside(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kube_double(tmp_path / "kube", image_env=image_env(tmp_path)) as kube:
        secret = {"metadata": {"name": "tracks-postgres-url", "namespace": NAMESPACE}}
        kube.objects.create("secrets", {**secret, "stringData": {POSTGRES_SECRET: postgres_url}})
        kube.objects.create(
            "secrets", {"metadata": {"name": "object-store", "namespace": NAMESPACE}}
        )
        cluster = cluster_of(kube, python=sys.executable)
        home = open_home(kube, tmp_path / "home", cluster, postgres_url=postgres_url)
        home.prepare()
        monkeypatch.setenv(POSTGRES_VARIABLE, home.environment[POSTGRES_VARIABLE])
        folder = str(tmp_path / "home" / "dagster")
        with DagsterInstance.from_ref(InstanceRef.from_dir(folder)) as instance:
            run = launch(instance)
            (tmp_path / "may-end").touch()
            until(lambda: reread(instance, run).is_finished, "the run has ended")
            assert reread(instance, run).status is DagsterRunStatus.SUCCESS


def test_a_local_daemons_config_is_not_replaced_under_it(
    kube: KubeDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = open_home(kube, tmp_path / "home", cluster_of(kube))
    folder = tmp_path / "home" / "dagster"
    folder.mkdir()
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    daemon = Process(pid=4711, started=0.0, boot_id="b")
    monkeypatch.setattr(type(home), "find_daemon", lambda self: daemon)
    users = tmp_path / "home" / "dagster" / "daemon.users"
    held = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_SH)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{held}; print(1, flush=True); sys.stdin.read()", str(users)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as user:
        assert user.stdout is not None
        user.stdout.readline()
        with pytest.raises(OrchestratorError) as refused:
            home.prepare()
        user.communicate()
    assert "(pid 4711)" in str(refused.value)
    if sys.platform == "linux":
        assert f"It is used by pid {user.pid} (-c import fcntl" in str(refused.value)


def test_up_on_a_cluster_refuses_what_pods_cannot_reach(
    kube: KubeDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "kubernetes.yaml").write_text(f"image: x\nkubeconfig: {kube.kubeconfig}\n")
    monkeypatch.setenv("TRACKS_HOME", str(home))
    for name in ("TRACKS_STORE", "TRACKS_POSTGRES_URL", "TRACKS_KUBERNETES"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError) as refused:
        CliRunner().invoke(up.up_command, ["--kubernetes"], catch_exceptions=False)
    assert f"The store {home / 'store'} is a folder of this machine" in str(refused.value)
    assert "set TRACKS_POSTGRES_URL=" in str(refused.value)
    assert "env_secrets" in str(refused.value)
    assert not config_maps(kube)


def test_up_on_a_cluster_without_its_settings_says_where_they_would_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRACKS_KUBERNETES", raising=False)
    with pytest.raises(SettingsError, match=r"kubernetes\.yaml"):
        CliRunner().invoke(up.up_command, ["--kubernetes"], catch_exceptions=False)


def test_the_command_in_the_pod_finds_dagsters_tables_by_the_secrets_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(run_worker.os, "execve", lambda *given: became.append(given))
    monkeypatch.setattr(run_worker.sys, "argv", ["run_worker", "api", "execute_run", "{}"])
    monkeypatch.setenv("TRACKS_POSTGRES_URL", "postgresql://u@db/tracks")
    run_worker.main()
    ((_, command, variables),) = became
    assert command[1:] == ["-m", "dagster", "api", "execute_run", "{}"]
    assert variables[POSTGRES_VARIABLE] == (
        "postgresql+psycopg2://u@db/tracks?options=-csearch_path%3Ddagster"
    )
    monkeypatch.delenv("TRACKS_POSTGRES_URL")
    with pytest.raises(SettingsError, match="env_secrets"):
        run_worker.main()
