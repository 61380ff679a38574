"""`tracks blast`: everything that came of a source, what of it is in use, and what is clean and why."""

from __future__ import annotations

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, print_json
from tracks_dagster.cli.times import as_of_option, parse_as_of
from tracks_dagster.holds.effects.blast import blast
from tracks_dagster.holds.effects.lineage_text import blast_lines
from tracks_dagster.holds.lineage import parse_thing
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json


@click.command("blast")
@click.argument("source", metavar="KIND:NAME")
@as_of_option
@as_json
@click.pass_context
def command(ctx: click.Context, source: str, as_of: str | None, as_json: bool) -> None:
    """Show what descends from a source, and what of it is in use now.

    \b
    snapshot:DATASET@ID     what used samples of it
    checkpoint:RUN@STEP     what resumed from it
    node:NAME               what ran on it
    code:COMMIT             what ran it; also a version or an environment
    attempt:RUN/aNN         what it worked on

    Ids may be shortened. Exit code 1 when anything promoted descends from it.
    """
    thing, until = parse_thing(source), parse_as_of(as_of)
    settings = Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    told = blast(tracks, ledger, thing, as_of=until)
    if as_json:
        print_json(to_json(told))
    else:
        click.echo("\n".join(blast_lines(told, of_archive=settings.is_archive)))
    ctx.exit(BAD_NEWS if told.is_promoted else 0)
