"""`tracks note` and `tracks search`: the logbook, kept in the runs' own tracks."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    as_json,
    by_option,
    open_app,
    parse_target,
    print_answer,
    print_json,
)
from tracks_dagster.cli.terminal import RECORDED_TEXT
from tracks_dagster.ledger.texts import parse_question
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.review.effects.search import (
    EVIDENCE_READ_MAX,
    HITS_MAX,
    Found,
    Hit,
    Scope,
    find_runs,
    search,
    search_deep,
)
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.text import units
from tracks_dagster.track.text.safe_text import check_words, one_line
from tracks_dagster.track.text.units import counted
from tracks_dagster.wiring import utc_now

HITS = 50
RUNS = 20  # that are named by the text


@click.command("search")
@click.argument("text", nargs=-1, required=True)
@click.option("--last", metavar="30d", help=f"Nothing older than this: {units.DURATION_WORDS}.")
@click.option("--run", "target", metavar="RUN[/aNN]", help="Only this run, or attempt.")
@click.option("--deep", is_flag=True, help="Also read the stored evidence: the tails of logs.")
@click.option(
    "--limit",
    type=click.IntRange(1, HITS_MAX),
    default=HITS,
    show_default=True,
    help="How many hits to show.",
)
@as_json
@click.pass_context
def search_command(
    ctx: click.Context,
    text: tuple[str, ...],
    last: str | None,
    target: str | None,
    deep: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Search runs by name and declaration; notes, alerts, decisions and failures, newest first.

    All words of TEXT must occur in one record; "words in quotes" side by side. Exit code 1 when
    nothing is found.
    """
    question, scope = parse_question(_question(text)), _scope(last, target, limit)
    settings = Settings.from_environment()
    tracks, ledger = open_tracks_to_read(settings), open_ledger_to_read(settings)
    if deep:
        found = search_deep(ledger, tracks.store, question, scope)
    else:
        found = search(ledger, question, scope)
    if not found.hits and scope.run_id is not None:
        tracks.run(scope.run_id)  # raises for an unknown run, with the nearest id
    is_of_all = scope.run_id is None and scope.since is None
    runs = find_runs(ledger, " ".join(text), runs_max=RUNS) if is_of_all else []
    if as_json:
        print_json({"runs": runs, **to_json(found)})
    else:
        for row in runs:
            click.echo(f"{row['run_id']} ({row['model_family']}, {row['state']}): {row['intent']}")
        if found.hits or not runs:
            click.echo(("\n" if runs else "") + _text(found, deep=deep))
    ctx.exit(0 if found.hits or runs else BAD_NEWS)


def _question(text: tuple[str, ...]) -> str:
    """Return the question; an argument with a space among several was quoted, so it is a phrase."""
    if len(text) == 1:
        return text[0]
    return " ".join(f'"{each}"' if " " in each else each for each in text)


def _scope(last: str | None, target: str | None, limit: int) -> Scope:
    run_id, attempt_id = (None, None) if target is None else parse_target(target)
    return Scope(since=_since(last), run_id=run_id, attempt_id=attempt_id, limit=limit)


def _since(last: str | None) -> datetime | None:
    if last is None:
        return None
    try:
        return utc_now() - timedelta(seconds=units.duration_s(last))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"--last: {error}") from error


def _text(found: Found, *, deep: bool) -> str:
    lines = [line for hit in found.hits for line in (*_hit_lines(hit), "")]
    if not found.hits:
        lines.append("No record has these words.")
        if not deep:
            lines.append("`--deep` also reads the stored evidence: the tails of logs.")
    if found.is_cut:
        lines.append("There is more: give more words, --last, --run or a larger --limit.")
    if found.evidence_read is not None:
        lines.append(f"The evidence of {counted(found.evidence_read, 'ended attempt')} was read.")
    if found.evidence_left:
        lines.append(
            f"Not read: {found.evidence_left} older. {EVIDENCE_READ_MAX} are read at most; "
            "narrow it with --run or --last."
        )
    if found.unread:
        lines.append(f"{len(found.unread)} could not be read; `tracks fsck` explains it.")
    return "\n".join(lines).rstrip("\n")


def _hit_lines(hit: Hit) -> tuple[str, ...]:
    record = hit.kind if hit.seq is None else f"record {hit.seq} ({hit.kind})"
    of = hit.where if hit.run_id is None else hit.run_id
    if hit.run_id is not None and hit.attempt_id is not None:
        of = attempt_key(hit.run_id, hit.attempt_id)
    by = f" by {hit.author}" if hit.author else ""
    return (f"{hit.at[:19]}Z  {of}  {record}{by}", f"  {one_line(hit.excerpt)}", f"  {hit.more}")


@click.command("note")
@click.argument("target", metavar="RUN[/aNN]")
@click.argument("text", type=RECORDED_TEXT)
@by_option
@as_json
def note_command(target: str, text: str, by: str, as_json: bool) -> None:
    """Add TEXT to the track of RUN, for the whole run or for one attempt.

    `tracks explain` shows it and `tracks search` finds it. Anything like a password is hidden.
    """
    # search, beside it, only reads
    from tracks_dagster.attempts.effects.notes import note

    run_id, attempt_id = parse_target(target)
    check_words({"note": text, "by": by})
    app = open_app()
    record = note(app.tracks, run_id, attempt_id=attempt_id, by=by, text=text)
    print_answer(
        f"Noted as record {record.seq} of {target}.",
        {"run_id": run_id, "attempt_id": attempt_id, "seq": record.seq},
        as_json=as_json,
    )
