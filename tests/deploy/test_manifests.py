"""What is deployed beside Dagster's chart: valid on each Kubernetes, least privilege, no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tracks_dagster.home.admission import Visitors, check_listening
from tracks_dagster.track.effects.settings_file import open_settings
from tracks_dagster.track.names import LABEL_APP, MANAGED_BY
from tracks_dagster.wings.kubernetes.effects.cluster_file import read_cluster
from tracks_dagster.wings.kubernetes.effects.run_worker_watch import RUN_WORKERS
from tracks_dagster.wings.watch.edge.board import board_command

DEPLOY = Path(__file__).parents[2] / "deploy"
NEWEST = ".".join(kubernetes_validate.latest_version().split(".")[:2])
VERSIONS = ("1.32", "1.34", NEWEST)
KUEUE = "kueue.x-k8s.io/"  # no part of Kubernetes, so none of its schemas


def objects(name: str) -> list[dict[str, Any]]:
    text = (DEPLOY / "manifests" / name).read_text(encoding="utf-8")
    return [each for each in yaml.safe_load_all(text) if each]


ALL = [
    pytest.param(each, id=f"{path.stem}-{each['kind']}-{each['metadata']['name']}")
    for path in sorted((DEPLOY / "manifests").glob("*.yaml"))
    for each in objects(path.name)
    if not each["apiVersion"].startswith(KUEUE)
]
assert len(ALL) > 10, "no manifests under deploy/"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", ALL)
def test_every_manifest_is_valid_on_each_version(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_kustomize_names_every_manifest_or_says_when_to() -> None:
    text = (DEPLOY / "kustomization.yaml").read_text(encoding="utf-8")
    paths = list((DEPLOY / "manifests").glob("*.yaml"))
    assert paths
    for path in paths:
        assert f"manifests/{path.name}" in text
    assert "manifests/queues.yaml" not in yaml.safe_load(text)["resources"]  # needs Kueue


def test_the_boards_pod_starts_as_the_command_reads_it_and_its_service_finds_it() -> None:
    deployment, service = objects("board.yaml")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    name, *given = container["command"][1:]
    command = board_command
    assert name == command.name
    parsed = command.make_context(name, given).params
    check_listening(
        parsed["address"], Visitors(hosts=frozenset(parsed["allow_host"]), password="given")
    )
    (port,) = container["ports"]
    assert port["containerPort"] == parsed["port"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    secrets = [each["secretRef"]["name"] for each in container["envFrom"]]
    assert "tracks-board" in secrets
    assert not pod["spec"]["automountServiceAccountToken"]


def test_no_secret_stands_in_what_is_deployed() -> None:
    paths = list(DEPLOY.rglob("*.yaml"))
    assert paths
    for path in paths:
        for each in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            assert each.get("kind") != "Secret"
            assert not list(secret_values(each)), path


def secret_values(value: Any) -> list[str]:
    """Return what stands where a secret would: text under a key that is named like one."""
    if isinstance(value, list):
        return [found for each in value for found in secret_values(each)]
    if not isinstance(value, dict):
        return []
    own = [
        key
        for key, each in value.items()
        if isinstance(each, str) and str(key).lower().endswith(("password", "token", "secret_key"))
    ]
    return own + [found for each in value.values() for found in secret_values(each)]


def test_the_gangs_account_may_do_nothing() -> None:
    accounts = objects("accounts.yaml")
    bound = {
        subject["name"]
        for each in accounts
        if each["kind"].endswith("Binding")
        for subject in each["subjects"]
    }
    (gang,) = [each for each in accounts if each["metadata"]["name"] == "tracks-gang"]
    assert gang["automountServiceAccountToken"] is False
    assert bound == {"tracks-supervisor", "tracks-dagster"}


def test_no_role_takes_in_everything_or_reads_secrets() -> None:
    rules = [rule for each in objects("accounts.yaml") for rule in each.get("rules", [])]
    assert rules
    for rule in rules:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not {"secrets", "pods/exec", "serviceaccounts", "roles"} & {*rule["resources"]}


def test_policy_and_budget_hold_for_the_pods_of_gangs() -> None:
    (policy,) = objects("network.yaml")
    budget, _ = objects("disruption.yaml")
    for selector in (policy["spec"]["podSelector"], budget["spec"]["selector"]):
        assert selector["matchLabels"][LABEL_APP] == MANAGED_BY


def test_no_gang_takes_the_place_of_a_run_worker() -> None:
    values = {each["metadata"]["name"]: each for each in objects("priorities.yaml")}
    workers = values.pop("tracks-supervisor")
    assert workers["value"] > max(each["value"] for each in values.values())
    assert workers["preemptionPolicy"] == "Never"
    _, budget = objects("disruption.yaml")
    labels = budget["spec"]["selector"]["matchLabels"]
    assert ",".join(f"{key}={value}" for key, value in labels.items()).endswith(RUN_WORKERS)


def test_a_gang_reaches_no_address_of_the_cluster_but_gangs_and_names() -> None:
    (policy,) = objects("network.yaml")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    names = [rule for rule in policy["spec"]["egress"] if {53} == ports_of(rule)]
    assert len(names) == 1
    others = [rule for rule in policy["spec"]["egress"] if rule not in names]
    blocks = [to["ipBlock"] for rule in others for to in rule["to"] if "ipBlock" in to]
    assert [block["cidr"] for block in blocks] == ["0.0.0.0/0"]
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"} <= {*blocks[0]["except"]}


def ports_of(rule: dict[str, Any]) -> set[int]:
    return {each["port"] for each in rule.get("ports", ())}


def test_the_settings_that_are_shown_can_be_used() -> None:
    cluster = read_cluster(open_settings(DEPLOY / "kubernetes.yaml", "The file"))
    named = {each["metadata"]["name"] for each in objects("accounts.yaml")}
    assert cluster.service_account in named
    priorities = {each["metadata"]["name"] for each in objects("priorities.yaml")}
    assert cluster.priority_class in priorities
