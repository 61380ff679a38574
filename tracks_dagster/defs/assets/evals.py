"""The evals asset, materialized by evaluating a checkpoint, and the promotions asset.

One partition is one eval of a checkpoint. Which evals are due, and their budget, is decided in the
track; this is what Dagster shows of it.
"""

from dataclasses import replace

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSpec,
    DataVersion,
    Failure,
    MaterializeResult,
    ResourceParam,
    asset,
    define_asset_job,
    in_process_executor,
)

from tracks_dagster.attempts.effects.sharing import devices_since, lease_for
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.defs.site import AssetJob, Site
from tracks_dagster.evals.effects.running import find_eval, run_eval
from tracks_dagster.review.effects.metadata import eval_metadata, result_sha256
from tracks_dagster.scheduling.effects.leases import DevicePool
from tracks_dagster.track import names
from tracks_dagster.track.errors import GangError, InvalidInput, NoDevices
from tracks_dagster.track.names import eval_attempt_key, parse_eval_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.evals import needs_device
from tracks_dagster.wiring import App


def evals(site: Site) -> AssetsDefinition:
    """Return the asset."""
    named = {dataset for each in site.trained for dataset in site.heldout_of(each)}
    heldout = sorted(map(site.dataset_key, named))
    return asset(
        key=site.key(names.EVAL_PARTITIONS),
        partitions_def=site.partitions(names.EVAL_PARTITIONS),
        deps=[site.shown_after(names.CHECKPOINT_PARTITIONS), *heldout],
        group_name="evaluation",
        kinds={"python", "pytorch"},
        owners=["team:training"],
        code_version="1",
    )(site.body(_evals))


def _evals(
    context: AssetExecutionContext,
    app: ResourceParam[App],
    orchestrator: ResourceParam[Orchestrator],
) -> MaterializeResult[None]:
    """One eval of a checkpoint: `RUN/SUITE@STEP`, measured on held-out data.

    Green: the metrics below were measured on exactly the manifest, snapshot, suite version and seed
    named beside them. Red: the evaluator failed, in the words of the error; training is untouched,
    and run_evals tries again, at most 3 times for a checkpoint; a run whose evaluator never started is
    not counted. After that correct the cause and ask again with `tracks eval RUN@STEP`, or let the eval
    go with `tracks waive RUN SUITE --why …`. Materializing an eval that is done shows its
    result again and measures nothing.
    """
    try:
        run_id, eval_id = parse_eval_key(context.partition_key)
        state = app.tracks.run(run_id)
        opened = find_eval(state, eval_id, _number(context)).opened
    except InvalidInput as error:
        raise Failure(str(error), allow_retries=False) from error
    key = eval_attempt_key(run_id, eval_id, opened.number)
    devices: DevicePool | None = None
    if state.declared.compute.launcher == names.LOCAL and needs_device(state, opened):
        devices = devices_since(app.devices, key, context.run.tags.get(names.TAG_LEASE))
    try:
        if devices is not None:
            world = replace(app.world(app.usable_policy()[0], orchestrator), devices=devices)
            job = names.EVALUATE_CHECKPOINT_JOB
            lease_for(world, key, by=job, dagster_run_id=context.run.run_id)
        ended = run_eval(
            app.tracks,
            app.evaluator,
            run_id,
            eval_id,
            opened.number,
            dagster_run_id=context.run.run_id,
            devices=devices,
        )
    except NoDevices as error:  # nothing is wrong: run_evals asks for another one in its turn
        context.instance.add_run_tags(context.run.run_id, {names.TAG_NO_DEVICES: "true"})
        raise Failure(str(error), allow_retries=False) from error
    except GangError as error:
        raise Failure(f"Not evaluated yet: {error}", allow_retries=False) from error
    metadata = eval_metadata(opened, ended)
    if ended.reason != TerminationReason.COMPLETED:
        raise Failure(f"{ended.reason}: {ended.message}", metadata=metadata, allow_retries=False)
    return MaterializeResult(metadata=metadata, data_version=DataVersion(result_sha256(ended)))


def evaluate_checkpoint(site: Site) -> AssetJob:
    """Return the job."""
    return define_asset_job(
        site.name(names.EVALUATE_CHECKPOINT_JOB),
        selection=[site.key(names.EVAL_PARTITIONS)],
        executor_def=in_process_executor,  # one step: the evaluator is a process of its own
        # An eval has a budget of its own in the track; Dagster's retries would add to it.
        tags=names.NO_RETRIES,
        description="Runs one attempt at one eval; requested by run_evals.",
    )


def _number(context: AssetExecutionContext) -> int | None:
    """Return which attempt at the eval the sensor asked for; None, the newest, for a person."""
    key = context.run.tags.get(names.TAG_EVAL)
    return None if key is None else int(key.rpartition("/")[2])


def promotions(site: Site) -> AssetSpec:
    """Return the asset. Nothing computes it: a promotion is a record in a run's track, which run_evals
    reports to Dagster."""
    return AssetSpec(
        key=site.key(names.PROMOTIONS),
        deps=[site.shown_after(names.EVAL_PARTITIONS)],
        group_name="evaluation",
        kinds={"pytorch"},
        owners=["team:training"],
        description=(
            "Checkpoints that were given an alias, the newest event last: manifest sha256, the eval "
            "and its metrics, the threshold, and who decided. A refused promotion is an observation "
            "with what spoke against it. Never red. To promote by hand use `tracks promote "
            'RUN@STEP --alias NAME --why "…"`; the ledger knows who holds an alias now.'
        ),
    )
