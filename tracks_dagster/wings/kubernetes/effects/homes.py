"""Whose a gang's object is: homes may share a namespace, and by chance a run's id as well.

Every object is marked with its attempt, and here with its store: by the id in `format.json`, since one
folder has other paths on other machines, and two object stores may call their buckets alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracks_dagster.attempts.effects.gang_files import GangFiles
from tracks_dagster.reasons.kube_json import mapping, mappings, text
from tracks_dagster.stores.checks import FORMAT_KEY
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.names import ENV_STORE
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.wings.kubernetes.effects.kube_requests import Object
from tracks_dagster.wings.kubernetes.effects.pod_evidence import read_evidence
from tracks_dagster.wings.kubernetes.effects.started import Started, read_started, started_key

ANNOTATION_STORE = "tracks/store"


class Home:
    """The home that this process works for. Safe for several threads; may raise StoreUnavailable."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._id: str | None = None  # read at its first use, and never changed

    @property
    def id(self) -> str:
        """The store's own id; its address where it has none."""
        if self._id is None:
            self._id = _id_in(self._store.get(FORMAT_KEY, SMALL_BYTES_MAX)) or self._store.url
        return self._id

    def mark(self, objects: Iterable[Object]) -> None:
        """Mark what is to be created, and whatever its controllers make of it."""
        for each in objects:
            for metadata in _metadata_of(each):
                metadata.setdefault("annotations", {})[ANNOTATION_STORE] = self.id

    def owns(self, found: Object) -> bool:
        """Whether an object is this home's; one without a store's name may be."""
        marked = _mark_of(found)
        if marked:
            return marked == self.id
        return variables_of(found).get(ENV_STORE, self._store.url) == self._store.url

    def address_in(self, found: Object) -> str:
        """Return where an object's pods write, by the name that it has here; empty where it does not
        say."""
        if _mark_of(found) == self.id:
            return self._store.url
        return variables_of(found).get(ENV_STORE, "")


def variables_of(found: Object) -> dict[str, str]:
    """Return the plain variables of a pod, or of the pods of a Job or JobSet."""
    spec = mapping(found.get("spec"))
    for member in mappings(spec.get("replicatedJobs")):
        spec = mapping(mapping(member.get("template")).get("spec"))  # there is one
    pod = mapping(mapping(spec.get("template")).get("spec")) or spec
    return {
        text(entry.get("name")): text(entry["value"])
        for container in mappings(pod.get("containers"))
        for entry in mappings(container.get("env"))
        if "value" in entry
    }


def _metadata_of(made: Object) -> list[Object]:
    """Return the metadata of an object and of all templates in it."""
    found = [made["metadata"]]
    spec = mapping(made.get("spec"))
    below = [spec.get("template"), *(m.get("template") for m in spec.get("replicatedJobs") or ())]
    for template in below:
        if isinstance(template, dict):
            template.setdefault("metadata", {})
            found += _metadata_of(template)
    return found


def _mark_of(found: Object) -> str:
    meta = mapping(found.get("metadata"))
    return text(mapping(meta.get("annotations")).get(ANNOTATION_STORE))


def _id_in(data: bytes | None) -> str:
    try:
        return text(mapping(parse_json(data or b"{}")).get("store_id"))
    except ValueError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process looks. server: the address of the API server.

    Compared with where a gang was started, so that nobody looks elsewhere and takes it for gone: the
    settings' namespace or a kubeconfig's current context may change meanwhile. A cluster has no name of
    its own and its API server has several addresses. So another address is a doubt only where no Job is
    found and nobody saw the gang end.
    """

    namespace: str
    server: str

    def check(self, key: str, started: Started | None) -> None:
        """Raise GangError when the gang was started in another namespace."""
        if started is None or started.namespace in ("", self.namespace):
            return
        raise GangError(
            f"Cannot look at the gang of {key}: it was started in namespace {started.namespace}, and "
            f"the settings name {self.namespace} now. Name that one until it has ended."
        )

    def check_absent(
        self, key: str, started: Started | None, files: GangFiles, store: ObjectStore
    ) -> None:
        """Raise GangError when the gang, of which nothing is found, may live on another cluster."""
        if started is None or started.server in ("", self.server) or _ended(files, store):
            return
        if read_started(store, files.ref) is None:  # a person has taken the mark away since
            return
        raise GangError(
            f"Cannot read the state of {key}: its gang was started through the API server "
            f"{started.server}; {self.server} has no Job of it, and nobody saw it end. If that is "
            "another cluster, name the right one (`context` in kubernetes.yaml). If somebody deleted "
            f"the Job, delete {started_key(files.ref)} from the store: the attempt is then closed."
        )


def _ended(files: GangFiles, store: ObjectStore) -> bool:
    """Whether anybody saw a part of the gang end, or a pod stored it."""
    seen = read_evidence(store, files.ref.folder)
    if any(pod.is_over for pod in seen.pods) or any(job.gone_at for job in seen.jobs):
        return True
    uids = files.pods()
    files.read((), uids, at_once=True)
    return bool(files.ends)
