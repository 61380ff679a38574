"""Asks for the evals that runs owe, decides their promotion when the evals are settled, and shows every
decision on a promotion, a person's included."""

from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from datetime import timedelta
from typing import Any

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterInstance,
    MetadataValue,
    ResourceParam,
    RunRequest,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    sensor,
)

from tracks_dagster.attempts.effects.heartbeat import write_launches
from tracks_dagster.attempts.ports import Orchestrator
from tracks_dagster.defs.site import Site, asset_key
from tracks_dagster.evals.effects.running import find_eval
from tracks_dagster.evals.effects.tick import EvalRequest, EvalsOfRun, tick_evals
from tracks_dagster.ledger.effects.ticks import (
    Tick,
    TickPart,
    TimeSlice,
    run_parts,
    skip_reason,
    take_batch,
)
from tracks_dagster.projects.model_checks import check_model
from tracks_dagster.review.effects.explain.run import attempt_address
from tracks_dagster.review.effects.metadata import (
    eval_metadata,
    promotion_metadata,
    result_sha256,
)
from tracks_dagster.review.effects.picture import pictures
from tracks_dagster.scheduling.policy import EVAL
from tracks_dagster.settings import find_board_url, find_ui_url
from tracks_dagster.track import names
from tracks_dagster.track.bodies import PromotionDecided
from tracks_dagster.track.records import format_time, sha256_hex
from tracks_dagster.track.states.run_state import Dated, RunState
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wiring import App

LATE_EVERY = timedelta(hours=1)
LATE_AFTER = timedelta(minutes=5)  # of an end; until then its Dagster run may still show it
_RESULTS = (
    "select run_id, eval_id, number from evals where reason = 'completed' and ended_at < :before "
    "order by run_id, eval_id"
)
DECISIONS_MAX = 1000  # on promotions, the newest, that Dagster is asked for
SHOWN_MAX, PAGE = 2000, 200  # of its events, at once
EVENTS_MAX = 50  # in one tick: Dagster's storage takes 10 to 40 a second
_DECISIONS = (
    "select p.run_id, p.seq, p.alias, p.promoted, r.model_family as project from promotions p "
    "join training_runs r on r.run_id = p.run_id "
    "order by p.decided_at desc, p.run_id, p.seq desc limit :limit"
)
Event = AssetMaterialization | AssetObservation | AssetCheckEvaluation


def run_evals(site: Site) -> SensorDefinition:
    """Return the sensor."""

    def run_evals(
        context: SensorEvaluationContext,
        app: ResourceParam[App],
        orchestrator: ResourceParam[Orchestrator],
    ) -> SensorResult:
        return _tick(site, context, app, orchestrator)

    return sensor(
        name=site.name(names.RUN_EVALS),
        job_name=site.name(names.EVALUATE_CHECKPOINT_JOB),
        minimum_interval_seconds=site.every_s(),
        default_status=site.sensor_status,
        description=(
            "Requests a Dagster run for every eval that a run with all its steps owes, or that a "
            "person asked for with `tracks eval`, tries a failed one again within its budget, and "
            "decides the promotion when the evals are settled. Off: runs with all their steps wait for "
            "their evals and are not finished."
        ),
    )(site.body(run_evals))


