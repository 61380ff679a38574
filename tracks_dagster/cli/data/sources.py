"""`tracks lineage`, `blast`, `quarantine`, `release` and `snapshots`: sources and their quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    WholeGroup,
    as_json,
    as_of_option,
    deciding_options,
    open_app,
    parse_as_of,
    print_answer,
    print_json,
    print_table,
    recorded,
    seq_of,
)
from tracks_dagster.data.effects.own_checks import read_checks
from tracks_dagster.data.effects.snapshots import add_files
from tracks_dagster.holds.effects.blast import (
    ancestors_lines,
    blast,
    blast_lines,
    descendants_lines,
)
from tracks_dagster.holds.effects.descent import ancestors, descendants
from tracks_dagster.holds.effects.holds import quarantined_sources
from tracks_dagster.holds.effects.quarantines import (
    consumers,
    find_any_snapshot,
    quarantine_snapshot,
    quarantine_source,
    release_snapshot,
    release_source,
)
from tracks_dagster.holds.effects.things import find_exact
from tracks_dagster.holds.hold import short_id
from tracks_dagster.holds.lineage import parse_thing
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.text.nearest import did_you_mean
from tracks_dagster.track.text.safe_text import check_words

SOURCE_KEYS = ("source", "by", "why", "at", "track", "seq", "through")  # of one in quarantine
_SNAPSHOT_TITLES = (
    *("dataset", "snapshot", "status", "rows", "files", "bytes", "committed", "from", "why"),
)


@click.command("lineage")
@click.argument("thing", metavar="KIND:NAME")
@as_of_option
@as_json
def lineage_command(thing: str, as_of: str | None, as_json: bool) -> None:
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


@click.command("blast")
@click.argument("source", metavar="KIND:NAME")
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

    Ids may be shortened. Exit code 1 when anything promoted descends from it.
    """
    thing, until = parse_thing(source), parse_as_of(as_of)
    settings = Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    found = blast(tracks, ledger, thing, as_of=until)
    if as_json:
        print_json(to_json(found))
    else:
        click.echo("\n".join(blast_lines(found, of_archive=settings.is_archive)))
    ctx.exit(BAD_NEWS if found.is_promoted else 0)


@click.command("quarantine")
@click.argument("source", metavar="KIND:NAME")
@deciding_options
def quarantine_command(source: str, why: str, by: str, as_json: bool) -> None:
    """Let nothing new start from a source: snapshot, checkpoint, node, code or attempt.

    No attempt is opened on what descends from it, no eval, no branch, no promotion; a retry resumes
    from the newest checkpoint that does not. Attempts that run continue. `tracks release` undoes it.
    """
    thing = parse_thing(source)
    app = open_app()
    decided = quarantine_source(app.tracks, app.ledger, thing, by=by, why=why)
    found = blast(app.tracks, app.ledger, thing)
    source_name, record = decided.source.called, decided.record
    lines = (f"{source_name} is in quarantine: {recorded(record)}.", *blast_lines(found))
    facts = {"source": source_name, "seq": seq_of(record), "blast": to_json(found)}
    print_answer("\n".join(lines), facts, as_json=as_json)


@click.command("release")
@click.argument("source", metavar="KIND:NAME")
@deciding_options
def release_command(source: str, why: str, by: str, as_json: bool) -> None:
    """End the quarantine of a source; a run whose retry was refused needs `tracks retry` as well."""
    app = open_app()
    decided = release_source(app.tracks, app.ledger, parse_thing(source), by=by, why=why)
    name, record = decided.source.called, decided.record
    sentence = f"{name} was not in quarantine; nothing was written."
    if record is not None:
        sentence = f"{name} is released: {recorded(record)}."
    print_answer(sentence, {"source": name, "seq": seq_of(record)}, as_json=as_json)


@click.group("snapshots", cls=WholeGroup)
def snapshots_command() -> None:
    """Add, list, quarantine and release snapshots of datasets."""


