"""`tracks release`: end the quarantine of a source; what descends from it may be built upon again."""

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
from tracks_dagster.holds.effects.quarantines import release_source
from tracks_dagster.holds.lineage import parse_thing


@click.command("release")
@click.argument("source", metavar="KIND:NAME")
@why_option
@by_option
@as_json
def command(source: str, why: str, by: str, as_json: bool) -> None:
    """End the quarantine of a source; a run whose retry was refused needs `tracks retry` as well."""
    app = open_app()
    decided = release_source(app.tracks, app.ledger, parse_thing(source), by=by, why=why)
    name, record = decided.source.called, decided.record
    sentence = f"{name} was not in quarantine; nothing was written."
    if record is not None:
        sentence = f"{name} is released: {recorded(record)}."
    print_answer(sentence, {"source": name, "seq": seq_of(record)}, as_json=as_json)
