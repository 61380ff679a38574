"""`tracks goodput`: where the device hours went, and what failures cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from tracks_dagster.cli.common import as_json, print_json
from tracks_dagster.cli.times import as_of_option, parse_as_of
from tracks_dagster.reading import open_ledger_to_read
from tracks_dagster.review.effects.goodput.read import KEYS, read_goodput
from tracks_dagster.review.effects.goodput.text import goodput_text
from tracks_dagster.settings import Settings, load_prices
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text import units


@click.command("goodput")
@click.option(
    "--by", type=click.Choice(list(KEYS)), default="reason", show_default=True, help="Group by."
)
@click.option(
    "--last", metavar="7d", help=f"Attempts that ended in so much time: {units.DURATION_WORDS}."
)
@as_of_option
@click.option("--family", help="Of this model family only.")
@as_json
def command(
    by: str, last: str | None, as_of: str | None, family: str | None, as_json: bool
) -> None:
    """Show where the device hours went: by bucket, by reason the worst waste first, retries that came
    to nothing, how often training was interrupted and how fast it came back.

    With a price table (prices.yaml in TRACKS_HOME, or the file that TRACKS_PRICES names) in money too.
    """
    settings = Settings.from_environment()
    told = read_goodput(
        open_ledger_to_read(settings),
        as_of=_moment(as_of, datetime.now(UTC)),
        last=_last(last),
        by=by,
        family=family,
        prices=load_prices(settings),
    )
    print_json(to_json(told)) if as_json else click.echo(goodput_text(told))


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
