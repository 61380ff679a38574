"""Kueue and JobSet, put into a double's cluster as their own installers do."""

from __future__ import annotations

from functools import partial

from tests.wings.kubernetes.double import furniture
from tests.wings.kubernetes.double.api import Api
from tests.wings.kubernetes.double.cluster import Cluster
from tests.wings.kubernetes.double.jobsets import JobSetController
from tests.wings.kubernetes.double.kinds import JOBSET, JOBSETS, KUEUE, Kinds
from tests.wings.kubernetes.double.kueue import Kueue
from tests.wings.kubernetes.double.objects import Objects


def install_kueue(objects: Objects, cluster: Cluster, api: Api) -> Kueue:
    """Install Kueue; what it returns decides who is admitted."""
    kueue = Kueue(objects, cluster.events, furniture.NAMESPACE)
    _install(objects, api, KUEUE)
    api.mutate.append(kueue.mutate)
    for resource in ("jobs.batch", JOBSETS):
        cluster.add_controller(resource, partial(kueue.sync, resource))
    return kueue


def install_jobset(objects: Objects, cluster: Cluster, api: Api) -> None:
    """Install JobSet."""
    jobsets = JobSetController(objects, cluster.events, api.admit)
    _install(objects, api, JOBSET)
    api.mutate.insert(0, jobsets.mutate)
    cluster.add_controller(JOBSETS, jobsets.sync)


def _install(objects: Objects, api: Api, kinds: Kinds) -> None:
    api.kinds |= kinds
    for name, (kind, version, namespaced) in kinds.items():
        found = furniture.definition(name, kind, version, namespaced=namespaced)
        objects.create("customresourcedefinitions.apiextensions.k8s.io", found)
