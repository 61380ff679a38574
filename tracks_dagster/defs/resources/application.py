"""Resources of assets and sensors: the application that wiring built, and Dagster behind a port.

They ask for it by parameter: `app: ResourceParam[App]`, `orchestrator: ResourceParam[Orchestrator]`.
Built at first use, once per process and settings, so that loading definitions touches nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    InitResourceContext,
    ResourceDefinition,
    RunRecord,
    RunsFilter,
)

from tracks_dagster.attempts.ports import Orchestrator, OrchestratorRun
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.defs.site import APP, ORCHESTRATOR, Site, asset_key
from tracks_dagster.settings import Settings
from tracks_dagster.track import names
from tracks_dagster.track.names import NO_PREFIX, Prefix
from tracks_dagster.wiring import App, build

RUNS_MAX = 1000  # Dagster runs of one attempt or eval that are looked at, newest first
# Begins Dagster's event where it ends a run that took longer than `dagster/max_runtime` allows.
BY_TIME_LIMIT = "Canceling due to exceeding maximum runtime"
build_once = cache(build)


def resources(site: Site) -> dict[str, ResourceDefinition]:
    """Return the resources that bodies ask for as `app` and `orchestrator`, by their names here."""

    @without_secrets
    def application(_context: InitResourceContext) -> App:
        """Return this process's application; it reads the policy and rules files when they are used."""
        settings = Settings.from_environment(changed=site.settings)
        return build_once(replace(settings, prefix=site.prefix))

    def orchestrator(context: InitResourceContext) -> Orchestrator:
        return DagsterOrchestrator(context.instance or DagsterInstance.get(), site.prefix)

    return {
        site.name(APP): ResourceDefinition(
            application, description="The application; its settings come from the environment."
        ),
        site.name(ORCHESTRATOR): ResourceDefinition(
            orchestrator, description="Dagster's own instance, as far as decisions need it."
        ),
    }


class DagsterOrchestrator:
    """Implements `ports.Orchestrator` for one instance: the Dagster runs of an attempt.

    prefix: of our names there. Another set's runs may have the same partition keys and tags.
    """

    def __init__(self, instance: DagsterInstance, prefix: Prefix = NO_PREFIX) -> None:
        self._instance = instance
        self._prefix = prefix

    def runs_of_attempt(self, attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return the Dagster runs of that partition that supervise it, a person's included."""
        return [
            _translated(record)
            for record in self._records({names.TAG_PARTITION: attempt_key})
            if self._is_of(record.dagster_run, names.TRAIN_ATTEMPT_JOB, names.ATTEMPT_PARTITIONS)
        ]

    def runs_of_eval(self, eval_attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return the Dagster runs that were asked for that attempt at an eval, newest first."""
        return [
            _translated(record)
            for record in self._records({names.TAG_EVAL: eval_attempt_key})
            if self._is_of(record.dagster_run, names.EVALUATE_CHECKPOINT_JOB, names.EVAL_PARTITIONS)
        ]

    def find(self, dagster_run_id: str) -> OrchestratorRun | None:
        """Return the Dagster run of that id, or None."""
        record = self._instance.get_run_record_by_id(dagster_run_id)
        return None if record is None else _translated(record)

    def was_cancelled(self, dagster_run_id: str) -> bool:
        """Read it from the run's first event of that kind: later ones follow from it, and a worker that
        fails while it is cancelled leaves the run as failed."""
        for kind in (DagsterEventType.PIPELINE_CANCELING, DagsterEventType.PIPELINE_CANCELED):
            found = self._instance.get_records_for_run(dagster_run_id, of_type=kind, limit=1)
            for record in found.records:
                event = record.event_log_entry.dagster_event
                return event is None or not (event.message or "").startswith(BY_TIME_LIMIT)
        return False

    def _is_of(self, run: DagsterRun, job: str, asset: str) -> bool:
        """Whether the run is one of ours: a foreign asset's may have the same partition key."""
        assets = run.asset_selection or ()
        return run.job_name == self._prefix.name(job) or asset_key(self._prefix, asset) in assets

    def _records(self, tags: dict[str, str]) -> Sequence[RunRecord]:
        return self._instance.get_run_records(RunsFilter(tags=tags), limit=RUNS_MAX)


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
        had_no_devices=bool(run.tags.get(names.TAG_NO_DEVICES)),
        run_key=run.tags.get(names.TAG_RUN_KEY),
    )


def _problem(run: DagsterRun) -> str:
    if run.status is DagsterRunStatus.QUEUED:
        return "it waits in Dagster's queue"
    if met := run.tags.get(names.TAG_LAUNCH):
        return met
    reason = run.tags.get(names.TAG_WORKER_REASON)
    return f"its run worker ended as {reason}" if reason else ""
