"""`tracks explain` and `tracks report`: why an attempt ended, from the record alone."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from tracks_dagster.cli.common import (
    archive_option,
    as_json,
    parse_target,
    print_answer,
    print_json,
    run_argument,
    settings_for,
    text_width,
)
from tracks_dagster.cli.grading import grade
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.review.effects.explain.reading import (
    SEED_MAX,
    Picked,
    evidence_text,
    pick_failed,
    record_lines,
)
from tracks_dagster.review.effects.explain.run import (
    ATTEMPTS_MAX,
    ExplainContext,
    explain_attempt,
    explain_run,
)
from tracks_dagster.review.effects.status import reads_what_waits
from tracks_dagster.review.explain.explanation import (
    AttemptExplanation,
    Break,
    RunExplanation,
    explanation_json,
)
from tracks_dagster.review.explain.glossary import GLOSSARY
from tracks_dagster.review.explain.summary import attempt_summary, run_summary
from tracks_dagster.review.explain.text import (
    attempt_text,
    broken_lines,
    glossary_text,
    run_text,
)
from tracks_dagster.settings import (
    Settings,
    eval_tries,
    find_board_url,
    find_ui_url,
    usable_prices,
    usable_rules,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, LedgerError
from tracks_dagster.track.names import attempt_key, check_run_id
from tracks_dagster.track.text import units
from tracks_dagster.wiring import App, utc_now

IN_THE_HOME = "TRACKS_HOME/reports/RUN.html"

LONGER_S = units.duration_s("90d")  # what is proposed where nothing is found


@click.command("explain")
@click.argument("target", metavar="[RUN[/aNN]]", required=False)
@click.option(
    "--html",
    is_flag=False,
    flag_value=IN_THE_HOME,
    metavar="[FILE]",
    help=f"Write the report of the run, one file without a network, to FILE or {IN_THE_HOME}.",
)
@click.option("--records", is_flag=True, help="Every record of RUN, a sentence each.")
@click.option("--evidence", is_flag=True, help="The stored evidence of RUN/aNN, whole.")
@click.option("--full", is_flag=True, help="Everything that is recorded, not one screen of it.")
@click.option("--words", is_flag=True, help="What its words mean; without RUN, all that are used.")
@click.option(
    "--grade", "grades", is_flag=True, help="Ask what you read in it, by the clock, and score it."
)
@click.option("--random-failed", is_flag=True, help="Pick a failed attempt at random.")
@click.option(
    "--last",
    default="7d",
    show_default=True,
    help=f"How far back --random-failed goes: {units.DURATION_WORDS}.",
)
@click.option("--seed", type=click.IntRange(0, SEED_MAX), help="Picks the same attempt again.")
@archive_option
@as_json
@click.pass_context
def explain_command(
    click_context: click.Context,
    target: str | None,
    html: str | None,
    records: bool,
    evidence: bool,
    full: bool,
    words: bool,
    grades: bool,
    random_failed: bool,
    last: str,
    seed: int | None,
    archive: Path | None,
    as_json: bool,
) -> None:
    """Explain a run, or one attempt: why it ended, what follows, what to do, what it cost.

    One screen; --full and --json have everything. As far as the record holds; exit code 1 where it
    breaks.
    """
    if words and target is None and not random_failed:
        _print_glossary(as_json)
        return
    _check(target, html, records=records, evidence=evidence, random_failed=random_failed)
    if grades and (records or evidence or html is not None):
        raise InvalidInput(
            "--grade asks about the explanation; leave out --html, --records, --evidence."
        )
    if grades and not random_failed and "/" not in (target or ""):
        raise InvalidInput(f"--grade is of one attempt: write {target}/a01, or --random-failed.")
    settings = settings_for(archive)
    tracks = open_tracks_to_read(settings)
    context = explain_context(settings, tracks)
    if random_failed:
        picked = _pick(settings, last, seed)
        click.echo(_describe(picked, last), err=True)
        target = attempt_key(picked.run_id, picked.attempt_id)
    run_id, attempt_id = parse_target(target or "")
    broken: Break | None = None
    if grades and attempt_id is not None:
        explained = explain_attempt(tracks, run_id, attempt_id, context)
        write = attempt_text if full else attempt_summary
        passed = grade(explained, write(explained, width=text_width()), as_json=as_json)
        click_context.exit(0 if passed else 1)
    if records:
        broken = _print_records(tracks, run_id, context.ledger, as_json)
    elif evidence:
        _print_evidence(click_context, tracks, run_id, attempt_id)
    elif html is not None:
        broken = _print_report(tracks, settings, run_id, attempt_id, html, context)
    else:
        asked = _Asked(is_full=full, with_words=words, as_json=as_json)
        broken = _explain(tracks, run_id, attempt_id, context, asked)
    click_context.exit(0 if broken is None else 1)


def _check(
    target: str | None, html: str | None, *, records: bool, evidence: bool, random_failed: bool
) -> None:
    """Raise InvalidInput for options that do not go together."""
    if target is not None and random_failed:
        raise InvalidInput(f"Name {target} or give --random-failed, not both.")
    if target is None and not random_failed:
        raise InvalidInput("Name a run or an attempt to explain, or give --random-failed.")
    if sum((records, evidence, html is not None)) > 1:
        raise InvalidInput("Choose one of --html, --records and --evidence.")
    if evidence and not random_failed and "/" not in (target or ""):
        raise InvalidInput(f"--evidence is of one attempt: write {target}/a01, for example.")


def explain_context(settings: Settings, tracks: Tracks) -> ExplainContext:
    """Return what an explanation may draw on; what is missing is reported and left out."""
    rules, wrong_rules = usable_rules(settings)
    prices, wrong_prices = usable_prices(settings)
    for problem in filter(None, (wrong_rules, wrong_prices)):
        click.echo(problem, err=True)
    return ExplainContext(
        rules=rules,
        ledger=_ledger(settings),
        ui_url=find_ui_url(settings),
        prefix=settings.prefix,
        board_url=find_board_url(settings),
        prices=prices,
        waits=None
        if settings.is_archive
        else reads_what_waits(tracks, partial(eval_tries, settings)),
    )


def _ledger(settings: Settings) -> Ledger | None:
    """Return the ledger where there is one that can be read: an explanation does without."""
    try:
        return open_ledger_to_read(settings)
    except LedgerError as error:
        click.echo(f"From the track alone: {error}", err=True)
        return None


def _pick(settings: Settings, last: str, seed: int | None) -> Picked:
    try:
        last_s = units.duration_s(last)
    except ValueError as error:
        raise InvalidInput(f"--last: {error}") from error
    chosen = secrets.randbelow(SEED_MAX) if seed is None else seed
    picked = pick_failed(open_ledger_to_read(settings), now=utc_now(), last_s=last_s, seed=chosen)
    if picked is None:
        longer = "; give a longer time, for example --last 90d" if last_s < LONGER_S else ""
        raise InvalidInput(f"No attempt failed in the last {last}{longer}.")
    return picked


def _describe(picked: Picked, last: str) -> str:
    key = attempt_key(picked.run_id, picked.attempt_id)
    return f"picked {key} of {picked.count} failed in the last {last}; again: --seed {picked.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How an explanation is to be printed."""

    is_full: bool
    with_words: bool
    as_json: bool