def _tick(
    site: Site, context: SensorEvaluationContext, app: App, orchestrator: Orchestrator
) -> SensorResult:
    """Do one tick; its run keys, which the tracks give, make a repeated tick harmless."""
    policy, no_policy = app.usable_policy()
    if no_policy is not None:
        context.log.error(app.redact(no_policy))
    world = app.world(policy, orchestrator)
    part = TickPart(
        name="evals",
        work=lambda after: tick_evals(
            world,
            TimeSlice(after=after),
            evaluator=app.evaluator,
            is_promoting=no_policy is None,
        ),
    )
    promotions = TickPart(
        name="promotions", work=lambda seen: _promotions(site, context, app, seen)
    )
    late = TickPart(name="late", work=lambda after: _late(context, app, after), every=LATE_EVERY)
    ticks, cursor = run_parts((part, promotions, late), context.cursor, app.now())
    tick: Tick[EvalsOfRun] = ticks[part.name]
    context.update_cursor(cursor)
    write_launches(app.store, names.RUN_EVALS, [each for run in tick.done for each in run.pending])
    unseen = (*ticks[promotions.name].problems, *ticks[late.name].problems)
    for problem in (*tick.problems, *unseen):
        context.log.warning(app.redact(problem))
    requests = [request for run in tick.done for request in run.requests]
    keys = [request.eval_key for request in requests]
    priority = policy.scheduling.class_of(EVAL).priority
    partitions = app.settings.prefix.name(names.EVAL_PARTITIONS)
    return SensorResult(
        run_requests=[_run_request(app, request, priority=priority) for request in requests],
        skip_reason=None if keys else app.redact(skip_reason(tick, idle="no run owes an eval")),
        dynamic_partitions_requests=[AddDynamicPartitionsRequest(partitions, keys)],
        asset_events=[*ticks[promotions.name].done, *ticks[late.name].done],
    )


def _run_request(app: App, request: EvalRequest, *, priority: int) -> RunRequest:
    tags = {names.TAG_TRAINING_RUN: request.run_id, names.TAG_EVAL: request.attempt_key}
    tags[names.TAG_PROJECT] = app.tracks.run(request.run_id).declared.model_family
    tags[names.TAG_PRIORITY] = str(priority)
    if request.lease_seq is None:
        tags[names.TAG_NO_LEASE] = "true"
    else:
        tags[names.TAG_LEASE] = str(request.lease_seq)
    return RunRequest(run_key=request.run_key, partition_key=request.eval_key, tags=tags)


def _late(
    context: SensorEvaluationContext, app: App, after: str | None
) -> Tick[AssetMaterialization]:
    """Show the evals with a result that Dagster lacks: their Dagster run died before it was stored."""
    prefix = app.settings.prefix
    evals, partitions = (
        asset_key(prefix, names.EVAL_PARTITIONS),
        prefix.name(names.EVAL_PARTITIONS),
    )
    shown = context.instance.get_materialized_partitions(evals)
    there = set(context.instance.get_dynamic_partitions(partitions)) - shown
    rows = app.ledger.query(_RESULTS, {"before": format_time(app.now() - LATE_AFTER)})
    late = {key: r for r in rows if (key := names.eval_key(r["run_id"], r["eval_id"])) in there}

    def look(key: str) -> Tick[AssetMaterialization]:
        row = late[key]
        each = find_eval(app.tracks.run(row["run_id"]), row["eval_id"], row["number"])
        if each.ended is None:
            return Tick()
        made = AssetMaterialization(
            asset_key=evals,
            partition=key,
            metadata=eval_metadata(each.opened, each.ended),
            tags={names.TAG_DATA_VERSION: result_sha256(each.ended)},
        )
        return Tick(done=(made,))

    return take_batch(list(late), look, after=after, count_max=EVENTS_MAX)


def _promotions(
    site: Site, context: SensorEvaluationContext, app: App, seen: str | None
) -> Tick[Event]:
    """Show the decisions on promotions that Dagster lacks, oldest first: the rule's and a person's.

    seen: a digest of the decisions of which Dagster was seen to have every one, and of the hour: so it
    is asked again where there is a new one, and once an hour.
    """
    rows = app.ledger.query(_DECISIONS, {"limit": DECISIONS_MAX})
    hour = f"{app.now():%Y-%m-%dT%H}"
    digest = sha256_hex(repr([hour, *(tuple(row.values()) for row in rows)]).encode())
    if not rows or digest == seen:
        return Tick(cut_at=digest)
    promotions = site.key(names.PROMOTIONS)
    wanted = [(row, asset) for row in reversed(rows) for asset in (promotions, *_models(site, row))]
    there = {asset: _shown(context.instance, asset) for asset in {each for _, each in wanted}}
    missing = [
        (row, asset) for row, asset in wanted if (row["run_id"], row["seq"]) not in there[asset]
    ]
    events: list[Event] = []
    problems: list[str] = []
    for row, asset in missing:
        if len(events) >= EVENTS_MAX:
            break
        try:
            events += _decision(site, app, row, asset, there[asset])
        except Exception as error:  # noqa: BLE001 - of that run alone
            why = problem_of(error)
            problems.append(f"{row['run_id']}: its promotion is not shown yet: {why}")
    return Tick(
        done=tuple(events), problems=tuple(problems), cut_at=digest if not missing else seen
    )


