"""Dagster's Kubernetes run launcher, which also reports why a run worker is gone or does not start.

`dagster.yaml` names it on a cluster. Dagster's own reports the same of a worker that was preempted,
evicted, OOM-killed or lost, asks for a run that starts nothing but the clock, and takes an API server
that does not answer for a dead worker. Here the pods are watched while they live, what ended them
is in the run's tags before its failure event, and in the event in words. A run that is declared
dead while it lives does no harm: it finds a newer claim in the track and ends.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from dagster import DagsterRun, Field, Noneable
from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClassData, serialize_value
from dagster_k8s import K8sRunLauncher
from dagster_k8s.client import DagsterK8sAPIRetryLimitExceeded, DagsterK8sUnrecoverableAPIError
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import UserDefinedDagsterK8sConfig
from kubernetes.client import BatchV1Api, CoreV1Api

from tracks_dagster.defs.resources.run_processes import (
    health_in_own_process,
    runs_in_own_process,
)
from tracks_dagster.track import names
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.edge.run_worker_ends import RunWorkerEnds, job_name
from tracks_dagster.wings.kubernetes.effects.client import connect, explain
from tracks_dagster.wings.kubernetes.effects.run_worker_watch import RunWorkerApi, RunWorkerWatch
from tracks_dagster.wings.kubernetes.job_names import run_label
from tracks_dagster.wings.kubernetes.run_workers import Standing, has_not_begun, standing
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

# One pod, whatever a run's tags say: a replaced run worker exits 0 and its run hangs (dagster#33755).
_ONE_POD = {"backoff_limit": 0, "completions": 1, "parallelism": 1}
RUN_WORKER = "tracks_dagster.run_worker"
_REFUSED = {
    403: TerminationReason.PERMISSION_DENIED,
    404: TerminationReason.CONFIG_ERROR,
    422: TerminationReason.CONFIG_ERROR,
}
_ALIVE = (Standing.RUNS, Standing.WAITS, Standing.ENDING)
_log = logging.getLogger(__name__)


class TrackedK8sRunLauncher(K8sRunLauncher):
    """Takes K8sRunLauncher's config, and two fields more for a launcher outside of its cluster.

    python: the interpreter in the run workers' image; None takes the one of the code location, which
    is right where that runs in the same image. context: of the kubeconfig, None for its current one.
    """

    records_why_workers_end = True  # in TAG_WORKER_REASON, as soon as the control plane shows it

    def __init__(
        self,
        *,
        python: str | None = None,
        context: str | None = None,
        inst_data: ConfigurableClassData | None = None,
        **config: Any,
    ) -> None:
        self._python = python
        self._cluster = ClusterSettings(
            image=config.get("job_image") or "the code location's",
            namespace=config.get("job_namespace") or "default",
            kubeconfig=config.get("kubeconfig_file"),
            context=context,
        )
        client = connect(self._cluster)  # bounded in time, and of that context
        super().__init__(
            inst_data=inst_data,
            k8s_client_batch_api=BatchV1Api(client),
            k8s_client_core_api=CoreV1Api(client),
            **config,
        )
        self._api = RunWorkerApi(client, self._cluster)
        self._ends = RunWorkerEnds(lambda: self._instance, self._api)
        self._watch = RunWorkerWatch(
            self._api, seen=self._ends.seen, between=self._ends.look_at_starting
        )
        self._ends.history = self._watch.history

    @classmethod
    def config_type(cls) -> Mapping[str, Any]:
        """K8sRunLauncher's fields, and those of this class."""
        own = {name: Field(Noneable(str), is_required=False) for name in ("python", "context")}
        return {**super().config_type(), **own}  # type: ignore[no-untyped-call]

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """Return the launcher that `dagster.yaml` describes."""
        return cls(inst_data=inst_data, **config_value)

    def dispose(self) -> None:
        """Let the watch end."""
        self._watch.stop()
        super().dispose()

    def get_container_context_for_run(self, dagster_run: DagsterRun) -> K8sContainerContext:
        """Add the labels of the attempt, and the rules that no tag may change."""
        context = super().get_container_context_for_run(dagster_run)
        ours = UserDefinedDagsterK8sConfig.from_dict({"job_spec_config": _ONE_POD})  # type: ignore[no-untyped-call]
        labels = _labels(dagster_run.tags)
        return context.merge(K8sContainerContext(labels=labels, run_k8s_config=ours))

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run's Job; raises GangError, with the reason in the run's tags."""
        self._watch.start()
        run = context.dagster_run
        name = job_name(run)
        try:
            self._launch_k8s_job_with_args(name, self._arguments(run), run)
        except (DagsterK8sAPIRetryLimitExceeded, DagsterK8sUnrecoverableAPIError) as error:
            refused = error.k8s_api_exception
            problem = explain(refused, f"start the run worker {name}", self._cluster)
            reason = _REFUSED.get(getattr(refused, "status", None) or 0)
            if "exceeds the quota" in str(problem):
                reason = TerminationReason.SCHEDULING_TIMEOUT
            if reason is not None:
                self._ends.tag(run, reason.value)
            raise problem from error

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Look at the Job and its pods: two requests for a worker that lives, five for a dead one.

        An API server that does not answer shows nothing of the worker: it counts as running until
        the next look.
        """
        self._watch.start()
        if runs_in_own_process(self._instance, run):
            return health_in_own_process(self._instance, run)
        try:
            return self._health(run)
        except TracksError as error:
            _log.warning("Cannot look at the worker of run %s: %s", run.run_id, error)
            return CheckRunHealthResult(WorkerStatus.RUNNING, f"Not known: {error}")

    def get_run_worker_debug_info(
        self, run: DagsterRun, include_container_logs: bool | None = True
    ) -> str | None:
        """Return why a run that Dagster gives up did not start or end, and tag it with the reason.

        Dagster asks just before it writes the failure of a run that did not start in time.
        """
        if not include_container_logs:
            return None  # asked after a look that found the worker dead: its message has all
        try:
            job, pods = self._ask(run)
            return self._ends.explain_given_up(run, job, pods)
        except TracksError as error:
            return f"Why is not known: {error}"

    def terminate(self, run_id: str) -> bool:
        """Delete the run's Job; for a worker that never ran, or is dead, the run is ended here."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        if runs_in_own_process(self._instance, run):
            self._instance.report_engine_event(
                "Cannot cancel it from here: the command that began this run executes it. End that.",
                run,
            )
            return False
        was_silent = self._is_silent(run)
        is_asked = bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        if was_silent and self._is_silent(run):
            self._ends.cancel(run_id)
        return is_asked

    def _health(self, run: DagsterRun) -> CheckRunHealthResult:
        job, pods = self._ask(run)
        if standing(job, pods, datetime.now(UTC)) in _ALIVE:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        now = self._instance.get_run_by_id(run.run_id)
        if now is None or now.is_finished:
            return CheckRunHealthResult(WorkerStatus.SUCCESS)
        return CheckRunHealthResult(WorkerStatus.FAILED, self._ends.explain_end(run, pods))

    def _ask(self, run: DagsterRun) -> tuple[Json, Sequence[Json]]:
        """Return the worker's Job and its pods as they are; the pods first: a Job outlives them."""
        name = job_name(run)
        pods = self._api.pods_of(name)
        return self._api.job(name), pods

    def _is_silent(self, run: DagsterRun) -> bool:
        """Whether no process of the worker runs, as far as the API server shows."""
        try:
            job, pods = self._ask(run)
        except TracksError as error:
            _log.warning("Cannot look at the worker of run %s: %s", run.run_id, error)
            return False
        where = standing(job, pods, datetime.now(UTC))
        ended_unborn = where is Standing.ENDING and all(has_not_begun(pod) for pod in pods)
        return ended_unborn or where in (Standing.WAITS, Standing.GONE, Standing.ENDED)

    def _arguments(self, run: DagsterRun) -> Sequence[str]:
        """Return the worker's command; paths of this machine mean nothing in another one's image."""
        origin = run.job_code_origin
        if origin is None:
            raise TracksError(
                f"Run {run.run_id} names no code; Dagster's daemon launches those that do."
            )
        args = ExecuteRunArgs(
            job_origin=origin,
            run_id=run.run_id,
            instance_ref=None if self._python else self._instance.get_ref(),
            set_exit_code_on_failure=self.fail_pod_on_run_failure,
        )
        if self._python is None:
            return args.get_command_args()
        # Without an instance it takes DAGSTER_HOME's, which is mounted from the ConfigMap.
        return [self._python, "-m", RUN_WORKER, "api", "execute_run", serialize_value(args)]


def _labels(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that name whose supervisor this is; a gang's own have one more."""
    key = tags.get(names.TAG_ATTEMPT)
    if key is None:
        return {}
    run_id, attempt_id = names.parse_attempt_key(key)
    return {names.LABEL_RUN: run_label(run_id), names.LABEL_ATTEMPT: str(attempt_id)}
