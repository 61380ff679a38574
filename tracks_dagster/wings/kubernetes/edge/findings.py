"""What gangs need and a cluster lacks, as `tracks doctor --kubernetes` lists it."""

from __future__ import annotations

from tracks_dagster.attempts.findings import Finding, Health
from tracks_dagster.settings import Settings, load_policy
from tracks_dagster.track.errors import GangError, SettingsError
from tracks_dagster.track.ports import local_path
from tracks_dagster.wings.kubernetes.checkup import check_classes, check_cluster
from tracks_dagster.wings.kubernetes.settings import (
    ClusterSettings,
    gives_credentials,
    why_unreachable,
)


def cluster_findings(settings: Settings, cluster: ClusterSettings) -> list[Finding]:
    """Return what was found. Reads no value of a Secret; what this account may not read is unknown."""
    return [_reach(settings, cluster), *_classes(settings, cluster), *_cluster(cluster)]


def _reach(settings: Settings, cluster: ClusterSettings) -> Finding:
    """Say whether pods find the store too; whether their network lets them, only a pod can tell."""
    check = "store, from pods"
    problem = why_unreachable(settings.store_url, cluster)
    if problem is not None:
        return Finding(check=check, health=Health.MISSING, words=problem)
    if local_path(settings.store_url) is not None:
        words = "A volume of the pods is mounted there."
        return Finding(check=check, health=Health.OK, words=words)
    if not gives_credentials(cluster):
        words = (
            "Nothing in the settings gives pods credentials (environment_from, service_account); "
            "fine where their nodes have a role that may."
        )
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    words = "Nothing in the settings speaks against it."
    return Finding(check=check, health=Health.OK, words=words)


def _classes(settings: Settings, cluster: ClusterSettings) -> list[Finding]:
    try:
        found = check_classes(cluster, list(load_policy(settings).scheduling.classes))
    except SettingsError as error:
        return [Finding(check="workload classes", health=Health.MISSING, words=str(error))]
    return [] if found is None else [found]


def _cluster(cluster: ClusterSettings) -> list[Finding]:
    from tracks_dagster.wings.kubernetes.effects.client import connect, where
    from tracks_dagster.wings.kubernetes.effects.cluster_reader import read_facts

    check = "connection"
    try:
        with connect(cluster) as client:
            facts = read_facts(client, cluster)
            at = client.configuration.host
    except GangError as error:
        return [Finding(check=check, health=Health.MISSING, words=str(error))]
    words = f"{at} as {facts.account or 'an account that it does not name'} ({where(cluster)})."
    return [Finding(check=check, health=Health.OK, words=words), *check_cluster(facts, cluster)]
