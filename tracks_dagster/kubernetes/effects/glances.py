"""Whether the gangs of a namespace live, for any number of them: a look that reads no pods.

A gang that has its Job is answered from the list that all gangs share. One that has none asks the
store once whether it ever had: if so, its Job and pods are asked for once more, since the list may be
seconds old and pods outlive their Job for as long as they save; then it is gone for good.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.kubernetes.effects.api.gang_api import GangApi
from tracks_dagster.kubernetes.effects.gang_files import GangFiles
from tracks_dagster.kubernetes.effects.gang_job import JobBoard, JobState, state_of
from tracks_dagster.kubernetes.effects.homes import Place
from tracks_dagster.kubernetes.objects.pod_lives import life_of, unreachable
from tracks_dagster.kubernetes.settings.cluster import ClusterSettings
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.ports import Clock, ObjectStore

NEVER_S = 10.0  # how old the answer may be that a gang never was
KNOWN_MAX = 8192  # gangs without a Job that are remembered


class Glances:
    """Safe for several threads. Raises GangError, and StoreUnavailable. seconds: a steady clock."""

    def __init__(
        self,
        api: GangApi,
        store: ObjectStore,
        *,
        cluster: ClusterSettings,
        place: Place,
        now: Clock,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._store, self._now, self._seconds = api, store, now, seconds
        self._cluster, self._place = cluster, place
        self._where = f"namespace {cluster.namespace}"
        self._board = JobBoard(api, seconds=seconds)
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int], tuple[GangPhase, float]] = OrderedDict()

    def look(self, run_id: str, attempt_id: int) -> GangReport:
        """Return the phase, up to seconds old."""
        match self._board.look(run_id, attempt_id):
            case JobState.STANDING:
                phase = GangPhase.ALIVE
            case JobState.FINISHED:
                phase = GangPhase.GONE
            case JobState.ABSENT:
                phase = self._without_job(run_id, attempt_id)
        return GangReport(phase=phase, where=self._where, sees_all_nodes=True)

    def forget(self, run_id: str, attempt_id: int) -> None:
        """Look anew: this process has just started or ended that gang."""
        self._board.forget()
        with self._lock:
            self._known.pop((run_id, attempt_id), None)

    def _without_job(self, run_id: str, attempt_id: int) -> GangPhase:
        key, now_s = (run_id, attempt_id), self._seconds()
        with self._lock:
            phase, asked_at_s = self._known.get(key, (GangPhase.ALIVE, 0.0))
        if phase is GangPhase.GONE:
            return phase
        if phase is GangPhase.NEVER_STARTED and now_s - asked_at_s < NEVER_S:
            return phase
        phase = self._ask(run_id, attempt_id)
        with self._lock:
            self._known[key] = (phase, now_s)
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return phase

    def _ask(self, run_id: str, attempt_id: int) -> GangPhase:
        """Return GONE only for what was started, and then has neither a Job nor a pod that lives."""
        files = GangFiles(self._store, run_id, attempt_id)
        if not files.any_evidence():
            return GangPhase.NEVER_STARTED
        key, started = attempt_key(run_id, attempt_id), files.started()
        self._place.check(key, started)
        kind = self._cluster.job_kind if started is None else started.kind
        state = state_of(self._api.job(run_id, attempt_id, kind))
        if state is JobState.STANDING:
            return GangPhase.ALIVE
        grace_s = self._cluster.termination_grace_s
        lives = [life_of(pod, grace_s) for pod in self._api.pods(run_id, attempt_id)]
        left = [pod for pod in lives if not pod.is_over]
        if not lives and state is JobState.ABSENT:
            self._place.check_absent(key, started, files, self._store)
        reachable = any(unreachable(pod, self._now()) is None for pod in left)
        return GangPhase.ALIVE if reachable else GangPhase.GONE
