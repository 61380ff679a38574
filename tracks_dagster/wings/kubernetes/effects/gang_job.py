"""The Job of a gang: whether it is there, and what its start left in the store.

A gang that was started has a mark in the store, which outlives its Job. Where the mark is missing (its
launcher died between the two) the Job itself shows it while it exists, and is marked late. All gangs of
a process share one list of Jobs. `Glances` answers for any number of gangs without reading their pods.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from tracks_dagster.attempts.effects.gang_files import GangFiles
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.reasons.kube_json import mapping, mappings
from tracks_dagster.track import names
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wings.kubernetes.effects.gang_api import GangApi, attempt_of
from tracks_dagster.wings.kubernetes.effects.homes import Place, variables_of
from tracks_dagster.wings.kubernetes.effects.kube_requests import Object
from tracks_dagster.wings.kubernetes.effects.started import Started, put_started, read_started
from tracks_dagster.wings.kubernetes.pod_lives import life_of, unreachable
from tracks_dagster.wings.kubernetes.settings import JOB, ClusterSettings
from tracks_dagster.wings.kubernetes.sightings import JobStory

BOARD_S = 4.0  # how old an answer may be; a sensor ticks every 5 s
_FINAL = frozenset({"Complete", "Completed", "Failed"})  # of a Job, and of a JobSet
JOB_LOOK_S = 5.0  # while no watch shows the Job: it has just begun, or may not see any
NEVER_S = 10.0  # how old the answer may be that a gang never was
KNOWN_MAX = 8192  # gangs without a Job that are remembered


class JobState(Enum):
    """The state of a gang's Job."""

    ABSENT = "there is none"
    STANDING = "it waits, runs, or its pods are still ending"
    FINISHED = "it is complete or has failed, and no pod of it runs"


def state_of(job: Mapping[str, Json] | None) -> JobState:
    """Return the state of a Job or JobSet."""
    if job is None:
        return JobState.ABSENT
    status = mapping(job.get("status"))
    conditions = mappings(status.get("conditions"))
    is_final = any(c.get("type") in _FINAL and c.get("status") == "True" for c in conditions)
    # Before 1.31 a Job was final while its pods were still ending.
    if not is_final or status.get("active") or status.get("terminating"):
        return JobState.STANDING
    return JobState.FINISHED


class JobBoard:
    """Answers from the last list of Jobs. seconds: a steady clock."""

    def __init__(self, api: GangApi, *, seconds: Callable[[], float] = time.monotonic) -> None:
        self._api, self._seconds = api, seconds
        self._lock = threading.Lock()  # who waits for it wants the same list
        self._states: dict[str, JobState] = {}
        self._read_at_s: float | None = None
        self._failure: tuple[GangError, float] | None = None  # and when it was met

    def look(self, ref: AttemptRef) -> JobState:
        """Return the state of the gang's Job, at most `BOARD_S` old.

        Raises GangError; so long after it the same one at once: of many gangs only one waits for a
        server that cannot be reached.
        """
        with self._lock:
            if self._read_at_s is None or self._seconds() - self._read_at_s > BOARD_S:
                self._read()
            return self._states.get(ref.key, JobState.ABSENT)

    def forget(self) -> None:
        """List again at the next look: this process has just started or ended a gang."""
        with self._lock:
            self._read_at_s = None
            self._failure = None

    def _read(self) -> None:
        began_s = self._seconds()
        if self._failure is not None and began_s - self._failure[1] <= BOARD_S:
            raise GangError(str(self._failure[0])) from self._failure[0]
        try:
            self._states = _states(self._api.jobs())
        except GangError as error:
            self._failure = (error, self._seconds())
            raise
        self._read_at_s, self._failure = began_s, None


def _states(jobs: list[Object]) -> dict[str, JobState]:
    return {attempt_of(job): state_of(job) for job in jobs}


