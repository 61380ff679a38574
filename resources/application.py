"""Resources of assets and sensors: the application that wiring built, and Dagster behind a port.

They ask for it by parameter: `app: ResourceParam[App]`, `orchestrator: ResourceParam[Orchestrator]`.
Built at first use, once per process and settings, so that loading definitions touches nothing.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache

from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    InitResourceContext,
    RunRecord,
    RunsFilter,
    resource,
)

from tracks_dagster.attempts.ports import Orchestrator, OrchestratorRun
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.settings import Settings
from tracks_dagster.track import names
from tracks_dagster.wiring import App, build

RUNS_MAX = 1000  # Dagster runs of one attempt or eval that are looked at, newest first
build_once = cache(build)


@resource(description="The application; every setting comes from the environment.")
@without_secrets
def app_resource(_context: InitResourceContext) -> App:
    """Return this process's application; it reads the policy and rules files when they are used."""
    return build_once(Settings.from_environment())


@resource(description="Dagster's own instance, as far as decisions need it.")
def orchestrator_resource(context: InitResourceContext) -> Orchestrator:
    """Return the instance that is being used, behind the port that services know."""
    return DagsterOrchestrator(context.instance or DagsterInstance.get())


class DagsterOrchestrator:
    """Implements `ports.Orchestrator` for one instance: the Dagster runs of an attempt."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance

    def runs_of_attempt(self, attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return the Dagster runs of that partition, whoever launched them, newest first."""
        return self._runs({names.TAG_PARTITION: attempt_key})

    def runs_of_eval(self, eval_attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return the Dagster runs that were asked for that attempt at an eval, newest first."""
        return self._runs({names.TAG_EVAL: eval_attempt_key})

    def find(self, dagster_run_id: str) -> OrchestratorRun | None:
        """Return the Dagster run of that id, or None."""
        record = self._instance.get_run_record_by_id(dagster_run_id)
        return None if record is None else _translated(record)

    def _runs(self, tags: dict[str, str]) -> Sequence[OrchestratorRun]:
        found = self._instance.get_run_records(RunsFilter(tags=tags), limit=RUNS_MAX)
        return [_translated(record) for record in found]


def _translated(record: RunRecord) -> OrchestratorRun:
    run, ended = record.dagster_run, record.end_time
    return OrchestratorRun(
        dagster_run_id=run.run_id,
        is_finished=run.is_finished,
        is_canceling=run.status in (DagsterRunStatus.CANCELING, DagsterRunStatus.CANCELED),
        is_failed=run.status is DagsterRunStatus.FAILURE,
        asked_at=record.create_timestamp,
        ended_at=None if ended is None else datetime.fromtimestamp(ended, UTC),
        problem=_problem(run),
        had_no_devices=names.TAG_NO_DEVICES in run.tags,
    )


def _problem(run: DagsterRun) -> str:
    if run.status is DagsterRunStatus.QUEUED:
        return "it waits in Dagster's queue"
    if names.TAG_LAUNCH in run.tags:
        return run.tags[names.TAG_LAUNCH]
    reason = run.tags.get(names.TAG_WORKER_REASON)
    return "" if reason is None else f"its run worker ended as {reason}"


RESOURCES = {"app": app_resource, "orchestrator": orchestrator_resource}
