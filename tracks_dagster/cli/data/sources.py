"""`tracks lineage`, `blast`, `quarantine` and `release`: sources and their quarantine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    as_json,
    as_of_option,
    deciding_options,
    open_app,
    parse_as_of,
    print_answer,
    print_json,
    recorded,
    seq_of,
)
from tracks_dagster.holds.effects.blast import (
    ancestors_lines,
    blast,
    blast_lines,
    descendants_lines,
)
from tracks_dagster.holds.effects.descent import NAMED_MAX, versions_of
from tracks_dagster.holds.effects.lineage import read_lineage
from tracks_dagster.holds.effects.quarantines import (
    quarantine_source,
    release_source,
)
from tracks_dagster.holds.effects.things import find_exact, find_thing
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.track.text.units import counted

if TYPE_CHECKING:
    from tracks_dagster.home.asset_lineage import Uses


@click.command("lineage")
@click.argument("thing", metavar="[KIND:]NAME")
@as_of_option
@as_json
def lineage_command(thing: str, as_of: str | None, as_json: bool) -> None:
    """Show what a thing rests on, attempt by attempt, and what came of it.

    \b
    checkpoint:RUN@STEP     attempt:RUN/aNN      run:RUN
    eval:RUN/SUITE@STEP     promotion:RUN/ALIAS
    snapshot:DATASET@ID     node:NAME            code:COMMIT

    The kind may be left out where only one thing has such a name; ids may be shortened.
    """
    until, settings = parse_as_of(as_of), Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    found = read_lineage(tracks, ledger, thing, as_of=until)
    if as_json:
        print_json(found.facts)
        return
    click.echo(f"{found.called} as of {found.then}" if found.then else found.called)
    for hold in found.holds:
        is_source = hold.source == found.called
        click.echo(f"! it {hold.words_of_source if is_source else hold.words}")
    for line in ancestors_lines(found.rests_on):
        click.echo(line)
    below = list(descendants_lines(found.came_of_it, of_archive=settings.is_archive))
    click.echo("\n".join(("what came of it:", *below)) if below else "nothing came of it.")


@click.command("blast")
@click.argument("source", metavar="[KIND:]NAME")
@as_of_option
@as_json
@click.pass_context
def blast_command(ctx: click.Context, source: str, as_of: str | None, as_json: bool) -> None:
    """Show what descends from a source, and what of it is in use now.

    \b
    snapshot:DATASET@ID     what used samples of it
    checkpoint:RUN@STEP     what resumed from it
    node:NAME               what ran on it
    code:COMMIT             what ran it; also a version or another sha256
    attempt:RUN/aNN         what it worked on

    The kind may be left out where only one thing has such a name; ids may be shortened. Assets that
    Dagster materialized from it are those of DAGSTER_HOME, or of this home. Exit code 1 when anything
    promoted descends from it.
    """
    until, settings = parse_as_of(as_of), Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    thing = find_thing(tracks, ledger, source)
    found = blast(tracks, ledger, thing, as_of=until)
    versions = versions_of(ledger, find_exact(tracks, ledger, thing), as_of=until)
    uses = None if settings.is_archive else _uses(settings, versions)
    if as_json:
        in_dagster = uses if isinstance(uses, str | None) else to_json(uses)
        print_json({**to_json(found), "dagster": in_dagster})
    else:
        lines = blast_lines(found, of_archive=settings.is_archive)
        click.echo("\n".join((*lines, *_uses_lines(uses))))
    ctx.exit(BAD_NEWS if found.is_promoted else 0)


def _uses(settings: Settings, versions: frozenset[str]) -> Uses | str | None:
    """Return what rests on these in Dagster; why that is not known, in words; None where there is
    nothing to look for, or no Dagster."""
    folder = Path(os.environ.get("DAGSTER_HOME") or settings.home / "dagster")
    if not versions or not folder.is_dir():
        return None
    from tracks_dagster.home.asset_lineage import uses_of

    try:
        return uses_of(folder, versions)
    except Exception as error:  # noqa: BLE001 - of any storage, of any version
        return f"The Dagster of {folder} cannot be read: {one_line(str(error))}"


def _uses_lines(uses: Uses | str | None) -> Iterator[str]:
    if isinstance(uses, str):
        yield uses
    elif uses is not None:
        more = " of the newest" if uses.is_cut else ""
        count = counted(len(uses.uses), "materialization")
        yield f"in Dagster ({uses.dagster}): {count}{more} downstream of what was promoted or frozen"
        for use in uses.uses[: -NAMED_MAX - 1 : -1]:
            partition = f"[{use.partition}]" if use.partition else ""
            run = f", Dagster run {use.dagster_run_id[:8]}" if use.dagster_run_id else ""
            yield f"  {use.asset}{partition} ({use.at[:19]}Z, read {use.read}{run})"
        if len(uses.uses) > NAMED_MAX:
            yield f"  … and {len(uses.uses) - NAMED_MAX} older"
        yield "  Here it ends: Dagster does not see who reads a file or a model without it."


@click.command("quarantine")
@click.argument("source", metavar="[KIND:]NAME")
@deciding_options
def quarantine_command(source: str, why: str, by: str, as_json: bool) -> None:
    """Let nothing new start from a source: snapshot, checkpoint, node, code or attempt.

    No attempt is opened on what descends from it, no eval, no branch, no promotion; a retry resumes
    from the newest checkpoint that does not. Attempts that run continue. `tracks release` undoes it.
    """
    app = open_app()
    thing = find_thing(app.tracks, app.ledger, source)
    decided = quarantine_source(app.tracks, app.ledger, thing, by=by, why=why)
    found = blast(app.tracks, app.ledger, thing)
    source_name, record = decided.source.called, decided.record
    lines = (f"{source_name} is in quarantine: {recorded(record)}.", *blast_lines(found))
    facts = {"source": source_name, "seq": seq_of(record), "blast": to_json(found)}
    print_answer("\n".join(lines), facts, as_json=as_json)


@click.command("release")
@click.argument("source", metavar="[KIND:]NAME")
@deciding_options
def release_command(source: str, why: str, by: str, as_json: bool) -> None:
    """End the quarantine of a source; a run whose retry was refused needs `tracks retry` as well."""
    app = open_app()
    thing = find_thing(app.tracks, app.ledger, source)
    decided = release_source(app.tracks, app.ledger, thing, by=by, why=why)
    name, record = decided.source.called, decided.record
    sentence = f"{name} was not in quarantine; nothing was written."
    if record is not None:
        sentence = f"{name} is released: {recorded(record)}."
    print_answer(sentence, {"source": name, "seq": seq_of(record)}, as_json=as_json)
