"""`tracks reclassify`: read stored evidence again after a rule changed, and record what differs."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tracks_dagster.attempts.effects.given_verdict import give_verdict
from tracks_dagster.attempts.effects.reclassify import Reread, reclassify, reclassify_all
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    as_json,
    by_option,
    open_app,
    parse_target,
    print_answer,
    print_json,
    recorded,
    seq_of,
    why_option,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reading import open_dry_run, open_store_to_read
from tracks_dagster.settings import Settings, read_rules
from tracks_dagster.track.errors import InvalidInput, TracksError
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.safe_text import check_words


@click.command("reclassify")
@click.argument("target", metavar="[RUN[/aNN]]", required=False)
@click.option("--all", "all_runs", is_flag=True, help="Every run.")
@click.option("--dry-run", is_flag=True, help="Tell what would be recorded, and write nothing.")
@click.option("--as", "reason", help="Your own verdict on RUN/aNN, where its evidence tells none.")
@why_option
@by_option
@as_json
@click.pass_context
def command(
    ctx: click.Context,
    target: str | None,
    all_runs: bool,
    dry_run: bool,
    reason: str | None,
    why: str,
    by: str,
    as_json: bool,
) -> None:
    """Read the evidence of ended attempts again and append a correction where the reason differs.

    The budget that a retry was charged to moves with the reason; nothing is opened or closed. A verdict
    that a person gave with --as stays as it is. Exit with 1 when some evidence cannot be read.
    """
    check_words({"why": why, "by": by})
    if reason is not None:
        _give(target, reason, by=by, why=why, dry_run=dry_run, as_json=as_json)
        return
    if (target is None) is not all_runs:
        raise InvalidInput("Name one RUN or RUN/aNN, or write --all, not both.")
    settings = Settings.from_environment()
    rules = read_rules(settings)
    tracks = _tracks(settings, dry_run=dry_run)
    if target is None:
        found = reclassify_all(tracks, rules, why=why, dry_run=dry_run)
    else:
        run_id, attempt_id = parse_target(target)
        found = reclassify(tracks, run_id, rules, why=why, attempt_id=attempt_id, dry_run=dry_run)
    has_problem = _tell_json(found) if as_json else _tell(found, dry_run=dry_run)
    ctx.exit(BAD_NEWS if has_problem else 0)


def _give(
    target: str | None, reason: str, *, by: str, why: str, dry_run: bool, as_json: bool
) -> None:
    """Record a person's verdict on one attempt."""
    run_id, attempt_id = parse_target(target) if target else (None, None)
    if run_id is None or attempt_id is None or dry_run:
        raise InvalidInput("--as is a verdict on one attempt: name RUN/aNN, without --dry-run.")
    open_store_to_read(Settings.from_environment())  # an empty home is told, not made
    record = give_verdict(open_app().tracks, run_id, attempt_id, reason, by=by, why=why)
    how = recorded(record) if record else "as a person had said already"
    print_answer(
        f"{target}: ended as {reason}, by {by}: {how}.",
        {"attempt": target, "now": reason, "seq": seq_of(record)},
        as_json=as_json,
    )


def _tracks(settings: Settings, *, dry_run: bool) -> Tracks:
    if dry_run:
        return open_dry_run(settings)[0]
    open_store_to_read(settings)  # an empty home is told, not made
    return open_app().tracks


def _row(each: Reread) -> dict[str, Json]:
    return {
        "attempt": each.key,
        "before": each.before,
        "now": each.now,
        "confidence": each.confidence,
        "rule": each.rule,
        "lines": list(each.lines),
        "problem": each.problem,
        "recorded": each.recorded,
    }


def _tell_json(found: Iterator[Reread]) -> bool:
    """Print all as one list, what was done before an error too; return whether there is a problem."""
    done: list[Reread] = []
    try:
        done.extend(found)
    except TracksError:
        if done:
            print_json([_row(each) for each in done])
        raise
    print_json([_row(each) for each in done])
    return any(each.problem for each in done)


def _tell(found: Iterator[Reread], *, dry_run: bool) -> bool:
    """Print each as it comes; return whether there is a problem."""
    read_count = changed_count = 0
    has_problem = False
    for each in found:
        if each.problem is not None:
            has_problem = True
            stays = "not read again" if each.before is None else f"{each.before} stays"
            click.echo(f"{each.key}: {stays}: {each.problem}", err=True)
            continue
        read_count += 1
        if each.differs:
            changed_count += 1
            done = "would be" if dry_run else "is" if each.recorded else "was by another already"
            click.echo(f"{each.key}: {each.before} {done} corrected to {each.now} ({each.rule})")
    click.echo(f"Read {read_count} ended attempts again: {changed_count} with another reason.")
    return has_problem
