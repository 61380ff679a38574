"""The connection to a cluster: which credentials it takes, and every error in words that help."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.wings.kubernetes.double.faults import Misbehaviour
from tests.wings.kubernetes.double.furniture import NAMESPACE, TOKEN, kubeconfig
from tests.wings.kubernetes.double.gangs import job
from tests.wings.kubernetes.double.kube_double import KubeDouble
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wings.kubernetes.effects import client as ours
from tracks_dagster.wings.kubernetes.effects.client import CLIENT_ERRORS, connect, explain
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

NOTHING = "raise SystemExit(0)"


@pytest.fixture
def cluster(kube: KubeDouble) -> ClusterSettings:
    """Settings that lead to the double."""
    return ClusterSettings(image="train:1", namespace=NAMESPACE, kubeconfig=str(kube.kubeconfig))


@pytest.fixture
def api(cluster: ClusterSettings) -> Iterator[client.ApiClient]:
    with connect(cluster) as connection:
        yield connection


@pytest.fixture
def nowhere() -> Iterator[int]:
    """A port of this machine on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def settings_at(folder: Path, url: str) -> ClusterSettings:
    path = folder / "elsewhere"
    path.write_text(json.dumps(kubeconfig(url)))
    return ClusterSettings(image="train:1", namespace=NAMESPACE, kubeconfig=str(path))


def refusal(cluster: ClusterSettings, doing: str = "list the pods") -> str:
    """Return the words of the error that listing pods gives."""
    with connect(cluster) as connection, pytest.raises(CLIENT_ERRORS) as raised:
        client.CoreV1Api(connection).list_namespaced_pod(cluster.namespace)
    return str(explain(raised.value, doing, cluster))


def test_a_kubeconfig_leads_to_its_cluster(api: client.ApiClient) -> None:
    assert client.VersionApi(api).get_code().git_version == "v1.34.9"
    assert api.configuration.retries is False


def test_without_a_kubeconfig_the_users_default_is_taken(
    kube: KubeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(ours.config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kube.kubeconfig))
    with connect(ClusterSettings(image="train:1")) as connection:
        assert connection.configuration.host == kube.url


