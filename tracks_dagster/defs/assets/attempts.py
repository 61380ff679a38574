"""The training_attempts asset: one partition an attempt, materialized by supervising it.

The Dagster run of an attempt watches; the training itself is a gang of processes that outlives it.
All it does is `attempts.effects.supervise`; here stand only what Dagster shows, and what its
signals mean.
"""

import logging
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetMaterialization,
    AssetObservation,
    AssetsDefinition,
    DagsterExecutionInterruptedError,
    DagsterInstance,
    DataVersion,
    Failure,
    MaterializeResult,
    MetadataValue,
    Output,
    PreviewWarning,
    ResourceParam,
    asset,
    define_asset_job,
    in_process_executor,
)

from tracks_dagster.attempts.effects.closing import find_attempt
from tracks_dagster.attempts.effects.sharing import devices_since, lease_for
from tracks_dagster.attempts.effects.supervise import Supervisor, has_drill_of_supervisor
from tracks_dagster.attempts.effects.watch import stop_by_cancel
from tracks_dagster.attempts.launch import ID_CHARACTERS
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.checkpoints.effects.checkpoint_reports import checkpoint_report
from tracks_dagster.clean_errors import clean_text
from tracks_dagster.defs.site import AssetJob, Site, asset_key
from tracks_dagster.home.deployment import is_limited, read_deployment, what_is_wrong, works_less
from tracks_dagster.ledger.facts.checkpoint import partition_key
from tracks_dagster.reasons.endings import Ending, ending_check
from tracks_dagster.review.effects.explain.run import ExplainContext
from tracks_dagster.review.effects.metadata import (
    Show,
    attempt_metadata,
    ending_tags,
    final_version,
    runs_address,
)
from tracks_dagster.review.effects.pages.report import write_report
from tracks_dagster.settings import find_board_url, find_ui_url, usable_prices
from tracks_dagster.track import names
from tracks_dagster.track.errors import InvalidInput, NoDevices, TracksError
from tracks_dagster.track.names import AttemptRef, Prefix, parse_attempt_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.end_words import end_sentence
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.wing import launchers
from tracks_dagster.wiring import App

T = TypeVar("T")
_log = logging.getLogger(__name__)

SHOW_S_MAX = 1.0  # of a look at the gang, for commits that Dagster does not show yet
TAKEN_AWAY_S_MAX = 5.0  # for the launcher's word on why this worker is ended; its grace is longer
TAKEN_AWAY_LOOK_S = 0.2
DUPLICATE = (
    "This Dagster run was cancelled while another one is at the attempt: the training goes on. To end "
    "it cancel that one."
)
DESCRIPTION = f"""One attempt at a training run, from its launch to the reason why it ended.

{{how_to_start}} A partition is called `RUN/aNN`.

Green: the attempt reached the step it was asked for. Red: it ended before, and the sensors decide what
follows. Why it ended, its curve, what it cost, from where, what was decided and where it ran: that is
the same partition of [{names.RECEIPTS}]({{receipts_page}}), which every attempt has that ended.
The check `{names.ENDED_AS_MEANT}` tells a failure from an interruption.

Dagster runs by how their attempt ended: \
[failures]({runs_address(names.TAG_ENDING, Ending.FAILURE)}), \
[interruptions]({runs_address(names.TAG_ENDING, Ending.INTERRUPTION)}), \
[as meant]({runs_address(names.TAG_ENDING, Ending.AS_MEANT)}).

Where Dagster limits how many runs it starts, the Dagster run of an attempt ends as soon as its gang is
started, and the sensor `{{watcher}}` watches it; the partition is green or red once it has ended.

Nothing has to be done here: to see what happened use `tracks explain RUN/aNN`, to go on after a refusal
`tracks retry RUN --why "…"`. Materializing an attempt that is open adopts its gang, one with all its
steps shows it again, and any other one that has ended is refused. The day over all runs:
`incident_review`.
"""


