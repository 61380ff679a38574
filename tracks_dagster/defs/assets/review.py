"""The incident_review asset: one partition a day, what ended, what it cost and what needs a person.

It reads the ledger and nothing else; `tracks review` prints the same in a terminal. Its two checks stay
red until somebody has done something about what they name, and look again at each materialization.
"""

import warnings
from datetime import date, timedelta

from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetsDefinition,
    DailyPartitionsDefinition,
    MaterializeResult,
    MetadataValue,
    PreviewWarning,
    ResourceParam,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    asset,
    define_asset_job,
    in_process_executor,
    schedule,
)

from tracks_dagster.defs.site import AssetJob, Site
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.review.daily_text import (
    describe_unevaluated,
    describe_unexplained,
    headline,
    markdown,
    numbers,
)
from tracks_dagster.review.effects.daily import review_day
from tracks_dagster.settings import load_prices
from tracks_dagster.track import names
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wiring import App

FIRST_DAY = "2026-01-01"  # older days: `tracks review --day DATE`
EVERY_NIGHT = "10 0 * * *"  # UTC; the day is over, and what ended in its last minutes is recorded

HAS_VERDICT = "every_failed_attempt_has_a_verdict"
HAS_EVAL = "every_promoted_checkpoint_has_an_eval"

# The running day has a partition as well, so that an incident need not wait for midnight.
DAYS = DailyPartitionsDefinition(start_date=FIRST_DAY, timezone="UTC", end_offset=1)


def _check(site: Site, name: str, description: str) -> AssetCheckSpec:
    """Return a check of each day apart: a good day must not hide a bad one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PreviewWarning)  # checks by partition are new in Dagster
        key = site.key(names.INCIDENT_REVIEW)
        return AssetCheckSpec(name, asset=key, description=description, partitions_def=DAYS)


def incident_review(site: Site) -> AssetsDefinition:
    """Return the asset."""
    read = (names.ATTEMPT_PARTITIONS, names.EVAL_PARTITIONS)
    return asset(
        key=site.key(names.INCIDENT_REVIEW),
        partitions_def=DAYS,
        deps=[*map(site.shown_after, read)],
        check_specs=[
            _check(
                site,
                HAS_VERDICT,
                "Red while a failed attempt of the day ended as `unknown`, or with a confidence of 0.",
            ),
            _check(
                site,
                HAS_EVAL,
                "Red while a checkpoint promoted on the day holds its alias without a completed eval "
                "of the same bytes.",
            ),
        ],
        group_name="review",
        kinds={"python", "sql"},
        owners=["team:training"],
        code_version="1",
    )(site.body(_incident_review))


def _incident_review(context: AssetExecutionContext, app: ResourceParam[App]) -> MaterializeResult:  # type: ignore[type-arg]  # beside checks Dagster knows the bare class only
    """What happened on a day (UTC), over all runs: failures first, interruptions summed, what it cost.

    Made every night for the day before; the running day can be materialized at any time, and any day
    again: it is read from the ledger again, so that corrected verdicts and later decisions show.
    Open `review` for the tables; the numbers are plotted over the days. Red checks name the attempts
    or checkpoints that they mean and what to do; nothing stops because of them. In a terminal:
    `tracks review --day DATE`.
    """
    day = date.fromisoformat(context.partition_key)
    review = review_day(app.ledger, day, now=app.now(), prices=_usable_prices(context, app))
    context.log.info(headline(review))
    return MaterializeResult(
        metadata={
            "headline": headline(review),
            "review": MetadataValue.md(markdown(review)),
            **numbers(review),
        },
        check_results=[
            _result(HAS_VERDICT, review.unexplained_count, describe_unexplained(review)),
            _result(HAS_EVAL, review.unevaluated_count, describe_unevaluated(review)),
        ],
    )


def _usable_prices(context: AssetExecutionContext, app: App) -> Prices | None:
    """Return the price table; None where there is none, or one with an error: a day is reviewed all
    the same."""
    try:
        return load_prices(app.settings)
    except SettingsError as error:
        context.log.error(app.redact(str(error)))
        return None


def _result(name: str, count: int, words: str) -> AssetCheckResult:
    return AssetCheckResult(
        check_name=name,
        passed=not count,
        severity=AssetCheckSeverity.ERROR,
        description=words,
        metadata={"count": count},
    )


def review_incidents(site: Site) -> AssetJob:
    """Return the job."""
    return define_asset_job(
        site.name(names.REVIEW_JOB),
        selection=[site.key(names.INCIDENT_REVIEW)],
        executor_def=in_process_executor,  # one short step
        description=(
            "Reviews a day; requested every night, and by people for the running or an old day."
        ),
    )


def review_every_day(site: Site) -> ScheduleDefinition:
    """Return the schedule."""
    return schedule(
        name=site.name(names.REVIEW_DAILY),
        job_name=site.name(names.REVIEW_JOB),
        cron_schedule=EVERY_NIGHT,
        execution_timezone="UTC",
        default_status=site.schedule_status,
        description=(
            "Reviews the day that is over, ten minutes after midnight UTC. Off: no review is made by "
            "itself; `tracks review` prints the same at any time."
        ),
    )(_requested)


def _requested(context: ScheduleEvaluationContext) -> RunRequest:
    """Request the review of the day before; a repeated tick requests the same one."""
    day = (context.scheduled_execution_time - timedelta(days=1)).date().isoformat()
    return RunRequest(run_key=day, partition_key=day)
