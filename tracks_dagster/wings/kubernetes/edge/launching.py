"""Gangs on a cluster, as the core asks for them: the functions of `wiring.Launching`.

The cluster's client is imported where a function needs it.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracks_dagster.attempts.effects.sweeping import sweep
from tracks_dagster.attempts.findings import Finding
from tracks_dagster.attempts.orphans import StandingGangs
from tracks_dagster.attempts.ports import GangLauncher, GangSpec
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.settings import Settings, find_file, find_policy_file
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.effects.settings_file import open_settings
from tracks_dagster.track.errors import InvalidInput, SettingsError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.redact import Redact
from tracks_dagster.wings.kubernetes.effects.cluster_file import read_cluster
from tracks_dagster.wings.kubernetes.effects.cluster_upkeep import keep_taints
from tracks_dagster.wings.kubernetes.settings import KUBERNETES, ClusterSettings, why_unreachable
from tracks_dagster.wings.kubernetes.upkeep import NodeTaints
from tracks_dagster.wiring import App, programs_of, utc_now

if TYPE_CHECKING:
    from tracks_dagster.home.dagster_home import DagsterHome

VARIABLE = "TRACKS_KUBERNETES"


def find_cluster_file(settings: Settings) -> Path | None:
    """Return the file with how gangs run on Kubernetes, or None when there is none."""
    return find_file(settings, VARIABLE)


def load_cluster(settings: Settings) -> ClusterSettings:
    """Return how gangs run on Kubernetes.

    Raises SettingsError naming every error of the file with its line, or where one would lie.
    """
    path = find_cluster_file(settings)
    if path is None:
        raise SettingsError(
            "There are no settings for gangs on Kubernetes; write at least `image: …` to "
            f"{settings.home / 'kubernetes.yaml'}, or name another file in {VARIABLE}."
        )
    return read_cluster(open_settings(path, "The cluster's settings"))


def open_launcher(settings: Settings, store: ObjectStore, clean: Redact) -> GangLauncher:
    """Return the launcher, connected; raises SettingsError or GangError."""
    from tracks_dagster.wings.kubernetes.effects.client import connect
    from tracks_dagster.wings.kubernetes.effects.launcher import KubernetesLauncher

    cluster = load_cluster(settings)
    launcher = KubernetesLauncher(connect(cluster), cluster, store, now=utc_now, clean=clean)
    atexit.register(launcher.close)  # what was seen last has to reach the store
    return launcher


def check_gang(settings: Settings, spec: GangSpec) -> None:
    """Raise InvalidInput for a gang that could not be started, as far as settings show.

    A kubeconfig that is not there, a store that pods do not reach, a request that makes no manifest:
    the run is refused when it is declared, not by its first attempt. The cluster is not asked.
    """
    from tracks_dagster.wings.kubernetes.effects.client import connect
    from tracks_dagster.wings.kubernetes.manifests import gang_objects

    cluster = load_cluster(settings)
    connect(cluster).close()
    problems = [why_unreachable(spec.store_url, cluster)]
    try:
        gang_objects(spec, cluster)
    except InvalidInput as error:
        problems.append(str(error))
    if found := [problem for problem in problems if problem is not None]:
        raise InvalidInput("\n".join(found))


def drain_grace_s(settings: Settings) -> float:
    """Return how long a gang gets to finish a step and save."""
    return load_cluster(settings).termination_grace_s


def software(settings: Settings, compute: ComputeRequest) -> Mapping[str, Json]:
    """Return the image of gangs, which has their software; {} without settings, which `check_gang`
    asks for."""
    try:
        return {"image": load_cluster(settings).image}
    except SettingsError:
        return {}


def findings(settings: Settings) -> Sequence[Finding]:
    """Return what gangs need and the cluster lacks; raises SettingsError."""
    from tracks_dagster.wings.kubernetes.edge.findings import cluster_findings

    return cluster_findings(settings, load_cluster(settings))


def upkeep(app: App) -> Tick[None]:
    """End what outlived its attempt, and keep the taints of nodes; raises as the launcher is opened."""
    launcher = app.launcher_of(KUBERNETES)
    if not isinstance(launcher, StandingGangs):
        return Tick(is_done=False)
    swept = sweep(app.tracks, app.ledger, launcher)
    if isinstance(launcher, NodeTaints):
        tainted = keep_taints(app.tracks, app.ledger, launcher)
        swept = replace(swept, problems=(*swept.problems, *tainted))
    return swept


def open_home(settings: Settings) -> DagsterHome:
    """Return the home of Dagster with run workers that are pods; their settings are put into the
    cluster.

    Raises SettingsError with all that pods cannot use, GangError when the cluster refuses.
    """
    from tracks_dagster.wings.kubernetes.edge import cluster_home

    cluster = load_cluster(settings)
    files = {
        "kubernetes.yaml": find_cluster_file(settings),
        "policy.yaml": find_policy_file(settings),
        "rules": settings.rules_file,
    }
    return cluster_home.open_cluster_home(
        settings.home / "dagster",
        cluster,
        root=settings.root,
        environment=settings.environment,
        store_url=settings.store_url,
        postgres_url=settings.postgres_url,
        files={key: path for key, path in files.items() if path is not None},
        programs=programs_of(settings),
    )
