"""`tracks classify` and `reclassify`: why cases of failures failed, and stored evidence read again."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracks_dagster.cli import BAD_NEWS, WRONG_USE
from tracks_dagster.cli.common import (
    as_json,
    deciding_options,
    open_app,
    parse_target,
    print_answer,
    print_json,
    print_table,
    recorded,
    seq_of,
)
from tracks_dagster.cli.terminal import echo_whole
from tracks_dagster.reasons.cases import evidence_of
from tracks_dagster.reasons.classify import classify
from tracks_dagster.reasons.effects.case_file import ReadCase, read_given
from tracks_dagster.reasons.evidence import Verdict
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.settings import Settings, read_rules
from tracks_dagster.track.errors import InvalidInput, TracksError
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.safe_text import check_words

if TYPE_CHECKING:  # `classify` opens no store and pays for none
    from tracks_dagster.attempts.effects.verdicts import Reread
    from tracks_dagster.ledger.effects.tracks import Tracks

LINE_CHARACTERS_SHOWN = 100  # of the first line that decided, in the table


@click.command("classify")
@click.argument(
    "files",
    metavar="FILE|FOLDER|-...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
)
@click.option(
    "--rules",
    "rules_file",
    type=click.Path(path_type=Path),
    help="File with your own rules, YAML; default: TRACKS_RULES.",
)
@as_json
@click.pass_context
def classify_command(
    ctx: click.Context, files: tuple[Path, ...], rules_file: Path | None, as_json: bool
) -> None:
    """Read logs or cases of failures, and print the reason of each.

    A FILE is a log, a FOLDER has a log for each rank (its number is in the name of the log or of its
    folder), - is standard input. A file of cases has one a line, in JSON: an id and its evidence:
    log_tail, exit_code, signal, pod, events, xid, slurm_state; or a pod's recorded history in
    pod_history. An unreadable line is named on stderr, the others are classified, and the exit code is
    2. With --json one object a case: id, reason, confidence, rule, lines.
    """
    settings = Settings.from_environment()
    rules = read_rules(replace(settings, rules_file=rules_file or settings.rules_file))
    rows: list[tuple[str, ...]] = []
    is_readable = True
    for path in files:
        for read in read_given(path, sys.stdin.buffer):
            if read.case is None:
                is_readable = False
                click.echo(f"tracks: {path}, line {read.line}: {read.problem}", err=True)
                continue
            name, verdict = _classified(path, read, read.case, rules)
            if as_json:
                echo_whole(_verdict_json(name, verdict))
            else:
                rows.append(_cells(name, verdict, read))
    if rows:
        print_table(("id", "reason", "confidence", "rule", "what decided"), rows)
    ctx.exit(0 if is_readable else WRONG_USE)


def _classified(
    path: Path, read: ReadCase, case: Mapping[str, Json], rules: UserRules
) -> tuple[Json, Verdict]:
    """Return the case's id, null where it has none, and the verdict; a pod's history has a name."""
    is_history = "pod_history" in case and "id" not in case
    name = case.get("case", path.stem) if is_history else case.get("id")
    return name, classify(evidence_of(case), rules)


def _verdict_json(name: Json, verdict: Verdict) -> str:
    shown = {
        "id": name,
        "reason": verdict.reason,
        "confidence": verdict.confidence,
        "rule": verdict.rule,
        "lines": list(verdict.lines),
    }
    return json.dumps(shown)  # escaped beyond ASCII: logs hold what no terminal encodes


def _cells(name: Json, verdict: Verdict, read: ReadCase) -> tuple[str, ...]:
    shown = f"(line {read.line})" if name is None else str(name)
    line = verdict.lines[0][:LINE_CHARACTERS_SHOWN] if verdict.lines else ""
    return shown, verdict.reason, f"{verdict.confidence:.0%}", verdict.rule, line


@click.command("reclassify")
@click.argument("target", metavar="[RUN[/aNN]]", required=False)
@click.option("--all", "all_runs", is_flag=True, help="Every run.")
@click.option("--dry-run", is_flag=True, help="Print what would be recorded, and write nothing.")
@click.option("--as", "reason", help="Your own verdict on RUN/aNN, where its evidence shows none.")
@deciding_options
@click.pass_context
def reclassify_command(
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
    from tracks_dagster.attempts.effects.verdicts import reclassify, reclassify_all

    if reason is not None:
        _give_verdict(target, reason, by=by, why=why, dry_run=dry_run, as_json=as_json)
        return
    if (target is None) is not all_runs:
        raise InvalidInput("Name one RUN or RUN/aNN, or write --all, not both.")
    settings = Settings.from_environment()
    rules = read_rules(settings)
    tracks = _open_tracks(settings, dry_run=dry_run)
    if target is None:
        found = reclassify_all(tracks, rules, why=why, dry_run=dry_run)
    else:
        run_id, attempt_id = parse_target(target)
        found = reclassify(tracks, run_id, rules, why=why, attempt_id=attempt_id, dry_run=dry_run)
    has_problem = _print_reread_json(found) if as_json else _print_reread(found, dry_run=dry_run)
    ctx.exit(BAD_NEWS if has_problem else 0)


def _give_verdict(
    target: str | None, reason: str, *, by: str, why: str, dry_run: bool, as_json: bool
) -> None:
    """Record a person's verdict on one attempt."""
    from tracks_dagster.attempts.effects.verdicts import give_verdict
    from tracks_dagster.reading import open_store_to_read

    run_id, attempt_id = parse_target(target) if target else (None, None)
    if run_id is None or attempt_id is None or dry_run:
        raise InvalidInput("--as is a verdict on one attempt: name RUN/aNN, without --dry-run.")
    open_store_to_read(Settings.from_environment())  # an empty home is an error, it is not made
    record = give_verdict(open_app().tracks, run_id, attempt_id, reason, by=by, why=why)
    how = recorded(record) if record else "as a person had decided already"
    print_answer(
        f"{target}: ended as {reason}, by {by}: {how}.",
        {"attempt": target, "now": reason, "seq": seq_of(record)},
        as_json=as_json,
    )


def _open_tracks(settings: Settings, *, dry_run: bool) -> Tracks:
    from tracks_dagster.reading import open_dry_run, open_store_to_read

    if dry_run:
        return open_dry_run(settings)[0]
    open_store_to_read(settings)  # an empty home is an error, it is not made
    return open_app().tracks


def _reread_row(each: Reread) -> dict[str, Json]:
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


def _print_reread_json(found: Iterator[Reread]) -> bool:
    """Print all as one list, what was done before an error too; return whether there is a problem."""
    done: list[Reread] = []
    try:
        done.extend(found)
    except TracksError:
        if done:
            print_json([_reread_row(each) for each in done])
        raise
    print_json([_reread_row(each) for each in done])
    return any(each.problem for each in done)


def _print_reread(found: Iterator[Reread], *, dry_run: bool) -> bool:
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
