"""`tracks review`: one day over all runs, as the `incident_review` asset shows it."""

from __future__ import annotations

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, print_json, print_table
from tracks_dagster.reading import open_ledger_to_read
from tracks_dagster.review.daily import Review, parse_day
from tracks_dagster.review.daily_text import headline, numbers, sections
from tracks_dagster.review.effects.daily import review_day
from tracks_dagster.settings import Settings, load_prices
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json
from tracks_dagster.wiring import utc_now


@click.command("review")
@click.option(
    "--day",
    default="yesterday",
    show_default=True,
    metavar="DATE",
    help="Day in UTC: 2026-01-31, today or yesterday.",
)
@as_json
@click.pass_context
def review_command(ctx: click.Context, day: str, as_json: bool) -> None:
    """Show what ended on a day, what it cost, and what needs a person.

    Exit code 1 while a failed attempt of the day has no verdict or a promoted checkpoint has no eval.
    """
    now = utc_now()
    asked = parse_day(day, now=now)
    settings = Settings.from_environment()
    ledger, prices = open_ledger_to_read(settings), load_prices(settings)
    review = review_day(ledger, asked, now=now, prices=prices)
    print_json(_json(review)) if as_json else _print(review)
    ctx.exit(BAD_NEWS if review.is_bad_news else 0)


def _json(review: Review) -> Json:
    return {
        **to_json(review),
        "day": review.day.isoformat(),
        "headline": headline(review),
        "numbers": numbers(review),
    }


def _print(review: Review) -> None:
    click.echo(headline(review))
    if review.is_over and not review.attempt_count:
        click.echo("`tracks review --day today` shows the running day so far.")
    for section in sections(review):
        click.echo(f"\n{section.title.upper()}  {section.intro}")
        print_table(section.columns, section.rows)
        if section.left_out:
            click.echo(f"{section.left_out:,} more are not shown.")