def test_in_a_pod_its_own_account_is_taken_and_a_named_kubeconfig_goes_before(
    kube: KubeDouble, cluster: ClusterSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.config import incluster_config

    for name, text in (("TOKEN", "a-token"), ("CERT", "a certificate")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(tmp_path / name))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(ours, "BoundedClient", lambda settings: settings)  # no such certificate
    found = connect(ClusterSettings(image="train:1"))
    assert (found.host, found.api_key["BearerToken"]) == ("https://10.0.0.1:443", "bearer a-token")
    assert connect(cluster).host == kube.url


def test_a_kubeconfig_that_is_not_there_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "none"
    with pytest.raises(SettingsError, match=f"no kubeconfig {path}"):
        connect(ClusterSettings(image="train:1", kubeconfig=str(path)))


def test_a_context_that_is_not_there_is_reported_with_those_that_are(
    cluster: ClusterSettings,
) -> None:
    wrong = ClusterSettings(image="train:1", kubeconfig=cluster.kubeconfig, context="prod")
    with pytest.raises(SettingsError, match="no context prod; there are: double"):
        connect(wrong)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not one"),
        ("{", "is not one"),
        ("users: [{name: a, user: {token: hush-hush", "is not one"),
        ("[1, 2]", "is not one"),
        ("current-context: x\n", "no context x; there are: none"),
        ("contexts: [{name: a, context: {cluster: c}}]\n", "no current context"),
        (
            "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
            "users: [{name: u, user: {token: hush-hush}}]\nclusters: [{name: d}]\n",
            "is not one",
        ),
    ],
)
def test_a_kubeconfig_that_is_not_one_is_reported_without_what_it_holds(
    text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(SettingsError, match=words) as raised:
        connect(ClusterSettings(image="train:1", kubeconfig=str(path)))
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_a_denied_verb_is_reported_with_resource_account_namespace_and_the_rule_to_add(
    kube: KubeDouble, api: client.ApiClient, cluster: ClusterSettings
) -> None:
    kube.deny("create", "jobs.batch")
    with pytest.raises(CLIENT_ERRORS) as raised:
        client.BatchV1Api(api).create_namespaced_job(NAMESPACE, job("gang", NOTHING))
    words = str(explain(raised.value, "create the Job gang", cluster))
    assert words.startswith(
        "Cannot create the Job gang: account system:serviceaccount:tracks:tests"
    )
    assert "may not create jobs (API group batch) in namespace tracks" in words
    assert '{apiGroups: ["batch"], resources: ["jobs"], verbs: ["create"]} to a Role' in words


def test_a_denied_log_is_reported_although_its_reply_is_a_stream(
    kube: KubeDouble, api: client.ApiClient, cluster: ClusterSettings
) -> None:
    kube.deny("get", "pods/log")
    with pytest.raises(ApiException) as raised:
        client.CoreV1Api(api).read_namespaced_pod_log("p", NAMESPACE, _preload_content=False)
    assert raised.value.status == 403
    assert "may not get pods/log (API group core)" in str(explain(raised.value, "x", cluster))


def test_a_refused_stream_is_reported_by_its_status_where_the_library_stumbles_over_it(
    cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch, kube: KubeDouble
) -> None:
    monkeypatch.delattr(urllib3.response.BaseHTTPResponse, "getheaders", raising=False)
    core = client.CoreV1Api(connect(cluster))
    with pytest.raises(ApiException) as raised:
        core.read_namespaced_pod_log("none", NAMESPACE, _preload_content=False)
    assert raised.value.status == 404
    assert "no pods none in namespace tracks" in str(explain(raised.value, "x", cluster))


def test_what_only_a_cluster_wide_role_gives_is_named_as_such(
    kube: KubeDouble, api: client.ApiClient, cluster: ClusterSettings
) -> None:
    kube.deny("list", "nodes")
    with pytest.raises(CLIENT_ERRORS) as raised:
        client.CoreV1Api(api).list_node()
    words = str(explain(raised.value, "list the nodes", cluster))
    assert "at the cluster's scope" in words
    assert "ClusterRole" in words


def test_a_quota_is_reported_with_its_numbers(
    kube: KubeDouble, api: client.ApiClient, cluster: ClusterSettings
) -> None:
    kube.set_quota("small", {"count/jobs.batch": "0"})
    with pytest.raises(CLIENT_ERRORS) as raised:
        client.BatchV1Api(api).create_namespaced_job(NAMESPACE, job("gang", NOTHING))
    words = str(explain(raised.value, "create the Job gang", cluster))
    assert "exceeds the quota small of namespace tracks" in words
    assert "limited: count/jobs.batch=0" in words


def test_a_namespace_that_is_not_there_is_distinguished_from_an_object(
    api: client.ApiClient, cluster: ClusterSettings
) -> None:
    batch = client.BatchV1Api(api)
    with pytest.raises(CLIENT_ERRORS) as raised:
        batch.create_namespaced_job("none", job("gang", NOTHING))
    assert "there is no namespace none" in str(explain(raised.value, "x", cluster))
    with pytest.raises(CLIENT_ERRORS) as raised:
        batch.read_namespaced_job("gang", NAMESPACE)
    assert "there is no jobs gang in namespace tracks" in str(explain(raised.value, "x", cluster))
    with pytest.raises(CLIENT_ERRORS) as raised:
        client.CustomObjectsApi(api).list_namespaced_custom_object(
            "jobset.x-k8s.io", "v1alpha2", NAMESPACE, "jobsets"
        )
    assert "a CRD is missing" in str(explain(raised.value, "x", cluster))


def test_what_is_there_already_and_what_is_refused_is_reported(
    api: client.ApiClient, cluster: ClusterSettings
) -> None:
    batch = client.BatchV1Api(api)
    batch.create_namespaced_job(NAMESPACE, job("gang", NOTHING))
    with pytest.raises(CLIENT_ERRORS) as raised:
        batch.create_namespaced_job(NAMESPACE, job("gang", NOTHING))
    assert "it is there already" in str(explain(raised.value, "x", cluster))
    with pytest.raises(CLIENT_ERRORS) as raised:
        batch.create_namespaced_job(NAMESPACE, job("x" * 64, NOTHING))
    assert "no more than 63 characters" in str(explain(raised.value, "x", cluster))


def test_credentials_that_are_not_accepted_are_reported(kube: KubeDouble, tmp_path: Path) -> None:
    path = tmp_path / "expired"
    path.write_text(kube.kubeconfig.read_text().replace(f'"token": "{TOKEN}"', '"token": "old"'))
    cluster = ClusterSettings(image="train:1", kubeconfig=str(path))
    words = refusal(cluster)
    assert f"does not accept the credentials of kubeconfig {path}" in words
    assert "Log in again" in words


def test_an_account_without_credentials_is_reported(cluster: ClusterSettings) -> None:
    said = 'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group ""'
    error = ApiException(status=403, reason="Forbidden")
    error.body = json.dumps({"message": said})
    assert "saw no credentials" in str(explain(error, "list the pods", cluster))


def test_a_server_that_nobody_is_at_is_reported(nowhere: int, tmp_path: Path) -> None:
    words = refusal(settings_at(tmp_path, f"http://127.0.0.1:{nowhere}"))
    assert words.startswith("Cannot list the pods: the API server of kubeconfig")
    assert "cannot be reached" in words
    assert "refused" in words


def test_a_server_that_speaks_no_tls_is_reported(kube: KubeDouble, tmp_path: Path) -> None:
    words = refusal(settings_at(tmp_path, kube.url.replace("http://", "https://")))
    assert "cannot be trusted" in words
    assert "SSL" in words


def test_a_wrapped_error_of_the_plain_client_is_reported_as_well(cluster: ClusterSettings) -> None:
    try:
        try:
            raise ApiException(status=0, reason="SSLError\nself-signed certificate")
        except ApiException as error:
            error.body.decode()  # what the library does
    except AttributeError as wrapped:
        words = str(explain(wrapped, "ask", cluster))
    assert "SSLError self-signed certificate" in words


def test_a_server_that_does_not_reply_is_left_after_a_bounded_time(
    kube: KubeDouble, cluster: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "READ_S_MAX", 0.2)
    with kube.misbehaving(Misbehaviour(verb="list", resource="pods", delay_s=5.0)):
        assert "did not reply in time" in refusal(cluster)


def test_a_reply_that_is_lost_is_reported_as_unknown_and_asked_only_once(
    kube: KubeDouble, cluster: ClusterSettings
) -> None:
    with kube.misbehaving(Misbehaviour(verb="list", resource="pods", lose_reply=True)):
        assert "cut the connection" in refusal(cluster)
    assert kube.requests["list", "pods"] == 1


@pytest.mark.parametrize(
    ("status", "words"), [(429, "too much to do"), (500, "in trouble (500"), (503, "(503")]
)
def test_a_server_in_trouble_is_reported_and_asked_only_once(
    status: int, words: str, kube: KubeDouble, cluster: ClusterSettings
) -> None:
    with kube.misbehaving(Misbehaviour(verb="list", resource="pods", status=status)):
        assert words in refusal(cluster)
    assert kube.requests["list", "pods"] == 1


def test_a_request_has_the_callers_own_limit_where_it_names_one(
    api: client.ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(
        client.ApiClient,
        "request",
        lambda self, method, url, **options: asked.append(options["_request_timeout"]),
    )
    api.request("GET", "/x")
    api.request("GET", "/x", _preload_content=False)
    api.request("GET", "/x", _request_timeout=3)
    assert asked == [(10.0, 30.0), (10.0, 600.0), 3]
