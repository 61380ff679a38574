"""Whether a gang could be started on the cluster, as far as settings show; the cluster is not asked.

A kubeconfig that is not there, a store that pods do not reach, a request that makes no manifest.

A run whose Job could not even be written down is refused when it is declared, not by its first attempt.
"""

from __future__ import annotations

from collections.abc import Callable

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.kubernetes.settings import ClusterSettings, why_unreachable
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import KUBERNETES


def gang_check(load: Callable[[], ClusterSettings]) -> Callable[[GangSpec], None]:
    """Return what raises InvalidInput, or SettingsError as `load`, for a gang that cannot be started.

    load: the cluster's settings; called for gangs on Kubernetes only.
    """

    def check(spec: GangSpec) -> None:
        if spec.compute.launcher != KUBERNETES:
            return
        from tracks_dagster.kubernetes.effects.client import connect
        from tracks_dagster.kubernetes.manifests import gang_objects

        cluster = load()
        connect(cluster).close()
        problems = [why_unreachable(spec.store_url, cluster)]
        try:
            gang_objects(spec, cluster)
        except InvalidInput as error:
            problems.append(str(error))
        if found := [problem for problem in problems if problem is not None]:
            raise InvalidInput("\n".join(found))

    return check
