"""`tracks lineage`, `blast`, `quarantine` and `release`: sources and their quarantine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
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
from tracks_dagster.holds.effects.lineage import Lineage, read_lineage
from tracks_dagster.holds.effects.quarantines import (
    quarantine_source,
    release_source,
)
from tracks_dagster.holds.effects.things import find_exact, find_thing
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.safe_text import one_line
from tracks_dagster.track.text.units import counted

if TYPE_CHECKING:
    from tracks_dagster.home.asset_lineage import Origins, Uses

ASSET = "asset:"


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

    asset:KEY               the newest materialization of an asset of yours in Dagster

    The kind may be left out where only one thing has such a name; ids may be shortened. Assets are
    those of DAGSTER_HOME, or of this home's Dagster.
    """
    until, settings = parse_as_of(as_of), Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    read = partial(read_lineage, tracks, ledger, as_of=until)
    if thing.startswith(ASSET):
        origins = _origins(settings, thing.removeprefix(ASSET))
        found = list(_known(read, origins))
        if as_json:
            print_json({**to_json(origins), "rests_on": [each.facts for each in found]})
            return
        click.echo(
            f"{thing} ({origins.at[:19]}Z, Dagster run {origins.dagster_run_id[:8]}) rests on "
            f"{counted(len(found), 'model or snapshot', 'models and snapshots')}."
        )
    else:
        found = [read(thing)]
        if as_json:
            print_json(found[0].facts)
            return
    for each in found:
        _print_lineage(each, of_archive=settings.is_archive)


def _origins(settings: Settings, key: str) -> Origins:
    """Return what Dagster knows of the asset's newest materialization; raises InvalidInput."""
    from tracks_dagster.home.asset_lineage import origins_of

    folder = Path(os.environ.get("DAGSTER_HOME") or settings.home / "dagster")
    try:
        found = origins_of(folder, key) if folder.is_dir() else None
    except Exception as error:
        raise InvalidInput(
            f"The Dagster of {folder} cannot be read: {one_line(str(error))}"
        ) from error
    if found is None:
        raise InvalidInput(
            f"The Dagster of {folder} has no materialization of {key}. Set DAGSTER_HOME to the one "
            "that has it, and write the key as its UI does: ml/churn_scores."
        )
    return found


def _known(read: Callable[[str], Lineage], origins: Origins) -> Iterator[Lineage]:
    """Yield the lineage of each model or snapshot of ours among what an asset rests on."""
    for asset, version in origins.reads:
        for name in (f"checkpoint:{version}", f"snapshot:{asset.rpartition('/')[2]}@{version}"):
            try:
                found = read(name)
            except InvalidInput:
                continue  # another's data version
            yield found
            break


def _print_lineage(found: Lineage, *, of_archive: bool) -> None:
    click.echo(f"{found.called} as of {found.then}" if found.then else found.called)
    for hold in found.holds:
        is_source = hold.source == found.called
        click.echo(f"! it {hold.words_of_source if is_source else hold.words}")
    for line in ancestors_lines(found.rests_on):
        click.echo(line)
    below = list(descendants_lines(found.came_of_it, of_archive=of_archive))
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
