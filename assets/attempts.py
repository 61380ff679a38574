"""The training_attempts asset: one partition an attempt, materialized by supervising it.

The Dagster run of an attempt watches; the training itself is a gang of processes that outlives it.
All it does is `attempts.effects.supervise`; here stand only what Dagster shows, and what its
signals mean.
"""

import platform
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    DagsterExecutionInterruptedError,
    DataVersion,
    DynamicPartitionsDefinition,
    Failure,
    MaterializeResult,
    MetadataValue,
    PreviewWarning,
    ResourceParam,
    asset,
    define_asset_job,
    in_process_executor,
)

from tracks_dagster.attempts.effects.closing import find_attempt
from tracks_dagster.attempts.effects.sharing import devices_since, lease_for
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.checkpoints.effects.checkpoint_reports import (
    CheckpointReport,
    CheckpointReports,
)
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.ledger.effects.following import ProcessCursors, follow
from tracks_dagster.reasons.endings import Ending, ending_check
from tracks_dagster.review.effects.explain.run import ExplainContext
from tracks_dagster.review.effects.metadata import Show, attempt_metadata, ending_tags, runs_address
from tracks_dagster.review.effects.pages.report import write_report
from tracks_dagster.settings import find_board_url, find_ui_url, usable_prices
from tracks_dagster.track import names
from tracks_dagster.track.errors import InvalidInput, NoDevices, TracksError
from tracks_dagster.track.names import AttemptRef, parse_attempt_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.end_words import end_sentence
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.track import run_track
from tracks_dagster.wiring import App

# The first words of the assets after it in the group, which offer "Materialize" too.
HOW_TO_START = (
    f"**To start training, materialize [{names.TRAINING_RUNS}]({names.TRAINING_RUNS_PAGE})**, not "
    "this: partitions appear by themselves, one for each attempt of a run."
)
TRAINING_DATASETS = ("aws-docs", "flights")
SUCCEEDED = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})
CANCELLED_BY = "dagster ui"
TAKEN_AWAY_S_MAX = 5.0  # for the launcher's word on why this worker is ended; its grace is longer
TAKEN_AWAY_LOOK_S = 0.2
DESCRIPTION = f"""{HOW_TO_START}

One attempt at a training run: `RUN/aNN`, from its launch to the reason why it ended.

Green: the attempt reached the step it was asked for. Red: it ended before, and the sensors decide what
follows. Why it ended, its curve, what it cost, from where, what was decided and where it ran: that is
the same partition of [{names.RECEIPTS}](/assets/{names.RECEIPTS}), which every attempt has that ended.
The check `{names.ENDED_AS_MEANT}` tells a failure from an interruption.

Dagster runs by how their attempt ended: \
[failures]({runs_address(names.TAG_ENDING, Ending.FAILURE)}), \
[interruptions]({runs_address(names.TAG_ENDING, Ending.INTERRUPTION)}), \
[as meant]({runs_address(names.TAG_ENDING, Ending.AS_MEANT)}).

Nothing has to be done here: to see what happened use `tracks explain RUN/aNN`, to go on after a refusal
`tracks retry RUN --why "…"`. Materializing an attempt that is open adopts its gang; one that has ended
is refused. The day over all runs: `incident_review`.
"""


ATTEMPTS = DynamicPartitionsDefinition(name=names.ATTEMPT_PARTITIONS)