class GangJob:
    """Not safe for several threads. configured: the kind that the settings name.

    All may raise GangError, also when the gang may live where this process does not look.
    """

    def __init__(
        self,
        api: GangApi,
        files: GangFiles,
        store: ObjectStore,
        place: Place,
        ref: AttemptRef,
        *,
        configured: str,
        now: Clock,
        seconds: Callable[[], float],
    ) -> None:
        self._api, self._files, self._store, self._place = api, files, store, place
        self._ref, self._configured = ref, configured
        self._now, self._seconds = now, seconds
        self._started: Started | None = None
        self._known: tuple[JobState, float] | None = None  # and when it was asked for

    @property
    def started(self) -> Started | None:
        """What the start left; None where there was none, or nobody has marked it yet."""
        if self._started is None:
            started = read_started(self._store, self._ref)
            self._place.check(self._ref.key, started)
            self._started = started
        return self._started

    @property
    def kind(self) -> str:
        """What holds the pods, a Job or a JobSet: as it was started, whatever the settings are now."""
        return self._configured if self.started is None else self.started.kind

    def state(self, watched: Sequence[JobStory], *, is_ended: bool = False) -> JobState:
        """Return the Job's state: by the watch, else at most JOB_LOOK_S old.

        is_ended: this process has just ended it.

        That there is none is never an old answer: it is asked for after the mark was read, so a gang
        that another process started meanwhile does not look gone. Raises GangError.
        """
        if watched and watched[-1].gone_at is None:
            return JobState.FINISHED if watched[-1].is_finished else JobState.STANDING
        if watched and self.kind == JOB:
            return JobState.ABSENT
        now_s = self._seconds()
        if self._known is not None and now_s - self._known[1] < JOB_LOOK_S:
            return self._known[0]
        _ = self.started
        job = self._found(is_ended=is_ended)
        state = state_of(job)
        self._known = None if job is None else (state, now_s)
        if job is not None and self._started is None:
            self.mark(job)
        return state

    def check_place(self) -> None:
        """Raise GangError when the gang may live where this process does not look."""
        if self.started is not None and self.started.server != self._place.server:
            self._found(is_ended=False)

    def mark(self, job: Object) -> None:
        """Store that this gang was started, and how; once, by the one who comes first."""
        variables = variables_of(job)
        started = Started(
            kind=str(job.get("kind") or self._configured),
            nodes=int(variables.get(names.ENV_NODES, "1")),
            ranks_per_node=int(variables.get(names.ENV_RANKS_PER_NODE, "1")),
            at=format_time(self._now()),
            namespace=self._place.namespace,
            server=self._place.server,
        )
        put_started(self._store, self._ref, started)
        self._started = started

    def forget(self) -> None:
        """Ask for the Job at the next look: this process has just made or ended it."""
        self._known = None

    def _found(self, *, is_ended: bool) -> Object | None:
        job = self._api.job(self._ref, self.kind)
        if job is None and not is_ended:
            key = self._ref.key
            self._place.check_absent(key, self.started, self._files, self._store)
        return job


class Glances:
    """Whether the gangs of a namespace live, for any number of them, without reading their pods.

    A gang with a Job is answered from the list that all gangs share. For one without, the store is
    asked once whether it ever had one. If so, its Job and pods are listed once more, since the list
    may be seconds old and pods outlive their Job while they save; then the gang is gone for good.
    Safe for several threads. Raises GangError, and StoreUnavailable. seconds: a steady clock.
    """

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
        self._known: OrderedDict[AttemptRef, tuple[GangPhase, float]] = OrderedDict()

    def look(self, ref: AttemptRef) -> GangReport:
        """Return the phase, up to seconds old."""
        match self._board.look(ref):
            case JobState.STANDING:
                phase = GangPhase.ALIVE
            case JobState.FINISHED:
                phase = GangPhase.GONE
            case JobState.ABSENT:
                phase = self._without_job(ref)
        return GangReport(phase=phase, where=self._where, sees_all_nodes=True)

    def forget(self, ref: AttemptRef) -> None:
        """Look again: this process has just started or ended that gang."""
        self._board.forget()
        with self._lock:
            self._known.pop(ref, None)

    def _without_job(self, ref: AttemptRef) -> GangPhase:
        now_s = self._seconds()
        with self._lock:
            phase, asked_at_s = self._known.get(ref, (GangPhase.ALIVE, 0.0))
        if phase is GangPhase.GONE:
            return phase
        if phase is GangPhase.NEVER_STARTED and now_s - asked_at_s < NEVER_S:
            return phase
        phase = self._ask(ref)
        with self._lock:
            self._known[ref] = (phase, now_s)
            while len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return phase

    def _ask(self, ref: AttemptRef) -> GangPhase:
        """Return GONE only for what was started, and then has neither a Job nor a pod that lives."""
        files = GangFiles(self._store, ref)
        if not files.any_evidence():
            return GangPhase.NEVER_STARTED
        key, started = ref.key, read_started(self._store, ref)
        self._place.check(key, started)
        kind = self._cluster.job_kind if started is None else started.kind
        state = state_of(self._api.job(ref, kind))
        if state is JobState.STANDING:
            return GangPhase.ALIVE
        grace_s = self._cluster.termination_grace_s
        lives = [life_of(pod, grace_s) for pod in self._api.pods(ref)]
        left = [pod for pod in lives if not pod.is_over]
        if not lives and state is JobState.ABSENT:
            self._place.check_absent(key, started, files, self._store)
        reachable = any(unreachable(pod, self._now()) is None for pod in left)
        return GangPhase.ALIVE if reachable else GangPhase.GONE
