"""`tracks doctor --kubernetes` against the double: what it finds, what it may not see, what it asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kubernetes import client

from tests.wings.kubernetes.double.furniture import NAMESPACE
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tracks_dagster.cli import main
from tracks_dagster.wings.kubernetes.effects.client import connect
from tracks_dagster.wings.kubernetes.effects.cluster_reader import read_facts
from tracks_dagster.wings.kubernetes.needs import SETTINGS_OF_PODS, ObjectRef, permissions
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

QUEUE = "localqueues.kueue.x-k8s.io team-a"


@pytest.fixture
def settings(kube: KubeDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cluster's settings, with a store that pods see."""
    store = tmp_path / "store"
    store.mkdir()
    path = tmp_path / "kubernetes.yaml"
    path.write_text(
        f"image: train:1\nnamespace: {NAMESPACE}\nkubeconfig: {kube.kubeconfig}\n"
        f"volumes: [{{name: store, hostPath: {{path: {store}}}}}]\n"
        f"volume_mounts: [{{name: store, mountPath: {store}}}]\n"
    )
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRACKS_STORE", str(store))
    monkeypatch.setenv("TRACKS_KUBERNETES", str(path))
    for variable in ("TRACKS_POSTGRES_URL", "TRACKS_POLICY", "TRACKS_RULES"):
        monkeypatch.delenv(variable, raising=False)
    return path


def doctor(*options: str) -> Result:
    wide = {"COLUMNS": "1000"}  # so that no cell is broken within a word that a test looks for
    result = CliRunner().invoke(main, ["doctor", *options], env=wide)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def findings() -> dict[str, Any]:
    found = json.loads(doctor("--kubernetes", "--json").stdout)["findings"]
    return {each["check"]: each for each in found}


def test_a_cluster_that_has_all_is_ready(settings: Path, tmp_path: Path) -> None:
    result = doctor("--kubernetes")
    assert result.exit_code == 0, result.output
    assert "missing" not in result.stdout
    assert "v1.34.9" in result.stdout
    assert str(settings) in result.stdout
    answer = json.loads(doctor("--kubernetes", "--json").stdout)
    assert answer["is_ready"] is True
    assert not (tmp_path / "home").exists()


def test_a_denied_verb_is_reported_and_makes_the_answer_bad_news(
    kube: KubeDouble, settings: Path
) -> None:
    kube.deny("create", "jobs.batch")
    kube.deny("get", "pods/log")
    result = doctor("--kubernetes")
    assert result.exit_code == 1
    assert "2 missing" in result.stdout
    found = findings()
    account = "system:serviceaccount:tracks:tests"
    assert found["may use jobs.batch"]["words"].startswith(
        f"{account} may not create. Add to a Role"
    )
    assert 'resources: ["pods/log"], verbs: ["get"]' in found["may use pods/log"]["words"]
    assert found["may use services"]["health"] == "ok"
    assert account in found["connection"]["words"]


def test_a_secret_is_looked_for_and_its_value_never_shown(kube: KubeDouble, settings: Path) -> None:
    with settings.open("a") as file:
        file.write("environment_from: [{secretRef: {name: s3}}]\nservice_account: gangs\n")
    assert findings()["secrets s3"]["health"] == "missing"
    with kube.client() as connection:
        body = {"metadata": {"name": "s3"}, "data": {"key": "aHVzaC1odXNo"}}
        client.CoreV1Api(connection).create_namespaced_secret(NAMESPACE, body)
    assert findings()["secrets s3"]["health"] == "ok"
    assert "aHVz" not in doctor("--kubernetes").output
    kube.deny("get", "secrets")
    assert findings()["secrets s3"]["health"] == "unknown"
    assert findings()["serviceaccounts gangs"]["health"] == "missing"


