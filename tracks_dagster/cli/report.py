"""`tracks report`: a run as one HTML file that opens anywhere."""

from __future__ import annotations

from pathlib import Path

import click

from tracks_dagster.cli.common import as_json, open_app, print_answer, run_argument
from tracks_dagster.core.names import check_run_id
from tracks_dagster.services.explain.run import Around
from tracks_dagster.services.report import link as report_link
from tracks_dagster.services.status import reads_what_waits
from tracks_dagster.settings import find_ui_url, usable_prices
from tracks_dagster.wiring import App


@click.command("report")
@run_argument
@as_json
def command(run_id: str, as_json: bool) -> None:
    """Write the report of RUN to TRACKS_HOME/reports and print its path."""
    path = str(write_report(open_app(), check_run_id(run_id)))
    print_answer(path, {"run_id": run_id, "path": path}, as_json=as_json)


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
