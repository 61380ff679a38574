"""`tracks quarantine`: let nothing new start from a source or from what descends from it."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import (
    as_json,
    by_option,
    open_app,
    print_answer,
    recorded,
    seq_of,
    why_option,
)
from tracks_dagster.holds.effects.blast import blast
from tracks_dagster.holds.effects.lineage_text import blast_lines
from tracks_dagster.holds.effects.quarantines import quarantine_source
from tracks_dagster.holds.lineage import parse_thing
from tracks_dagster.track.body_json import to_json


@click.command("quarantine")
@click.argument("source", metavar="KIND:NAME")
@why_option
@by_option
@as_json
def command(source: str, why: str, by: str, as_json: bool) -> None:
    """Let nothing new start from a source: snapshot, checkpoint, node, code or attempt.

    No attempt is opened on what descends from it, no eval, no branch, no promotion; a retry goes back
    to the newest checkpoint that does not. Attempts that run go on. `tracks release` undoes it.
    """
    thing = parse_thing(source)
    app = open_app()
    decided = quarantine_source(app.tracks, app.ledger, thing, by=by, why=why)
    told = blast(app.tracks, app.ledger, thing)
    source_name, record = decided.source.called, decided.record
    lines = (f"{source_name} is in quarantine: {recorded(record)}.", *blast_lines(told))
    facts = {"source": source_name, "seq": seq_of(record), "blast": to_json(told)}
    print_answer("\n".join(lines), facts, as_json=as_json)
