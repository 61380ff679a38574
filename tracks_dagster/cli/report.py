"""`tracks report`: a run as one HTML file that opens anywhere."""

from __future__ import annotations

from pathlib import Path

import click

from tracks_dagster.cli.common import open_app
from tracks_dagster.core.names import check_run_id
from tracks_dagster.services.explain.run import Around
from tracks_dagster.services.report import link as report_link
from tracks_dagster.services.status import reads_what_waits
from tracks_dagster.settings import find_ui_url, usable_prices
from tracks_dagster.wiring import App


@click.command("report")
@click.argument("run_id")
def command(run_id: str) -> None:
    """Write the report of RUN_ID to TRACKS_HOME/reports and print its path."""
    click.echo(write_report(open_app(), check_run_id(run_id)))


def write_report(app: App, run_id: str) -> Path:
    """Write the report of a run as it stands now; return its path."""
    rules, wrong_rules = app.usable_rules()
    prices, wrong_prices = usable_prices(app.settings)
    for problem in filter(None, (wrong_rules, wrong_prices)):
        click.echo(problem, err=True)
    around = Around(
        rules=rules,
        ledger=app.ledger,
        ui_url=find_ui_url(app.settings),
        prices=prices,
        waits=reads_what_waits(app.tracks),
    )
    file = app.settings.reports / f"{run_id}.html"
    return report_link.write_report(app.tracks, run_id, file, around).path