def _explain(
    tracks: Tracks, run_id: str, attempt_id: int | None, context: ExplainContext, asked: _Asked
) -> Break | None:
    width = text_width()
    if attempt_id is None:
        newest = ATTEMPTS_MAX if asked.is_full or asked.as_json else 1
        run = explain_run(tracks, run_id, context, attempts_max=newest)
        text = run_text(run, width=width) if asked.is_full else run_summary(run, width=width)
        _print(run, text, asked, width)
        return run.broken
    attempt = explain_attempt(tracks, run_id, attempt_id, context)
    summary = attempt_text if asked.is_full else attempt_summary
    _print(attempt, summary(attempt, width=width), asked, width)
    return attempt.broken


def _print(
    explanation: RunExplanation | AttemptExplanation, text: str, asked: _Asked, width: int
) -> None:
    if asked.as_json:
        print_json(explanation_json(explanation))
        return
    click.echo(text)
    if asked.with_words:
        click.echo(f"\n{glossary_text(text, width=width)}")


def _print_records(
    tracks: Tracks, run_id: str, ledger: Ledger | None, as_json: bool
) -> Break | None:
    lines, broken = record_lines(tracks, run_id, ledger)
    if as_json:
        print_json([to_json(line) for line in lines])
    else:
        click.echo("\n".join([*(line.text for line in lines), *broken_lines(broken)]))
    return broken


def _print_evidence(
    click_context: click.Context, tracks: Tracks, run_id: str, attempt_id: int | None
) -> None:
    text, problem = evidence_text(tracks, run_id, attempt_id)
    click.echo(text)
    if problem is not None:
        click.echo(problem, err=True)
        click_context.exit(1)


def _print_glossary(as_json: bool) -> None:
    if as_json:
        print_json(dict(GLOSSARY))
    else:
        click.echo("\n".join(f"{word}: {meaning}" for word, meaning in GLOSSARY.items()))


def _print_report(
    tracks: Tracks,
    settings: Settings,
    run_id: str,
    attempt_id: int | None,
    html: str,
    context: ExplainContext,
) -> Break | None:
    from tracks_dagster.review.effects.pages.report import write_report  # for this option alone

    file = settings.reports / f"{run_id}.html" if html == IN_THE_HOME else Path(html)
    written = write_report(tracks, run_id, file, context, attempt_id=attempt_id)
    click.echo(written.path)
    return written.broken


@click.command("report")
@run_argument
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    show_default="TRACKS_HOME/reports/RUN.html",
    help="The file to write.",
)
@as_json
def report_command(run_id: str, out: Path | None, as_json: bool) -> None:
    """Write the report of RUN, one file without a network, and print its path."""
    from tracks_dagster.review.effects.pages.report import write_report

    settings = Settings.from_environment()
    tracks = open_tracks_to_read(settings)
    file = out or settings.reports / f"{check_run_id(run_id)}.html"
    written = write_report(tracks, run_id, file, explain_context(settings, tracks))
    path = str(written.path)
    print_answer(path, {"run_id": run_id, "path": path}, as_json=as_json)


def write_report_now(app: App, run_id: str) -> Path:
    """Write the report of a run as it is now; return its path."""
    from tracks_dagster.review.effects.pages.report import write_report

    rules, wrong_rules = app.usable_rules()
    prices, wrong_prices = usable_prices(app.settings)
    for problem in filter(None, (wrong_rules, wrong_prices)):
        click.echo(problem, err=True)
    context = ExplainContext(
        rules=rules,
        ledger=app.ledger,
        ui_url=find_ui_url(app.settings),
        prefix=app.settings.prefix,
        board_url=find_board_url(app.settings),
        prices=prices,
        waits=reads_what_waits(app.tracks, partial(eval_tries, app.settings)),
    )
    file = app.settings.reports / f"{run_id}.html"
    return write_report(app.tracks, run_id, file, context).path