def _decision(
    site: Site, app: App, row: Mapping[str, Any], asset: AssetKey, there: Set[tuple[Any, ...]]
) -> list[Event]:
    """Return what an asset shows of a decision: the checks of a model, then the event; nothing where
    that is among `there`, by a version before."""
    state = app.tracks.run(row["run_id"])
    made = next(each for each in state.promotions if each.seq == row["seq"])
    event = _event(asset, row["run_id"], made)
    if _identity(event.metadata, is_of_before=True) in there:
        return []
    if asset == site.key(names.PROMOTIONS):
        return [event]
    event = event.with_metadata({**event.metadata, **_of_model(app, state, made.body)})
    return [*_checks(site, asset, state, made), event]


def _models(site: Site, row: Mapping[str, Any]) -> tuple[AssetKey, ...]:
    """Return the asset of the model that a decision made; none for a refusal, another deployment's
    project, and an alias that its project's file does not name."""
    project = next((each for each in site.trained if each.name == row["project"]), None)
    if project is None or not row["promoted"] or row["alias"] not in site.aliases(project):
        return ()
    return (site.model_key(project, row["alias"]),)


def _of_model(app: App, state: RunState, decided: PromotionDecided) -> dict[str, Any]:
    """Return what a model shows beside the decision: where it is from, and the run's curves."""
    ref, settings = decided.checkpoint, app.settings
    attempt, ui_url = state.attempt(ref.attempt_id), find_ui_url(settings)
    found: dict[str, Any] = {"step": ref.step, "attempt": ref.attempt_id}
    if ui_url and attempt is not None:
        address = attempt_address(state.run_id, attempt, ui_url, settings.prefix)
        found["look_up/receipt"] = MetadataValue.url(address)
    if board_url := find_board_url(settings):
        found["look_up/live"] = MetadataValue.url(f"{board_url}/runs/{state.run_id}")
    with suppress(Exception):  # a journal that cannot be read hides no promotion
        curves = pictures(app.tracks, state, settings.cache)
        found |= {name: MetadataValue.md(each) for name, each in curves.items()}
    return found


def _checks(
    site: Site, model: AssetKey, state: RunState, made: Dated[PromotionDecided]
) -> Iterator[AssetCheckEvaluation]:
    """Yield what a model's checks say of the checkpoint that was promoted."""
    project = next(each for each in site.trained if each.name == state.declared.model_family)
    for each in check_model(project, state, made.body):
        yield AssetCheckEvaluation(
            asset_key=model,
            check_name=each.name,
            passed=each.passed,
            severity=AssetCheckSeverity.WARN,
            description=each.words,
            metadata={},
        )


def _shown(instance: DagsterInstance, asset: AssetKey) -> Set[tuple[Any, ...]]:
    """Return which decisions Dagster has, by run and record; of a version before by what it has."""
    of_it = AssetRecordsFilter(asset_key=asset)
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


def _event(
    asset: AssetKey, run_id: str, made: Dated[PromotionDecided]
) -> AssetMaterialization | AssetObservation:
    """A promotion is something made; a refusal only says what was found."""
    metadata = promotion_metadata(run_id, made)
    if not made.body.promoted:
        return AssetObservation(asset_key=asset, metadata=metadata)
    return AssetMaterialization(
        asset_key=asset,
        metadata=metadata,
        tags={names.TAG_DATA_VERSION: made.body.checkpoint.manifest_sha256},
    )
