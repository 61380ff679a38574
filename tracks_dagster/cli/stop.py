"""`tracks stop`: end a run for good."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import by_option, open_app, why_option
from tracks_dagster.core.names import check_run_id
from tracks_dagster.services.stops import request_stop


@click.command("stop")
@click.argument("run_id")
@why_option
@by_option
def command(run_id: str, why: str, by: str) -> None:
    """Save and end the open attempt of RUN_ID, then finish the run as cancelled."""
    click.echo(request_stop(open_app().tracks, check_run_id(run_id), mode="stop", by=by, why=why))
