"""`tracks note`: words of a person, in the run's own track; with `tracks search` the logbook."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import by_option, open_app, parse_target
from tracks_dagster.services.noting import note
from tracks_dagster.services.runs import check_words


@click.command("note")
@click.argument("target", metavar="RUN[/aNN]")
@click.argument("text")
@by_option
def command(target: str, text: str, by: str) -> None:
    """Add TEXT to the track of RUN, of the run as a whole or of one attempt.

    `tracks explain` shows it and `tracks search` finds it. What looks like a password is hidden.
    """
    run_id, attempt_id = parse_target(target)
    check_words({"note": text, "by": by})
    app = open_app()
    record = note(app.tracks, run_id, attempt_id=attempt_id, by=by, text=app.redact(text))
    click.echo(f"Noted as record {record.seq} of {target}.")
