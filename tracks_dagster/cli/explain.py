"""`tracks explain`: why an attempt ended, from the record alone."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import as_json, parse_target, print_json
from tracks_dagster.core.body_json import to_json
from tracks_dagster.services.explain import explain_attempt, explain_run
from tracks_dagster.services.explain_text import attempt_text, run_text
from tracks_dagster.settings import Settings, usable_rules
from tracks_dagster.wiring import open_tracks_to_read


@click.command("explain")
@click.argument("target", metavar="RUN[/aNN]")
@as_json
def command(target: str, as_json: bool) -> None:
    """Explain a run, or one attempt: what it tried, on what, why it ended, what to do."""
    run_id, attempt_id = parse_target(target)
    settings = Settings.from_environment()
    tracks, (rules, problem) = open_tracks_to_read(settings), usable_rules(settings)
    if problem is not None:
        click.echo(problem, err=True)
    if attempt_id is None:
        run = explain_run(tracks, run_id, rules)
        print_json(to_json(run)) if as_json else click.echo(run_text(run))
    else:
        attempt = explain_attempt(tracks, run_id, attempt_id, rules)
        print_json(to_json(attempt)) if as_json else click.echo(attempt_text(attempt))
