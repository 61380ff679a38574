"""`tracks waive`: let a required eval go, in words."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import by_option, open_app, why_option
from tracks_dagster.core.names import check_run_id
from tracks_dagster.services.evals import waive
from tracks_dagster.services.runs import check_words


@click.command("waive")
@click.argument("run_id")
@click.argument("suite")
@why_option
@by_option
def command(run_id: str, suite: str, why: str, by: str) -> None:
    """Let the eval SUITE of RUN_ID go, so that the run can finish without it."""
    check_words({"why": why, "by": by})
    waived = waive(open_app().tracks, check_run_id(run_id), suite, by=by, why=why)
    click.echo(f"{run_id} may finish without {waived.suite}; it cannot be promoted on it.")
