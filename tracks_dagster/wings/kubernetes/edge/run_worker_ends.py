"""What becomes of a Dagster run whose worker Kubernetes ended or does not start: its tag, its event.

Called from two threads, Dagster's (health checks) and the watch's. The reason is a run tag before the
run's end is an event; a run is read again before it is ended, for it may end by itself at any moment.
"""

import logging
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster_k8s.job import get_job_name_from_run_id

from tracks_dagster.clean_errors import clean_text
from tracks_dagster.reasons.kube_json import mapping, text
from tracks_dagster.track.names import TAG_WORKER_REASON
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wings.kubernetes.effects.run_worker_watch import RunWorkerApi
from tracks_dagster.wings.kubernetes.pod_starts import (
    QUOTA,
    UNSCHEDULABLE,
    StartProblem,
    why_not_started,
)
from tracks_dagster.wings.kubernetes.run_workers import (
    Standing,
    WorkerEnd,
    has_disruption,
    never_started,
    standing,
    worker_end,
)

STARTING_LOOKS_MAX = 20  # runs that start, looked at in one round; the others come in the next ones
# An image, a secret or a volume that is missing may yet be put there. For a node or a quota Dagster's
# own `start_timeout_seconds` holds: these are waited for longer.
PROBLEM_S_MAX = 300.0
GONE_S_MAX = 60.0  # a Job that was asked for a moment ago may not be listed yet
ENDED_S_MAX = 10.0  # a worker that ended may have written its run's end a moment ago
_WAITED_FOR = frozenset({UNSCHEDULABLE, QUOTA})
_UNKNOWN = TerminationReason.UNKNOWN.value
_CREATED = re.compile(r"Created pod: (?P<name>[a-z0-9.-]+)")
_log = logging.getLogger(__name__)


