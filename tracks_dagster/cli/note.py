"""`tracks note`: words of a person, in the run's own track."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import by_option, open_app
from tracks_dagster.core.bodies import Note
from tracks_dagster.core.names import check_run_id
from tracks_dagster.core.records import Kind
from tracks_dagster.services.runs import check_words


@click.command("note")
@click.argument("run_id")
@click.argument("text")
@by_option
def command(run_id: str, text: str, by: str) -> None:
    """Add TEXT to the track of RUN_ID; `tracks explain` shows it."""
    check_words({"note": text, "by": by})
    tracks = open_app().tracks
    draft = tracks.draft(Kind.NOTE, Note(by=by, text=text))
    record = tracks.note_run(check_run_id(run_id), draft)
    click.echo(f"Noted as record {record.seq} of {run_id}.")
