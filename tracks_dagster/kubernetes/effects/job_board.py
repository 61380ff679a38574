"""The Jobs of all gangs at one look, so that any number of gangs can be glanced at. Thread-safe.

One list of Jobs answers for every gang of the namespace, at most every `BOARD_S`; of each Job a few
bytes are kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum

from tracks_dagster.kubernetes.effects.api.gang_api import GangApi, attempt_of
from tracks_dagster.kubernetes.effects.api.kube_requests import Object
from tracks_dagster.reasons.kube_json import mapping, mappings
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Json

BOARD_S = 4.0  # how old an answer may be; a sensor ticks every 5 s
_FINAL = frozenset({"Complete", "Completed", "Failed"})  # of a Job, and of a JobSet


class JobState(Enum):
    """How a gang's Job stands."""

    ABSENT = "there is none"
    STANDING = "it waits, runs, or its pods are still ending"
    FINISHED = "it is complete or has failed, and no pod of it runs"


def state_of(job: Mapping[str, Json] | None) -> JobState:
    """Return how a Job or JobSet stands."""
    if job is None:
        return JobState.ABSENT
    status = mapping(job.get("status"))
    told = mappings(status.get("conditions"))
    is_final = any(c.get("type") in _FINAL and c.get("status") == "True" for c in told)
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

    def look(self, run_id: str, attempt_id: int) -> JobState:
        """Return how the gang's Job stood at most `BOARD_S` ago.

        Raises GangError; so long after it the same one at once: of many gangs only one waits for a
        server that cannot be reached.
        """
        with self._lock:
            if self._read_at_s is None or self._seconds() - self._read_at_s > BOARD_S:
                self._read()
            return self._states.get(attempt_key(run_id, attempt_id), JobState.ABSENT)

    def forget(self) -> None:
        """List anew at the next look: this process has just started or ended a gang."""
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
