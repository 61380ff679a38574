"""`tracks note`: words of a person, in the run's own track; with `tracks search` the logbook."""

from __future__ import annotations

import click

from tracks_dagster.attempts.effects.noting import note
from tracks_dagster.cli.common import as_json, by_option, open_app, parse_target, print_answer
from tracks_dagster.cli.words import RECORDED_TEXT
from tracks_dagster.track.text.safe_text import check_words


@click.command("note")
@click.argument("target", metavar="RUN[/aNN]")
@click.argument("text", type=RECORDED_TEXT)
@by_option
@as_json
def command(target: str, text: str, by: str, as_json: bool) -> None:
    """Add TEXT to the track of RUN, of the run as a whole or of one attempt.

    `tracks explain` shows it and `tracks search` finds it. What looks like a password is hidden.
    """
    run_id, attempt_id = parse_target(target)
    check_words({"note": text, "by": by})
    app = open_app()
    record = note(app.tracks, run_id, attempt_id=attempt_id, by=by, text=text)
    print_answer(
        f"Noted as record {record.seq} of {target}.",
        {"run_id": run_id, "attempt_id": attempt_id, "seq": record.seq},
        as_json=as_json,
    )