def how_to_start(prefix: Prefix) -> str:
    """Return the second paragraph of the assets that offer "Materialize" beside training_runs.

    The first is all that Dagster's catalog shows, and it shows it as plain text.
    """
    page = prefix.page(names.TRAINING_RUNS)
    return (
        f"**To start training, materialize [{names.TRAINING_RUNS}]({page})**, not this: partitions "
        "appear by themselves, one for each attempt of a run."
    )


def ended_as_meant(site: Site, asset: str) -> AssetCheckSpec:
    """Return the check that tells a failure from an interruption, of each attempt apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreviewWarning)  # checks by partition are new in Dagster
        return AssetCheckSpec(
            names.ENDED_AS_MEANT,
            asset=site.key(asset),
            description=(
                "A warning where the place was taken away (preempted, drained, no machine in time): "
                "nothing is wrong with the run. An error where something failed."
            ),
            partitions_def=site.partitions(names.ATTEMPT_PARTITIONS),
        )


def training_attempts(site: Site) -> AssetsDefinition:
    """Return the asset."""
    trained = [site.key(each.name, names.TRAINING) for each in site.trained]
    datasets = sorted({site.dataset_key(each.dataset) for each in site.trained if each.dataset})
    return asset(
        key=site.key(names.ATTEMPT_PARTITIONS),
        partitions_def=site.partitions(names.ATTEMPT_PARTITIONS),
        deps=[site.key(names.TRAINING_RUNS), *trained, *datasets],
        check_specs=[ended_as_meant(site, names.ATTEMPT_PARTITIONS)],
        group_name="training",
        kinds={"python", "pytorch"},
        owners=["team:training"],
        code_version="1",
        output_required=False,  # of a Dagster run that lets go: the watcher shows how it ended
        description=DESCRIPTION.format(
            how_to_start=how_to_start(site.prefix),
            receipts_page=site.prefix.page(names.RECEIPTS),
            watcher=site.name(names.WATCH_ATTEMPTS),
        ),
    )(site.body(_training_attempts))


def _training_attempts(
    context: AssetExecutionContext,
    app: ResourceParam[App],
    orchestrator: ResourceParam[Orchestrator],
) -> Iterator[AssetCheckResult | MaterializeResult[None] | Output[None]]:
    """Supervise one attempt; say how it ended by a check, and show its receipt."""
    try:
        run_id, attempt_id = parse_attempt_key(context.partition_key)
        ended = _supervise(context, app, orchestrator)
    except InvalidInput as error:
        raise Failure(str(error), allow_retries=False) from error
    except NoDevices as error:  # nothing is wrong: launch_attempts asks for another one in its turn
        _tag(context, {names.TAG_NO_DEVICES: "true"})
        raise Failure(str(error), allow_retries=False) from error
    if ended is None:
        raise Failure(_taken_over(app, AttemptRef(run_id, attempt_id)), allow_retries=False)
    if ended.reason is None:
        launcher = ended.opened.compute.launcher
        _only_shown(partial(_say_left, context, app, launcher))
        check = ended_as_meant(Site(prefix=app.settings.prefix), names.ATTEMPT_PARTITIONS)
        yield Output(None, check.get_python_identifier())  # none is made before it has ended
        return
    _tag(context, ending_tags(ended.reason))
    receipt = _only_shown(lambda: _show_receipt(context, app, ended)) or {}
    if ended.reason in HAS_ALL_STEPS:
        version = final_version(app.tracks.run(run_id), attempt_id)
        yield MaterializeResult(
            metadata=receipt,
            data_version=None if version is None else DataVersion(version),
            check_results=[ending_result(ended)],
        )
        return
    yield ending_result(ended)
    raise Failure(
        f"{ended.reason}: {end_sentence(ended)}",
        metadata={"termination_reason": ended.reason.value, "explain": f"tracks explain {run_id}"},
        allow_retries=False,
    )


def _say_what_works_less(context: AssetExecutionContext, prefix: Prefix) -> None:
    """Say in the run's log what is otherwise in a deployment that is not ours."""
    found = read_deployment(context.instance, prefix)
    for sentence in works_less(found, prefix):
        context.log.info(sentence)
    for sentence in what_is_wrong(found):
        context.log.warning(sentence)


