"""Asks for the evals that runs owe, decides their promotion when the evals are settled, and shows every
decision on a promotion, whoever made it."""

from collections.abc import Mapping, Set
from typing import Any

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterInstance,
    DefaultSensorStatus,
    MetadataValue,
    ResourceParam,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from tracks_dagster.attempts.effects.eval_tick import EvalRequest, EvalsOfRun, tick_evals
from tracks_dagster.attempts.effects.heartbeat import write_launches
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.clean_errors import without_secrets
from tracks_dagster.ledger.effects.ticks import Tick, TickPart, TimeSlice, run_parts, skip_reason
from tracks_dagster.review.effects.metadata import promotion_metadata
from tracks_dagster.scheduling.policy import EVAL
from tracks_dagster.track import names
from tracks_dagster.track.bodies import PromotionDecided
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.run_state import Dated
from tracks_dagster.wiring import App

DECISIONS_MAX = 1000  # on promotions, the newest, that Dagster is asked for
SHOWN_MAX, PAGE = 2000, 200  # of its events, at once
EVENTS_MAX = 50  # in one tick: Dagster's storage takes 10 to 40 a second
_DECISIONS = (
    "select run_id, seq from promotions order by decided_at desc, run_id, seq desc limit :limit"
)


@sensor(
    name=names.RUN_EVALS,
    job_name=names.EVALUATE_CHECKPOINT_JOB,
    minimum_interval_seconds=5,
    default_status=DefaultSensorStatus.RUNNING,
    description=(
        "Requests a Dagster run for every eval that a run with all its steps owes, or that a person "
        "asked for with `tracks eval`, tries a failed one again within its budget, and decides the "
        "promotion when the evals are settled. Off: runs with all their steps wait for their evals "
        "and are not finished."
    ),
)
@without_secrets
def run_evals(
    context: SensorEvaluationContext,
    app: ResourceParam[App],
    orchestrator: ResourceParam[Orchestrator],
) -> SensorResult:
    """Do one tick; its run keys, which the tracks give, make a repeated tick harmless."""
    policy, no_policy = app.usable_policy()
    if no_policy is not None:
        context.log.error(app.redact(no_policy))
    world = app.world(policy, orchestrator)
    part = TickPart(
        name="evals",
        work=lambda after: tick_evals(
            world, TimeSlice(after=after), is_promoting=no_policy is None
        ),
    )
    promotions = TickPart(name="promotions", work=lambda seen: _promotions(context, app, seen))
    ticks, cursor = run_parts((part, promotions), context.cursor, app.now())
    tick: Tick[EvalsOfRun] = ticks[part.name]
    context.update_cursor(cursor)
    write_launches(app.store, names.RUN_EVALS, [each for run in tick.done for each in run.pending])
    for problem in (*tick.problems, *ticks[promotions.name].problems):
        context.log.warning(app.redact(problem))
    requests = [request for run in tick.done for request in run.requests]
    keys = [request.eval_key for request in requests]
    priority = policy.scheduling.class_of(EVAL).priority
    return SensorResult(
        run_requests=[_run_request(request, priority=priority) for request in requests],
        skip_reason=None if keys else app.redact(skip_reason(tick, idle="no run owes an eval")),
        dynamic_partitions_requests=[AddDynamicPartitionsRequest(names.EVAL_PARTITIONS, keys)],
        asset_events=ticks[promotions.name].done,
    )


def _run_request(request: EvalRequest, *, priority: int) -> RunRequest:
    tags = {names.TAG_TRAINING_RUN: request.run_id, names.TAG_EVAL: request.attempt_key}
    tags[names.TAG_PRIORITY] = str(priority)
    if request.lease_seq is None:
        tags[names.TAG_NO_LEASE] = "true"
    else:
        tags[names.TAG_LEASE] = str(request.lease_seq)
    return RunRequest(run_key=request.run_key, partition_key=request.eval_key, tags=tags)


def _promotions(
    context: SensorEvaluationContext, app: App, seen: str | None
) -> Tick[AssetMaterialization | AssetObservation]:
    """Show the decisions on promotions that Dagster lacks, oldest first, whoever made them.

    seen: a digest of the decisions of which Dagster was seen to have every one, and of the hour: so it
    is asked again where there is a new one, and once an hour.
    """
    rows = app.ledger.query(_DECISIONS, {"limit": DECISIONS_MAX})
    hour = f"{app.now():%Y-%m-%dT%H}"
    digest = sha256_hex(repr([hour, *(tuple(row.values()) for row in rows)]).encode())
    if not rows or digest == seen:
        return Tick(cut_at=digest)
    there = _shown(context.instance)
    missing = [row for row in reversed(rows) if (row["run_id"], row["seq"]) not in there]
    events: list[AssetMaterialization | AssetObservation] = []
    problems: list[str] = []
    for row in missing[:EVENTS_MAX]:
        try:
            made = app.tracks.run(row["run_id"]).promotions
        except TracksError as error:
            problems.append(f"{row['run_id']}: its promotion is not shown yet: {error}")
            continue
        event = next(_event(row["run_id"], each) for each in made if each.seq == row["seq"])
        if _identity(event.metadata, is_of_before=True) not in there:
            events.append(event)
    return Tick(
        done=tuple(events), problems=tuple(problems), cut_at=digest if not missing else seen
    )


def _shown(instance: DagsterInstance) -> Set[tuple[Any, ...]]:
    """Return which decisions Dagster has, by run and record; of a version before by what it has."""
    of_it = AssetRecordsFilter(asset_key=AssetKey(names.PROMOTIONS))
    found: set[tuple[Any, ...]] = set()
    for fetch in (instance.fetch_materializations, instance.fetch_observations):
        cursor, count = None, 0
        while count < SHOWN_MAX:
            page = fetch(of_it, limit=PAGE, cursor=cursor)
            for each in page.records:
                made = each.asset_materialization or each.asset_observation
                found.add(_identity({} if made is None else made.metadata))
            cursor, count = page.cursor, count + len(page.records)
            if not page.has_more:
                break
    return found


def _identity(
    metadata: Mapping[str, MetadataValue[Any]], *, is_of_before: bool = False
) -> tuple[Any, ...]:
    """Return what tells a decision from the others; an event of a version before names no record."""
    words: tuple[str, ...] = ("training_run_id", "record")
    if "record" not in metadata or is_of_before:
        words = ("manifest_sha256", "alias", "why")
    return tuple(metadata[word].value for word in words if word in metadata)


def _event(run_id: str, made: Dated[PromotionDecided]) -> AssetMaterialization | AssetObservation:
    """A promotion is something made; a refusal only says what was found."""
    key, metadata = AssetKey(names.PROMOTIONS), promotion_metadata(run_id, made)
    if not made.body.promoted:
        return AssetObservation(asset_key=key, metadata=metadata)
    return AssetMaterialization(
        asset_key=key,
        metadata=metadata,
        tags={names.TAG_DATA_VERSION: made.body.checkpoint.manifest_sha256},
    )
