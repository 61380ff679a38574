"""`tracks drain`: end an attempt, keep the run."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import by_option, open_app, why_option
from tracks_dagster.core.names import check_run_id
from tracks_dagster.services.stops import request_stop


@click.command("drain")
@click.argument("run_id")
@why_option
@by_option
def command(run_id: str, why: str, by: str) -> None:
    """Save and end the open attempt of RUN_ID; the run waits until `tracks retry`."""
    click.echo(request_stop(open_app().tracks, check_run_id(run_id), mode="drain", by=by, why=why))
