"""Kueue and JobSet, put into a double's cluster as their own installers do."""

from __future__ import annotations

from functools import partial

from tests.kubernetes.double import furniture
from tests.kubernetes.double.api import Api
from tests.kubernetes.double.cluster import Cluster
from tests.kubernetes.double.jobsets import JobSetController
from tests.kubernetes.double.kinds import JOBSET, JOBSETS, KUEUE, Kinds
from tests.kubernetes.double.kueue import Kueue
from tests.kubernetes.double.objects import Objects


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