def ended_as_meant(asset: str) -> AssetCheckSpec:
    """Return the check that tells a failure from an interruption, of each attempt apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreviewWarning)  # checks by partition are new in Dagster
        return AssetCheckSpec(
            names.ENDED_AS_MEANT,
            asset=asset,
            description=(
                "A warning where the place was taken away (preempted, drained, no machine in time): "
                "nothing is wrong with the run. An error where something failed."
            ),
            partitions_def=ATTEMPTS,
        )


@asset(
    name=names.ATTEMPT_PARTITIONS,
    partitions_def=ATTEMPTS,
    deps=[
        names.TRAINING_RUNS,
        *map(names.snapshot_asset, TRAINING_DATASETS),
    ],
    check_specs=[ended_as_meant(names.ATTEMPT_PARTITIONS)],
    group_name="training",
    kinds={"python", "pytorch"},
    owners=["team:training"],
    code_version="1",
    description=DESCRIPTION,
)
@without_secrets
def training_attempts(
    context: AssetExecutionContext,
    app: ResourceParam[App],
    orchestrator: ResourceParam[Orchestrator],
) -> Iterator[AssetCheckResult | MaterializeResult[None]]:
    """Supervise one attempt; say how it ended by a check, and show its receipt."""
    try:
        run_id, attempt_id = parse_attempt_key(context.partition_key)
        ended = _supervise(context, app, orchestrator)
    except InvalidInput as error:
        raise Failure(str(error), allow_retries=False) from error
    except NoDevices as error:  # nothing is wrong: launch_attempts asks for another one in its turn
        context.instance.add_run_tags(context.run.run_id, {names.TAG_NO_DEVICES: "true"})
        raise Failure(str(error), allow_retries=False) from error
    if ended is None or ended.reason is None:
        raise Failure("Another Dagster run supervises this attempt now.", allow_retries=False)
    context.instance.add_run_tags(context.run.run_id, ending_tags(ended.reason))
    receipt = _show_receipt(context, app, ended)
    if ended.reason in SUCCEEDED:
        yield MaterializeResult(
            metadata=receipt,
            data_version=_final_version(app.tracks.run(run_id), attempt_id),
            check_results=[ending_result(ended)],
        )
        return
    yield ending_result(ended)
    raise Failure(
        f"{ended.reason}: {end_sentence(ended)}",
        metadata={"termination_reason": ended.reason.value, "explain": f"tracks explain {run_id}"},
        allow_retries=False,
    )


train_attempt = define_asset_job(
    names.TRAIN_ATTEMPT_JOB,
    selection=[training_attempts],
    executor_def=in_process_executor,  # an attempt is one step, and starts a second sooner
    # Retries are decided in the track, under a budget for each reason; Dagster's own would add to
    # them blindly (three failures became nine runs).
    tags={"dagster/max_retries": "0"},
    description="Supervises one attempt at a training run; requested by launch_attempts only.",
)


def _supervise(
    context: AssetExecutionContext, app: App, orchestrator: Orchestrator
) -> AttemptState | None:
    """See the attempt to its end. A person's cancellation drains the gang, then goes on its way.

    Any other signal (a deployment, a drained node) leaves the gang alone: another Dagster run adopts
    it.
    """
    run_id, attempt_id = parse_attempt_key(context.partition_key)
    ref = AttemptRef(run_id, attempt_id)
    _, attempt = find_attempt(app.tracks, ref)
    launcher = attempt.opened.compute.launcher
    devices = None
    if launcher == names.LOCAL:
        tag = context.run.tags.get(names.TAG_LEASE)
        devices = devices_since(app.devices, ref.key, tag, attempt.held)
    reports = CheckpointReports(
        attempt_id=attempt_id,
        is_reported=partial(context.instance.has_dynamic_partition, names.CHECKPOINT_PARTITIONS),
        report=partial(_report_commit, context),
    )
    cursors = ProcessCursors()  # another process may have reported more

    def show_commits() -> None:
        follow(app.tracks, cursors, reports, run_track(run_id))

    (policy, no_policy), (rules, no_rules) = app.usable_policy(), app.usable_rules()
    for problem in (no_policy, no_rules):
        if problem is not None:
            context.log.error(app.redact(problem))
    supervisor = Supervisor(
        tracks=app.tracks,
        gangs=app.launcher_of(launcher),
        orchestrator=orchestrator,
        foresee=partial(app.foresee, launcher),
        drain_grace_s=app.drain_grace_s(launcher),
        policy=policy,
        dagster_run_id=context.run.run_id,
        host=platform.node(),
        process=app.own_process(),
        sleep=time.sleep,
        on_growth=lambda _: show_commits(),
        rules=rules,
        devices=devices,
    )
    if devices is not None:
        world = replace(app.world(policy, orchestrator), devices=devices)
        lease_for(world, ref.key, by=names.TRAIN_ATTEMPT_JOB, dagster_run_id=context.run.run_id)
    try:
        return supervisor.supervise(run_id, attempt_id)
    except DagsterExecutionInterruptedError:
        run = orchestrator.find(context.run.run_id)
        if run is None or not run.is_canceling:
            _fail_as_taken_away(context)
            raise
        why = f"its Dagster run {context.run.run_id} was cancelled"
        request_stop(app.tracks, run_id, mode="drain", by=CANCELLED_BY, why=why)
        ended = supervisor.supervise(run_id, attempt_id)
        if ended is not None and ended.reason is not None:
            context.instance.add_run_tags(context.run.run_id, ending_tags(ended.reason))
            _show_receipt(context, app, ended)
        raise


def _fail_as_taken_away(context: AssetExecutionContext) -> None:
    """Raise Failure with why this worker ends, where the run launcher finds that out in time.

    Dagster's own words are the same for a preemption, a drained node and a deployment.
    """
    if not getattr(context.instance.run_launcher, "records_why_workers_end", False):
        return
    give_up_at = time.monotonic() + TAKEN_AWAY_S_MAX
    while time.monotonic() < give_up_at:
        run = context.instance.get_run_by_id(context.run.run_id)
        reason = None if run is None else run.tags.get(names.TAG_WORKER_REASON)
        if reason is not None:
            sentence = TerminationReason(reason).sentence
            raise Failure(
                f"The supervisor's own pod was taken away ({reason}): {sentence} The attempt goes on: "
                "its gang trains, and the next Dagster run adopts it.",
                allow_retries=False,
            )
        time.sleep(TAKEN_AWAY_LOOK_S)


def _report_commit(context: AssetExecutionContext, report: CheckpointReport) -> None:
    """Show a checkpoint while training goes on: the partition first, then its event."""
    context.instance.add_dynamic_partitions(names.CHECKPOINT_PARTITIONS, [report.key])
    context.log_event(AssetMaterialization(**report.event))


def ending_result(ended: AttemptState) -> AssetCheckResult:
    """Return whether an attempt ended as meant, as Dagster shows it."""
    check = ending_check(ended.reason or TerminationReason.UNKNOWN, end_sentence(ended))
    return AssetCheckResult(
        check_name=names.ENDED_AS_MEANT,
        passed=check.passed,
        severity=AssetCheckSeverity.ERROR if check.is_failure else AssetCheckSeverity.WARN,
        description=check.words,
    )


def _show_receipt(context: AssetExecutionContext, app: App, ended: AttemptState) -> dict[str, Any]:
    """Materialize the attempt's receipt and return it: of the attempt's own materialization Dagster
    keeps no metadata where that fails."""
    run_id, attempt_id = parse_attempt_key(context.partition_key)
    metadata = attempt_metadata(
        app.tracks,
        run_id,
        attempt_id,
        Show.by(MetadataValue, app.settings.ui_url, find_board_url(app.settings)),
        report=_write_report(context, app, run_id, attempt_id),
        cache=app.settings.cache,
    )
    key, check = AssetKey(names.RECEIPTS), ending_result(ended)
    context.log_event(
        AssetMaterialization(
            asset_key=key,
            partition=context.partition_key,
            metadata=metadata,
            tags=names.RECEIPT_TAGS,
        )
    )
    context.log_event(
        AssetCheckEvaluation(
            asset_key=key,
            check_name=names.ENDED_AS_MEANT,
            partition=context.partition_key,
            passed=check.passed,
            severity=check.severity,
            description=check.description,
            metadata={},
        )
    )
    return metadata


def _write_report(
    context: AssetExecutionContext, app: App, run_id: str, attempt_id: int
) -> str | None:
    """Write the run's report and return where, if that is a place that outlives this Dagster run."""
    if app.tracks.run(run_id).declared.compute.launcher != names.LOCAL:
        return None  # the file would lie in this run worker's pod
    rules, _ = app.usable_rules()
    prices, _ = usable_prices(app.settings)
    explain_context = ExplainContext(
        rules=rules, ledger=app.ledger, ui_url=find_ui_url(app.settings), prices=prices
    )
    file = app.settings.reports / f"{run_id}.html"
    try:
        return str(
            write_report(app.tracks, run_id, file, explain_context, attempt_id=attempt_id).path
        )
    except (TracksError, OSError) as error:
        problem = f"No report was written to {file}, the receipt names none: {error}"
        context.log.warning(app.redact(problem))
        return None


def _final_version(state: RunState, attempt_id: int) -> DataVersion | None:
    """Return the version of what the attempt made: the manifest of its newest commit."""
    commits = [c.ref.manifest_sha256 for c in state.checkpoints if c.ref.attempt_id == attempt_id]
    return DataVersion(commits[-1]) if commits else None