@snapshots_command.command("add")
@click.argument("dataset", metavar="NAME")
@click.argument("place", metavar="PATH|s3://BUCKET/PREFIX")
@click.option(
    "--in-place",
    is_flag=True,
    help="Record hashes and leave the files where they are; every attempt verifies them.",
)
@click.option(
    "--checks",
    "checks_file",
    metavar="FILE.py",
    type=click.Path(path_type=Path),
    help="Functions check_NAME(folder), or SCHEMAS = {pattern: pandera schema}.",
)
@as_json
def add(dataset: str, place: str, in_place: bool, checks_file: Path | None, as_json: bool) -> None:
    """Freeze the files of any format at PATH as a snapshot of the dataset NAME.

    The same files give the same snapshot; files that are stored already cost no bytes again.
    """
    checks = None if checks_file is None else read_checks(checks_file)
    app = open_app()
    with _bytes_bar() as (on_listed, progress):
        added = add_files(
            app.tracks,
            app.datasets,
            dataset,
            place,
            in_place=in_place,
            cache=app.settings.cache,
            checks=checks,
            on_listed=on_listed,
            progress=progress,
        )
    body = added.body
    stays = f", which stay in {body.in_place}" if body.in_place else ""
    what = f"{body.file_count} files, {body.total_bytes} bytes{stays}"
    how = f"{added.written_bytes} bytes were new" if not in_place else "nothing was copied"
    is_there = "" if added.is_new else " It was there already."
    print_answer(
        f"Snapshot {body.snapshot_id[:12]} of {dataset}: {what}; {how}.{is_there} "
        f"{len(added.passed)} checks passed.",
        {
            "snapshot": to_json(body),
            "is_new": added.is_new,
            "passed": list(added.passed),
            "written_bytes": added.written_bytes,
        },
        as_json=as_json,
    )


@contextmanager
def _bytes_bar() -> Iterator[tuple[Callable[[int, int], None], Callable[[int], None]]]:
    """Show on stderr how many bytes were dealt with, of how many."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TransferSpeedColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("looking at the files", total=None)
        yield (
            lambda files, total: bar.update(
                task, description=f"freezing {files} files", total=total
            ),
            lambda done: bar.advance(task, done),
        )


@snapshots_command.command("list")
@click.argument("dataset", required=False)
@as_json
def list_snapshots(dataset: str | None, as_json: bool) -> None:
    """List the snapshots of DATASET, or of all datasets, oldest first."""
    ledger = open_ledger_to_read(Settings.from_environment())
    rows = ledger.query(
        "select dataset, snapshot_id, status, quarantined_why, row_count, file_count, in_place, "
        "total_bytes, source, "
        "committed_at from snapshots where cast(:dataset as text) is null or dataset = :dataset "
        "order by dataset, committed_at, snapshot_id",
        {"dataset": dataset},
    )
    if as_json:
        print_json([{**row, "committed_at": str(row["committed_at"])} for row in rows])
    elif not rows:
        click.echo(_no_snapshot(ledger, dataset))
    else:
        print_table(_SNAPSHOT_TITLES, map(_snapshot_cells, rows), right=("rows", "files", "bytes"))


def _no_snapshot(ledger: Ledger, dataset: str | None) -> str:
    if dataset is None:
        return "There is no snapshot yet; `tracks snapshots add NAME PATH` makes one."
    known = [row["dataset"] for row in ledger.query("select distinct dataset from snapshots")]
    hint = did_you_mean(dataset, known) or "`tracks run` makes one."
    return f"There is no snapshot of dataset {dataset} yet; {hint.rstrip()}"


@snapshots_command.command("quarantine")
@click.argument("dataset")
@click.argument("snapshot")
@deciding_options
def quarantine(dataset: str, snapshot: str, why: str, by: str, as_json: bool) -> None:
    """Refuse every new attempt on SNAPSHOT of DATASET, and name what has used it.

    Attempts that run continue. SNAPSHOT: the first digits of its id.
    """
    check_words({"why": why, "by": by})
    app = open_app()
    ref = find_any_snapshot(app.tracks, dataset, snapshot)
    record = quarantine_snapshot(app.tracks, ref, by=by, why=why)
    used = consumers(app.ledger, ref)
    facts = {"snapshot": to_json(ref), "status": "quarantined", "consumers": to_json(used)}
    print_answer(
        f"Snapshot {short_id(ref)} of {dataset} is quarantined: {recorded(record)}. {used.sentence}",
        {**facts, "seq": seq_of(record)},
        as_json=as_json,
    )


@snapshots_command.command("release")
@click.argument("dataset")
@click.argument("snapshot")
@deciding_options
def release(dataset: str, snapshot: str, why: str, by: str, as_json: bool) -> None:
    """Let attempts train on SNAPSHOT of DATASET again; a refused run needs `tracks retry` as well."""
    check_words({"why": why, "by": by})
    app = open_app()
    ref = find_any_snapshot(app.tracks, dataset, snapshot)
    record = release_snapshot(app.tracks, ref, by=by, why=why)
    print_answer(
        f"Snapshot {short_id(ref)} of {dataset} may be trained on: {recorded(record)}.",
        {"snapshot": to_json(ref), "status": "usable", "seq": seq_of(record)},
        as_json=as_json,
    )


def _snapshot_cells(row: dict[str, Json]) -> tuple[str, ...]:
    return (
        row["dataset"],
        row["snapshot_id"][:12],
        row["status"],
        "–" if row["row_count"] is None else str(row["row_count"]),
        "–" if row["file_count"] is None else str(row["file_count"]),
        str(row["total_bytes"]),
        str(row["committed_at"])[:19],
        row["source"],
        row["quarantined_why"] or "",
    )
