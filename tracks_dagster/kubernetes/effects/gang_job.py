"""The Job of one gang: whether there is one, and what its start left in the store.

A gang that was started has a mark in the store, which outlives its Job. Where the mark is missing (its
launcher died between the two) the Job itself tells, as long as it stands, and is marked late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracks_dagster.kubernetes.effects.api.gang_api import GangApi
from tracks_dagster.kubernetes.effects.api.kube_requests import Object
from tracks_dagster.kubernetes.effects.gang_files import GangFiles, Started
from tracks_dagster.kubernetes.effects.homes import Place, variables_of
from tracks_dagster.kubernetes.effects.job_board import JobState, state_of
from tracks_dagster.kubernetes.gangs.sightings import JobStory
from tracks_dagster.kubernetes.settings.cluster import JOB
from tracks_dagster.track import names
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.ports import Clock, ObjectStore
from tracks_dagster.track.records import format_time

JOB_LOOK_S = 5.0  # while no watch shows the Job: it has just begun, or may not see any


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
        run_id: str,
        attempt_id: int,
        *,
        configured: str,
        now: Clock,
        seconds: Callable[[], float],
    ) -> None:
        self._api, self._files, self._store, self._place = api, files, store, place
        self._run_id, self._attempt_id, self._configured = run_id, attempt_id, configured
        self._now, self._seconds = now, seconds
        self._started: Started | None = None
        self._known: tuple[JobState, float] | None = None  # and when it was asked for

    @property
    def started(self) -> Started | None:
        """What the start left; None where there was none, or nobody has marked it yet."""
        if self._started is None:
            started = self._files.started()
            self._place.check(attempt_key(self._run_id, self._attempt_id), started)
            self._started = started
        return self._started

    @property
    def kind(self) -> str:
        """What holds the pods, a Job or a JobSet: as it was started, whatever the settings say now."""
        return self._configured if self.started is None else self.started.kind

    def state(self, watched: Sequence[JobStory], *, is_ended: bool = False) -> JobState:
        """Return how the Job stands: by the watch, else as it was at most JOB_LOOK_S ago.

        is_ended: this process has just ended it, where it stood.

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
        """Leave what tells later that this gang was started; once, by whoever comes first."""
        told = variables_of(job)
        started = Started(
            kind=str(job.get("kind") or self._configured),
            nodes=int(told.get(names.ENV_NODES, "1")),
            ranks_per_node=int(told.get(names.ENV_RANKS_PER_NODE, "1")),
            at=format_time(self._now()),
            namespace=self._place.namespace,
            server=self._place.server,
        )
        self._files.put_started(started)
        self._started = started

    def forget(self) -> None:
        """Ask for the Job at the next look: this process has just made or ended it."""
        self._known = None

    def _found(self, *, is_ended: bool) -> Object | None:
        job = self._api.job(self._run_id, self._attempt_id, self.kind)
        if job is None and not is_ended:
            key = attempt_key(self._run_id, self._attempt_id)
            self._place.check_absent(key, self.started, self._files, self._store)
        return job
