"""`tracks status`: the state of runs, and what those that wait are waiting for."""

from __future__ import annotations

from functools import partial

import click

from tracks_dagster.cli.common import as_json, print_json, print_table
from tracks_dagster.cli.terminal import echo_state
from tracks_dagster.reading import open_ledger_to_read, open_tracks_to_read
from tracks_dagster.review.effects.status import RunLine, read_status, waiting_studies
from tracks_dagster.settings import Settings, eval_tries, policy_problem
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput, NothingYet
from tracks_dagster.track.text.units import counted

_UNTIL_MENDED = "Until it is mended no run is declared, and no retry or promotion is decided."


@click.command("status")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option(
    "--where", default="", metavar="FILTER", help="Only these, as `tracks runs --where` has them."
)
@as_json
def status_command(run_id: str | None, where: str, as_json: bool) -> None:
    """Show RUN, or the newest runs: state, attempt, step, and what they wait for.

    \b
    --where 'state=running owner:ann'
    --where 'experiment=rates started>=2026-01-31'
    """
    if run_id is not None and where:
        raise InvalidInput("--where picks among all runs; leave RUN or the filter out.")
    settings = Settings.from_environment()
    lines, studies = _read(settings, run_id, where)
    if (problem := policy_problem(settings)) is not None:
        click.echo(f"{problem}\n{_UNTIL_MENDED}", err=True)
    if as_json:
        print_json([to_json(line) for line in lines])
    elif not lines and not studies:
        none = "No training run yet; `tracks run` in a project's folder starts one."
        click.echo("No run is so." if where else none)
    elif run_id is not None:
        line = lines[0]
        echo_state(f"{line.run_id}: ", line.state, f". {_why(line)}")
        click.echo(_sentences(line))
    else:
        if lines:
            print_table(("run", "state", "attempt", "step", "what now"), map(_cells, lines))
        for study in studies:
            click.echo(study)


def _read(settings: Settings, run_id: str | None, where: str) -> tuple[list[RunLine], list[str]]:
    """Return the runs; and of all of them the studies that wait, in words."""
    try:
        tracks = open_tracks_to_read(settings)
    except NothingYet:
        if run_id is None:
            return [], []
        raise
    ledger = open_ledger_to_read(settings)
    tries = partial(eval_tries, settings)
    lines = read_status(tracks, ledger, run_id=run_id, where=where, tries=tries)
    return lines, [] if run_id or where else waiting_studies(tracks, ledger)


def _sentences(line: RunLine) -> str:
    loss = f", training loss {line.loss:.4f}" if line.loss is not None else ""
    of = "" if line.steps is None else f" of {line.steps}"
    sentences = [f"attempt {line.attempt_id or '–'}, step {line.step or 0}{of}{loss}"]
    if line.workload_class:
        sentences.append(f"class {line.workload_class}")
    if line.branched_from:
        sentences.append(f"a branch of {line.branched_from}")
    if line.waiting_for:
        sentences.append(line.waiting_for)
    if line.promoted_to:
        sentences.append(f"promoted to {line.promoted_to}")
    if line.open_alerts:
        sentences.append(f"{_alerts(line)}: `tracks alerts --run {line.run_id}`")
    sentences += line.quarantined
    return "\n".join(sentences)


def _alerts(line: RunLine) -> str:
    return counted(line.open_alerts, "open alert")


def _why(line: RunLine) -> str:
    return f"{line.why} {line.silence}" if line.silence else line.why


def _cells(line: RunLine) -> tuple[str, ...]:
    branch = f"a branch of {line.branched_from}; " if line.branched_from else ""
    return (
        line.run_id,
        line.state,
        str(line.attempt_id or "–"),
        str(line.step or 0) if line.steps is None else f"{line.step or 0}/{line.steps}",
        f"{branch}{line.waiting_for or _why(line)}"
        + (f" ({_alerts(line)}: `tracks alerts`)" if line.open_alerts else ""),
    )