def test_only_the_metadata_of_an_object_is_asked_for(
    kube: KubeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ClusterSettings(
        image="train:1",
        namespace=NAMESPACE,
        kubeconfig=str(kube.kubeconfig),
        image_pull_secrets=("registry",),
    )
    accepted: dict[str, str] = {}
    request = client.ApiClient.request

    def seen(self: client.ApiClient, method: str, url: str, **options: Any) -> Any:
        accepted[url.rpartition("/")[2]] = options["headers"]["Accept"]
        return request(self, method, url, **options)

    monkeypatch.setattr(client.ApiClient, "request", seen)
    with connect(cluster) as connection:
        facts = read_facts(connection, cluster)
    assert facts.found == {ObjectRef(resource="secrets", name="registry"): False}
    assert accepted["registry"].startswith("application/json;as=PartialObjectMetadata")


def test_nothing_is_written_to_the_cluster(kube: KubeDouble, settings: Path) -> None:
    doctor("--kubernetes")
    verbs = {verb for verb, resource in kube.requests if "reviews" not in resource}
    assert verbs <= {"get", "list"}
    asked = kube.requests["create", "selfsubjectaccessreviews.authorization.k8s.io"]
    needs = (*permissions(ClusterSettings(image="a")), SETTINGS_OF_PODS)
    assert asked == sum(len(each.verbs) for each in needs)


def test_devices_are_counted_on_nodes_that_are_ready_and_have_the_labels(
    kube: KubeDouble, settings: Path
) -> None:
    with settings.open("a") as file:
        file.write(
            "device_classes:\n  any: {}\n  a100: {node_selector: {gpu: a100}}\n"
            "  tpu: {resource: google.com/tpu}\n"
        )
    found = findings()
    assert found["device class any"]["words"] == "2 nodes ready, up to 8 nvidia.com/gpu each."
    assert found["device class a100"]["health"] == "missing"
    assert found["device class tpu"]["health"] == "missing"
    kube.add_node("node3", allocatable={"nvidia.com/gpu": "4"}, gpu="a100")
    assert findings()["device class a100"]["words"].startswith("1 node ready, up to 4")


def test_groups_of_custom_resources_are_looked_for_where_the_settings_use_them(
    kube: KubeDouble, settings: Path
) -> None:
    with settings.open("a") as file:
        file.write("queue: team-a\njob_kind: JobSet\n")
    found = findings()
    assert (found["JobSet"]["health"], found["Kueue"]["health"]) == ("missing", "missing")
    kube.install_jobset()
    kube.install_kueue()
    found = findings()
    assert (found["JobSet"]["health"], found["Kueue"]["health"]) == ("ok", "ok")
    assert found[QUEUE]["health"] == "missing"
    with kube.client() as connection:
        client.CustomObjectsApi(connection).create_namespaced_custom_object(
            "kueue.x-k8s.io",
            "v1beta1",
            NAMESPACE,
            "localqueues",
            {
                "apiVersion": "kueue.x-k8s.io/v1beta1",
                "kind": "LocalQueue",
                "metadata": {"name": "team-a"},
                "spec": {"clusterQueue": "all"},
            },
        )
    found = findings()
    assert (found[QUEUE]["health"], found["quota of queue team-a"]["health"]) == ("ok", "missing")
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": 16}]
    used = [{"name": "nvidia.com/gpu", "total": "8", "borrowed": "0"}]
    kube.objects.create(
        "clusterqueues.kueue.x-k8s.io",
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "ClusterQueue",
            "metadata": {"name": "all"},
            "spec": {"resourceGroups": [{"flavors": [{"name": "h200", "resources": resources}]}]},
            "status": {"flavorsUsage": [{"name": "h200", "resources": used}]},
        },
    )
    words = "ClusterQueue all: nvidia.com/gpu 8 of 16 (h200) in use."
    assert findings()["quota of queue team-a"]["words"] == words


def test_a_store_of_this_machine_that_no_volume_mounts_is_missing(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKS_STORE", str(tmp_path / "elsewhere"))
    result = doctor("--kubernetes")
    assert result.exit_code == 1
    assert "no volume mounts into the pods" in result.stdout
    assert not (tmp_path / "elsewhere").exists()


def test_a_namespace_that_is_not_there_is_missing(settings: Path) -> None:
    settings.write_text(settings.read_text().replace(f"namespace: {NAMESPACE}", "namespace: none"))
    assert findings()["namespace"]["health"] == "missing"


def test_a_cluster_that_cannot_be_asked_is_explained(kube: KubeDouble, settings: Path) -> None:
    kube.close()
    found = findings()
    assert found["connection"]["health"] == "missing"
    assert "cannot be reached" in found["connection"]["words"]
    assert doctor("--kubernetes").exit_code == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("imagee: train:1\n", "did you mean image?"),
        ("image: train:1\nkubeconfig: /no/such/file\n", "no kubeconfig /no/such/file"),
    ],
)
def test_settings_that_cannot_be_used_are_wrong_use(settings: Path, text: str, words: str) -> None:
    settings.write_text(text)
    result = doctor("--kubernetes")
    assert result.exit_code == 2
    assert words in result.stderr


def test_this_machine_is_described_and_its_load_is_nothing_missing(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.unlink()
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.getloadavg", lambda: (9.5, 1.0, 1.0))
    monkeypatch.setenv("TRACKS_DEVICES", "cpu:2")
    result = doctor()
    assert result.exit_code == 0
    assert "8 cores, load 9.5; runs are slow while more than 8 processes want them" in result.stdout
    assert "with 4 threads" in result.stdout
    assert "GiB of memory" in result.stdout
    assert "torch" in result.stdout


def test_without_a_cluster_only_the_store_is_checked(
    kube: KubeDouble, settings: Path, tmp_path: Path
) -> None:
    settings.unlink()
    result = doctor()
    assert result.exit_code == 0
    assert "honours conditional writes" in result.stdout
    assert not kube.requests
    made = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert made == []  # a folder that is not a store does not become one