class RunWorkerEnds:
    """Judges run workers, and tags and ends their runs. instance: Dagster's, at each use.

    history: what a run's newest pod went through, as the watch saw it, the oldest first.
    """

    def __init__(
        self,
        instance: Callable[[], DagsterInstance],
        api: RunWorkerApi,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instance, self._api, self._monotonic = instance, api, monotonic
        self.history: Callable[[str], Sequence[Json]] = lambda _run_id: ()
        self._since: dict[str, float] = {}  # runs that start → when the trouble was first seen
        self._turn = 0

    def explain_end(self, run: DagsterRun, pods: Sequence[Json]) -> str:
        """Return in words why the worker ended, with the reason in the run's tags.

        pods: those of its Job that are still there. May raise GangError.
        """
        end = self._end(run, pods)
        self.tag(run, end.reason)
        return end.words

    def explain_given_up(self, run: DagsterRun, job: Json, pods: Sequence[Json]) -> str:
        """Return in words why a run did not start, or does not end; may raise GangError."""
        problem = self._problem(run, pods)
        if problem is not None:
            end = never_started(problem)
            self.tag(run, end.reason)
            if run.status is DagsterRunStatus.STARTING:
                # Dagster ignores a worker that comes later: it would be paid for nothing.
                self._api.delete_job(job_name(run))
            return end.words
        if standing(job, pods, _now()) in (Standing.ENDED, Standing.GONE):
            return self.explain_end(run, pods)
        phase = text(mapping(mapping(pods[-1]).get("status")).get("phase")) if pods else ""
        return f"Its pod is {phase or 'not created yet'}, and nobody knows what it waits for."

    def cancel(self, run_id: str) -> None:
        """End a run as cancelled, in the name of a worker that never ran or is dead."""
        run = self._instance().get_run_by_id(run_id)
        if run is not None and run.status is DagsterRunStatus.CANCELING:
            self._instance().report_run_canceled(
                run, "Its worker does not run and will not any more."
            )

    def tag(self, run: DagsterRun, reason: str) -> bool:
        """Write the reason into the run's tags; False where a more precise one is there already."""
        found = self._instance().get_run_by_id(run.run_id)
        if found is None or (found.tags.get(TAG_WORKER_REASON) or _UNKNOWN) != _UNKNOWN:
            return False
        self._instance().add_run_tags(run.run_id, {TAG_WORKER_REASON: reason})
        return True

    def seen(self, run_id: str, history: Sequence[Json]) -> None:
        """Tag a run whose worker is being taken away, and add an event with the reason.

        It may end itself before anybody looks, and Dagster's own words are the same for every reason.

        Called by the watch at each change of a pod; pods of other Dagsters are among them.
        """
        if not has_disruption(history):
            return
        end = worker_end(history, ())
        run = self._instance().get_run_by_id(run_id)
        if run is None or run.status is DagsterRunStatus.SUCCESS or end.reason == _UNKNOWN:
            return
        if self.tag(run, end.reason):
            self._instance().report_engine_event(end.words, run)

    def look_at_starting(self) -> None:
        """Give up the runs that can never start, and those whose worker died before it began.

        Dagster's own monitoring looks at nothing but the clock while a run starts.
        """
        runs = self._instance().get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTING]))
        starting = {run.run_id for run in runs}
        self._since = {run_id: at for run_id, at in self._since.items() if run_id in starting}
        begin = self._turn if self._turn < len(runs) else 0
        self._turn = begin + STARTING_LOOKS_MAX
        for run in runs[begin : self._turn]:
            try:
                self._look_at(run)
            except Exception as error:  # noqa: BLE001 - of that run alone
                why = problem_of(error)
                _log.warning("Cannot look at run %s, which starts: %s", run.run_id, why)

    def _look_at(self, run: DagsterRun) -> None:
        name = job_name(run)
        pods = self.history(run.run_id)[-1:] or self._api.pods_of(name)
        if (problem := self._problem(run, pods)) is not None:
            patient = problem.reason in _WAITED_FOR or self._lasts_s(run) < PROBLEM_S_MAX
            if problem.is_final or not patient:
                self._give_up(run, never_started(problem))
            return
        where = standing(None if pods else self._api.job(name), pods, _now())
        limit_s = {Standing.ENDED: ENDED_S_MAX, Standing.GONE: GONE_S_MAX}.get(where)
        if limit_s is None:
            self._since.pop(run.run_id, None)
        elif self._lasts_s(run) >= limit_s:
            self._give_up(run, self._end(run, pods))

    def _lasts_s(self, run: DagsterRun) -> float:
        """Return for how long the run is known to be in trouble."""
        now = self._monotonic()
        return now - self._since.setdefault(run.run_id, now)

    def _give_up(self, run: DagsterRun, end: WorkerEnd) -> None:
        """End a run that starts as failed, unless it has begun meanwhile, and delete its Job."""
        found = self._instance().get_run_by_id(run.run_id)
        if found is None or found.status is not DagsterRunStatus.STARTING:
            return
        self.tag(found, end.reason)
        self._instance().report_run_failed(found, end.words)
        self._since.pop(run.run_id, None)
        self._api.delete_job(job_name(run))

    def _problem(self, run: DagsterRun, pods: Sequence[Json]) -> StartProblem | None:
        """Return what keeps the worker's pod from starting; events are asked for where it is silent."""
        pod = pods[-1] if pods else {}
        if standing(None, pods, _now()) not in (Standing.WAITS, Standing.GONE):
            return None
        of = text(mapping(mapping(pod).get("metadata")).get("name")) or job_name(run)
        return why_not_started(pod, ()) or why_not_started(pod, self._api.events_of(of))

    def _end(self, run: DagsterRun, pods: Sequence[Json]) -> WorkerEnd:
        """Return why the worker ended, from what the watch saw, what is there, and events."""
        history = [*self.history(run.run_id), *pods[-1:]]
        end = worker_end(history, ())
        if end.reason != _UNKNOWN:
            return end
        events = list(self._api.events_of(_pod_name(history) or job_name(run)))
        if not history and (created := _created(events)):
            events += self._api.events_of(created)
        log_tail = clean_text(self._api.log(_pod_name(history))) if pods else ""
        return worker_end(history, events, log_tail)


def job_name(run: DagsterRun) -> str:
    """Return the name of the run's Job; nothing is resumed, so there is one."""
    return str(get_job_name_from_run_id(run.run_id))  # type: ignore[no-untyped-call]


def _pod_name(history: Sequence[Json]) -> str:
    return text(mapping(mapping(history[-1]).get("metadata")).get("name")) if history else ""


def _created(events: Sequence[Json]) -> str:
    """Return the pod that a Job's controller created, by its events."""
    found = (_CREATED.search(text(mapping(each).get("message"))) for each in events)
    return next((match["name"] for match in found if match), "")


def _now() -> datetime:
    return datetime.now(UTC)
