"""`tracks lineage`: what a thing rests on, and what came of it."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import as_json, print_json
from tracks_dagster.cli.times import as_of_option, parse_as_of
from tracks_dagster.holds.effects.descent import ancestors, descendants
from tracks_dagster.holds.effects.holds import quarantined_sources
from tracks_dagster.holds.effects.lineage_text import ancestors_lines, descendants_lines
from tracks_dagster.holds.effects.things import find_exact
from tracks_dagster.holds.lineage import parse_thing
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import format_time

SOURCE_KEYS = ("source", "by", "why", "at", "track", "seq", "through")  # of one in quarantine


@click.command("lineage")
@click.argument("thing", metavar="KIND:NAME")
@as_of_option
@as_json
def command(thing: str, as_of: str | None, as_json: bool) -> None:
    """Show what a thing rests on, attempt by attempt, and what came of it.

    \b
    checkpoint:RUN@STEP     attempt:RUN/aNN      run:RUN
    eval:RUN/SUITE@STEP     promotion:RUN/ALIAS
    snapshot:DATASET@ID     node:NAME            code:COMMIT
    """
    asked, until = parse_thing(thing), parse_as_of(as_of)
    settings = Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    found = find_exact(tracks, ledger, asked)
    up, down = ancestors(ledger, found, as_of=until), descendants(ledger, found, as_of=until)
    holds = quarantined_sources(tracks, ledger, asked, as_of=until)
    then = format_time(until) if until is not None else None
    if as_json:
        sources = [{key: to_json(hold)[key] for key in SOURCE_KEYS} for hold in holds]
        asked_for = {"thing": found.called, "as_of": then, "quarantined": sources}
        print_json({**asked_for, "rests_on": to_json(up), "came_of_it": to_json(down)})
        return
    click.echo(f"{found.called} as of {then}" if then else found.called)
    for hold in holds:
        is_source = hold.source == found.called
        click.echo(f"! it {hold.words_of_source if is_source else hold.words}")
    for line in ancestors_lines(up):
        click.echo(line)
    below = list(descendants_lines(down, of_archive=settings.is_archive))
    click.echo("\n".join(("what came of it:", *below)) if below else "nothing came of it.")
