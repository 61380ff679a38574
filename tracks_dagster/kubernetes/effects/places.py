"""Where a gang was started, so that nobody looks elsewhere and takes it for gone.

The settings' namespace, or the current context of a kubeconfig, may change while gangs run. A cluster
has no name of its own: its API server has several addresses, one from inside and one from outside. So
another address is a doubt only where no Job is found, and nobody saw the gang end.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.kubernetes.effects.gang_files import GangFiles, Started
from tracks_dagster.kubernetes.effects.pod_evidence import read_evidence
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.ports import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process looks. server: the address of the API server."""

    namespace: str
    server: str

    def check(self, key: str, started: Started | None) -> None:
        """Raise GangError when the gang was started in another namespace."""
        if started is None or started.namespace in ("", self.namespace):
            return
        raise GangError(
            f"Cannot look at the gang of {key}: it was started in namespace {started.namespace}, and "
            f"the settings say {self.namespace} now. Name that one until it has ended."
        )

    def check_absent(
        self, key: str, started: Started | None, files: GangFiles, store: ObjectStore
    ) -> None:
        """Raise GangError when the gang, of which nothing is found, may live on another cluster."""
        if started is None or started.server in ("", self.server) or _ended(files, store):
            return
        if files.started() is None:  # a person has taken the mark away since
            return
        raise GangError(
            f"Cannot tell how {key} stands: its gang was started through the API server "
            f"{started.server}; {self.server} has no Job of it, and nobody saw it end. If that is "
            "another cluster, name the right one (`context` in kubernetes.yaml). If somebody deleted "
            f"the Job, delete {files.started_key} from the store: the attempt is then closed."
        )


def _ended(files: GangFiles, store: ObjectStore) -> bool:
    """Whether anybody saw a part of the gang end, or a pod told of it."""
    seen = read_evidence(store, files.prefix)
    if any(pod.is_over for pod in seen.pods) or any(job.gone_at for job in seen.jobs):
        return True
    uids = files.pods()
    files.read((), uids, at_once=True)
    return bool(files.ends)
