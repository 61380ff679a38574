"""Watches the pods of all run workers of a namespace, because a pod may be gone within a second.

One thread for the process that launches runs. It keeps what each pod went through, bounded, and tells
every change; between two windows of the watch it calls `between`, for what only time tells. Nothing is
judged here. What was not seen (the process was down) is what events and Jobs still say.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus

from tracks_dagster.kubernetes.effects.api.client import CLIENT_ERRORS
from tracks_dagster.kubernetes.effects.api.run_worker_api import LABEL_DAGSTER_RUN, RunWorkerApi
from tracks_dagster.reasons.kube_json import mapping, text
from tracks_dagster.track.errors import GangError, TracksError
from tracks_dagster.track.records import Json

WINDOW_S = 10  # of one watch; then `between` is called and the watch resumes without a gap
CHANGES_MAX = 50  # kept of one run's pods: the oldest goes
RUNS_MAX = 1000  # whose pods are remembered: the one that changed longest ago goes
BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)  # after an error; the last one is repeated

Seen = Callable[[str, Sequence[Json]], None]  # dagster_run_id, what its pods went through
_log = logging.getLogger(__name__)


class RunWorkerWatch:
    """What was seen of run workers. seen: called at each change of a pod; between: every WINDOW_S.

    Both are called on the watch's thread; what they raise is logged.
    """

    def __init__(self, api: RunWorkerApi, *, seen: Seen, between: Callable[[], None]) -> None:
        self._api, self._seen, self._between = api, seen, between
        self._histories: OrderedDict[str, list[Json]] = OrderedDict()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch, once; returns at once."""
        with self._lock:
            if self._thread is None:
                name = "run-worker-watch"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Let the thread end within a window; it holds nothing that has to be given back."""
        self._over.set()

    def history(self, dagster_run_id: str) -> Sequence[Json]:
        """Return what that run's pods went through, the oldest first; of the newest pod only."""
        with self._lock:
            found = list(self._histories.get(dagster_run_id, ()))
        uid = _uid(found[-1]) if found else None
        return [each for each in found if _uid(each) == uid]

    def _run(self) -> None:
        failures = 0
        version = ""
        while not self._over.is_set():
            try:
                version = self._window(version or self._list())
                failures = 0
            except (*CLIENT_ERRORS, TracksError, ValueError) as error:
                version = ""
                wait_s = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]
                failures += 1
                _log.warning("Cannot watch the run workers; again in %g s: %s", wait_s, error)
                self._over.wait(wait_s)
            if not self._over.is_set():
                self._tell(self._between)

    def _list(self) -> str:
        """Take in the pods as they are; return from where to watch."""
        listed = self._api.pods()
        for pod in listed.pods:
            self._take(pod)
        return listed.version

    def _window(self, version: str) -> str:
        """Watch for a while; return from where to go on, "" to list anew."""
        for event in self._api.changes(version, seconds=WINDOW_S):
            if self._over.is_set():
                break
            changed = mapping(event.get("object"))
            if event.get("type") == "ERROR":
                return _listed_anew(changed)
            version = text(mapping(changed.get("metadata")).get("resourceVersion")) or version
            if event.get("type") != "BOOKMARK":
                self._take(changed)
        return version

    def _take(self, pod: Json) -> None:
        """Remember how a pod is, unless that was known, and tell it."""
        brief = _brief(pod)
        run_id = text(mapping(mapping(brief["metadata"]).get("labels")).get(LABEL_DAGSTER_RUN))
        if not run_id:
            return
        with self._lock:
            known = self._histories.setdefault(run_id, [])
            if known and known[-1] == brief:
                return
            known.append(brief)
            del known[:-CHANGES_MAX]
            self._histories.move_to_end(run_id)
            while len(self._histories) > RUNS_MAX:
                self._histories.popitem(last=False)
        self._tell(partial(self._seen, run_id, self.history(run_id)))

    def _tell(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception:  # noqa: BLE001 - whatever Dagster's storage raises, the watch goes on
            _log.exception(
                "Cannot act on what was seen of the run workers; at the next change again"
            )


def _listed_anew(status: Mapping[str, Json]) -> str:
    """Return that there is no version to go on from; raise what is more than an old one (410)."""
    if status.get("code") != HTTPStatus.GONE:
        raise GangError(f"The API server ends the watch: {text(status.get('message'))}")
    return ""  # what was missed is in the list


def _uid(pod: Json) -> str:
    return text(mapping(mapping(pod).get("metadata")).get("uid"))


def _brief(pod: Json) -> dict[str, Json]:
    """Return the part of a pod that tells how it is: the rest of it is large and never changes."""
    found = mapping(pod)
    meta, spec = mapping(found.get("metadata")), mapping(found.get("spec"))
    kept = ("name", "uid", "labels", "creationTimestamp", "deletionTimestamp")
    return {
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {key: spec[key] for key in ("nodeName", "schedulingGates") if key in spec},
        "status": dict(mapping(found.get("status"))),
    }