def _why_it_lets_go(instance: DagsterInstance, launcher: str) -> str:
    """Return why a Dagster run ends once its gang is started, in words; "" where it does not."""
    _, place = launchers().get(launcher, ("", None))
    if place is not None and place.lets_go:
        return f"One process watches all gangs on {launcher}"
    return "Dagster limits how many runs it starts" if is_limited(instance) else ""


def _say_left(context: AssetExecutionContext, app: App, launcher: str) -> None:
    """Say in Dagster that this run ends while training goes on, and who watches it now."""
    run_id, _ = parse_attempt_key(context.partition_key)
    key = asset_key(app.settings.prefix, names.ATTEMPT_PARTITIONS)
    words = (
        f"Training goes on. {_why_it_lets_go(context.instance, launcher)}, so this one ends; the "
        "sensor "
        f"{app.settings.prefix.name(names.WATCH_ATTEMPTS)} watches the attempt, and shows in this "
        f"partition how it ended. `tracks stop {run_id}` ends it: there is no Dagster run to cancel."
    )
    context.log.info(words)
    context.log_event(
        AssetObservation(asset_key=key, partition=context.partition_key, description=words)
    )


def train_attempt(site: Site) -> AssetJob:
    """Return the job."""
    return define_asset_job(
        site.name(names.TRAIN_ATTEMPT_JOB),
        selection=[site.key(names.ATTEMPT_PARTITIONS)],
        executor_def=in_process_executor,  # an attempt is one step, and starts a second sooner
        # Retries are decided in the track, under a budget for each reason; Dagster's own would add to
        # them blindly (three failures became nine runs).
        tags=names.NO_RETRIES,
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
    state, attempt = find_attempt(app.tracks, ref)
    if attempt.reason in HAS_ALL_STEPS:
        return attempt  # shown again: a refusal would show its partition as failed
    launcher = attempt.opened.compute.launcher
    lets_go = bool(_why_it_lets_go(context.instance, launcher))
    devices = None
    if launcher == names.LOCAL:
        tag = context.run.tags.get(names.TAG_LEASE)
        devices = devices_since(app.devices, ref.key, tag, attempt.held)
    (policy, no_policy), (rules, no_rules) = app.usable_policy(), app.usable_rules()
    _tag(context, names.NO_RETRIES | names.emptied(context.run.tags))
    for problem in filter(None, (no_policy, no_rules)):
        _only_shown(partial(context.log.error, app.redact(problem)))
    _only_shown(partial(_say_what_works_less, context, app.settings.prefix))
    supervisor = Supervisor(
        tracks=app.tracks,
        gangs=app.launcher_of(launcher),
        orchestrator=orchestrator,
        foresee=partial(app.foresee, attempt.opened.compute),
        drain_grace_s=app.drain_grace_s(launcher),
        policy=policy,
        dagster_run_id=context.run.run_id,
        host=platform.node(),
        process=app.own_process(),
        sleep=time.sleep,
        on_growth=partial(_show_commits, context, app.settings.prefix, attempt_id, set()),
        rules=rules,
        devices=devices,
        # What only a process of its own can play needs one, where Dagster has room for that.
        lets_go=lets_go
        and (is_limited(context.instance) or not has_drill_of_supervisor(app.tracks, state)),
    )
    if devices is not None:
        world = replace(app.world(policy, orchestrator), devices=devices)
        lease_for(world, ref.key, by=names.TRAIN_ATTEMPT_JOB, dagster_run_id=context.run.run_id)
    was_cancelled = partial(orchestrator.was_cancelled, context.run.run_id)
    try:
        # Dagster may start a run that was cancelled in its queue at the same moment (dagster#3323).
        if _only_shown(was_cancelled):
            if _only_shown(partial(_has_another_run, context, orchestrator)):
                raise Failure(DUPLICATE, allow_retries=False)
            stop_by_cancel(app.tracks, run_id, context.run.run_id)
        return supervisor.supervise(run_id, attempt_id)
    except DagsterExecutionInterruptedError:
        # Where Dagster cannot be asked, launch_attempts asks it when this run is over.
        if not _only_shown(was_cancelled):
            _fail_as_taken_away(context)
            raise
        stop_by_cancel(app.tracks, run_id, context.run.run_id)
        ended = supervisor.supervise(run_id, attempt_id)
        if ended is not None and ended.reason is not None:
            _tag(context, ending_tags(ended.reason))
            _only_shown(partial(_show_receipt, context, app, ended))
        raise


def _has_another_run(context: AssetExecutionContext, orchestrator: Orchestrator) -> bool:
    """Whether another Dagster run of this attempt lives."""
    runs = orchestrator.runs_of_attempt(context.partition_key)
    own = context.run.run_id
    return any(not run.is_finished and run.dagster_run_id != own for run in runs)


def _taken_over(app: App, ref: AttemptRef) -> str:
    """Say who supervises the attempt in the place of a Dagster run whose claim is not the newest."""
    _, attempt = find_attempt(app.tracks, ref)
    newest = attempt.claims[-1].body.dagster_run_id[:ID_CHARACTERS]
    return (
        f"Nothing is wrong with the attempt: Dagster run {newest} supervises it now, so this one ends. "
        "The training goes on."
    )


def _only_shown(work: Callable[[], T]) -> T | None:
    """Ask or tell Dagster; a database of its that is locked or away ends no supervisor."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001  # whatever a database raises
        _log.warning("Dagster's storage did not answer: %s", clean_text(str(error)))
        return None


def _tag(context: AssetExecutionContext, tags: Mapping[str, str]) -> None:
    _only_shown(partial(context.instance.add_run_tags, context.run.run_id, dict(tags)))


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
        if reason:
            sentence = TerminationReason(reason).sentence
            raise Failure(
                f"The supervisor's own pod was taken away ({reason}): {sentence} The attempt goes on: "
                "its gang trains, and the next Dagster run adopts it.",
                allow_retries=False,
            )
        time.sleep(TAKEN_AWAY_LOOK_S)


def _show_commits(
    context: AssetExecutionContext,
    prefix: Prefix,
    attempt_id: int,
    shown: set[str],
    state: RunState,
) -> bool:
    """Show the attempt's checkpoints while training goes on; False where SHOW_S_MAX did not suffice.

    Each once: the partition first, then its event. shown: those that Dagster is known to have.
    """
    give_up_at = time.monotonic() + SHOW_S_MAX
    partitions = prefix.name(names.CHECKPOINT_PARTITIONS)
    for commit in state.checkpoints:
        key = partition_key(commit.ref)
        if commit.ref.attempt_id != attempt_id or key in shown:
            continue
        if time.monotonic() >= give_up_at:
            return False
        if not context.instance.has_dynamic_partition(partitions, key):
            context.instance.add_dynamic_partitions(partitions, [key])
            event = checkpoint_report(state, commit).event
            made = asset_key(prefix, names.CHECKPOINT_PARTITIONS)
            context.log_event(AssetMaterialization(asset_key=made, **event))
        shown.add(key)
    return True


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
    key, check = asset_key(app.settings.prefix, names.RECEIPTS), ending_result(ended)
    context.log_event(
        AssetMaterialization(
            asset_key=key,
            partition=context.partition_key,
            metadata=metadata,
            tags=app.settings.prefix.receipt_tags,
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
        rules=rules,
        ledger=app.ledger,
        ui_url=find_ui_url(app.settings),
        prefix=app.settings.prefix,
        prices=prices,
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
