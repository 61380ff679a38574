"""How the pods of a gang learn that another one's rank failed, when no collective tells them.

With NCCL a rank whose peer died waits until its time-out, and a pod cannot see another pod end. One
object in the store says it. Without it the devices of all others would stand idle until the grace of
the pods that their Job's controller deletes is over.
"""

from __future__ import annotations

from tracks_dagster.attempts import pod_files
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json
from tracks_dagster.training.pods.pod_environment import PodEnvironment


class GangFailure:
    """is_seen: another pod, or this one, told that the gang has failed."""

    def __init__(self, store: ObjectStore, told: PodEnvironment) -> None:
        self.is_seen = False
        self._store = store
        self._told = told
        self._key = pod_files.failed_key(told.run_id, told.attempt_id)

    def tell(self) -> None:
        """Tell the others. Raises StoreError; idempotent."""
        self._store.put(self._key, canonical_json({"pod": self._told.pod}))

    def look(self) -> None:
        """See whether a pod told. Raises StoreError; the next call looks again."""
        self.is_seen = self.is_seen or self._store.get(self._key) is not None
