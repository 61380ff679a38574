"""`tracks goodput`, `tracks slo` and `tracks sql`: what the ledger counts, and one SELECT over it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, as_of_option, parse_as_of, print_json, print_table
from tracks_dagster.reading import open_ledger_to_read, open_store_to_read
from tracks_dagster.review.effects.goodput import KEYS, read_goodput
from tracks_dagster.review.effects.goodput_text import format_goodput
from tracks_dagster.review.effects.slo import SloReport, read_slo
from tracks_dagster.review.explain.sections import clock_time
from tracks_dagster.review.slo import Judged, Waits, missed
from tracks_dagster.scheduling.policy import SchedulingPolicy
from tracks_dagster.settings import Settings, load_policy, load_prices
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, TracksError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.text import units

END_S_MAX = 5.0  # that a query which is interrupted may take to end; then it is killed
SQL_BYTES_MAX = 4 * 1024**3  # of memory, of a query with its answer


@click.command("goodput")
@click.option(
    "--by",
    type=click.Choice(list(KEYS)),
    default="reason",
    show_default=True,
    help="What to group by.",
)
@click.option(
    "--last", metavar="7d", help=f"Attempts that ended in this time: {units.DURATION_WORDS}."
)
@as_of_option
@click.option("--family", help="Only this model family.")
@as_json
def goodput_command(
    by: str, last: str | None, as_of: str | None, family: str | None, as_json: bool
) -> None:
    """Show where the device hours went.

    By bucket, by reason (worst waste first), retries without a kept step, how often training was
    interrupted and how fast it resumed.

    With a price table (prices.yaml in TRACKS_HOME, or the file in TRACKS_PRICES) also in money.
    """
    settings = Settings.from_environment()
    ledger = open_ledger_to_read(settings)
    goodput = read_goodput(
        ledger,
        as_of=_moment(as_of, datetime.now(UTC)),
        last=_last(last),
        by=by,
        family=family,
        prices=load_prices(settings),
        store=None if settings.is_archive else _store(settings),
    )
    print_json(to_json(goodput)) if as_json else click.echo(format_goodput(goodput))


def _store(settings: Settings) -> ObjectStore | None:
    """Return the store, where it can be opened: the ledger answers without it."""
    try:
        return open_store_to_read(settings)
    except TracksError:
        return None


def _last(text: str | None) -> timedelta | None:
    try:
        return None if text is None else timedelta(seconds=units.duration_s(text))
    except ValueError as error:
        raise InvalidInput(f"--last: {error}") from error


def _moment(text: str | None, now: datetime) -> datetime:
    """Return the time that a person wrote, or now; raises InvalidInput for one that has not come."""
    at = parse_as_of(text) or now
    if at > now:
        raise InvalidInput(
            f"--as-of {text!r} has not come yet; leave it out for what is known now."
        )
    return at


@click.command("slo")
@click.option(
    "--last",
    metavar="7d",
    default="7d",
    show_default=True,
    help=f"What was over in this time: {units.DURATION_WORDS}.",
)
@as_of_option
@as_json
@click.pass_context
def slo_command(ctx: click.Context, last: str, as_of: str | None, as_json: bool) -> None:
    """Show how long each workload class waited, beside the policy's objectives.

    queue: until the first rank started; completion: from the declaration to success; recovery: from an
    end that nobody meant to the next restore. Evals are the class eval. What is not over counts once it
    is late.

    Exit code 1 while a class misses: its 95th percentile is above the objective.
    """
    settings = Settings.from_environment()
    policy = load_policy(settings).scheduling
    report = read_slo(
        open_ledger_to_read(settings),
        policy,
        as_of=_moment(as_of, datetime.now(UTC)),
        last=_last(last) or timedelta(),
    )
    print_json(_slo_json(report)) if as_json else _print_slo(report, policy)
    ctx.exit(BAD_NEWS if missed(report.judged) else 0)


def _slo_json(report: SloReport) -> Json:
    return {
        "since": report.since,
        "as_of": report.as_of,
        "classes": [
            {
                "workload_class": each.workload_class,
                "wait": each.wait.value,
                "objective_s": each.objective_s,
                "is_missed": each.is_missed,
                "count": each.waits.count if each.waits else 0,
                "still": each.waits.still if each.waits else 0,
                "late": each.waits.late if each.waits else 0,
                "p50_s": each.waits.p50_s if each.waits else None,
                "p95_s": each.waits.p95_s if each.waits else None,
                "longest_s": each.waits.longest_s if each.waits else None,
                "longest_run_id": each.waits.longest_run_id if each.waits else None,
            }
            for each in report.judged
        ],
    }


def _print_slo(report: SloReport, policy: SchedulingPolicy) -> None:
    click.echo(f"From {clock_time(report.since)} to {clock_time(report.as_of)}:")
    rows = [_slo_cells(each, each.waits) for each in report.judged if each.waits is not None]
    if rows:
        print_table(_SLO_TITLES, rows, right=_SLO_TITLES[2:])
    for each in missed(report.judged):
        click.echo(f"Missed: {each.sentence}.")
    for doubt in filter(None, (each.doubt for each in report.judged)):
        click.echo(f"Not judged: {doubt}.")
    measured = {each.workload_class for each in report.judged if each.waits is not None}
    idle = [name for name in policy.classes if name not in measured]
    if idle:
        click.echo(f"No work of {', '.join(idle)}.")


_SLO_TITLES = ("class", "wait", "count", "p50", "p95", "objective", "late")


def _slo_cells(each: Judged, waits: Waits) -> tuple[str, ...]:
    return (
        each.workload_class,
        each.wait.value,
        str(waits.count),
        units.about(waits.p50_s),
        units.about(waits.p95_s),
        "–" if each.objective_s is None else units.duration(each.objective_s),
        "–" if each.objective_s is None else str(waits.late),
    )


@click.command("sql")
@click.argument("query")
@as_json
def sql_command(query: str, as_json: bool) -> None:
    """Run QUERY, one SELECT over the ledger's tables and views, and print the rows.

    The tables: training_runs, training_attempts, checkpoints, evals, promotions, datasets,
    snapshots, notes. The views: attempt_time, run_time, waste_by_reason, dead_retries, budget_burn,
    interruptions, eval_lag. The same text runs on Postgres unchanged. Only functions that compute are
    allowed; the error about another one lists them.
    """
    # goodput, beside it, loads no database driver
    from tracks_dagster.cli.in_child import in_child
    from tracks_dagster.ledger.effects.database.engine import READ_S_MAX
    from tracks_dagster.ledger.effects.database.sql_query import QueryResult, run_sql

    settings = Settings.from_environment()
    open_ledger_to_read(
        settings
    )  # its error names what to do where there is none, or one of another version

    def answer() -> tuple[QueryResult, list[str]]:
        warnings: list[str] = []
        return run_sql(settings.ledger_url, query, warn=warnings.append), warnings

    (columns, rows), warnings = in_child(
        answer, "The query", seconds_max=READ_S_MAX + END_S_MAX, bytes_max=SQL_BYTES_MAX
    )
    for warning in warnings:
        click.echo(warning, err=True)
    plain = [[_plain(value) for value in row] for row in rows]
    if as_json:
        _check_names(columns)
        print_json([dict(zip(columns, row, strict=True)) for row in plain])
        return
    cells = (["" if value is None else str(value) for value in row] for row in plain)
    print_table(columns, cells)


def _check_names(columns: list[str]) -> None:
    """Raise InvalidInput where two columns have one name, of which an object of JSON keeps one."""
    twice = ", ".join(sorted(name for name, count in Counter(columns).items() if count > 1))
    if twice:
        raise InvalidInput(
            f"Two columns are named {twice}, and JSON can hold one of each: name them apart with `as`."
        )


def _plain(value: Json) -> Json:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return format_time(value)
    return value.isoformat() if isinstance(value, datetime) else value
