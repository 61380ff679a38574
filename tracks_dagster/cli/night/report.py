"""`tracks report`: a run as one HTML file that opens anywhere."""

from __future__ import annotations

from pathlib import Path

import click

from tracks_dagster.cli.common import as_json, print_answer, run_argument
from tracks_dagster.cli.night.explain import explain_context
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.review.effects import report as page
from tracks_dagster.review.effects.explain.run import ExplainContext
from tracks_dagster.review.effects.status import reads_what_waits
from tracks_dagster.settings import Settings, find_ui_url, usable_prices
from tracks_dagster.track.names import check_run_id
from tracks_dagster.wiring import App


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
    settings = Settings.from_environment()
    tracks = open_tracks_to_read(settings)
    file = out or settings.reports / f"{check_run_id(run_id)}.html"
    written = page.write_report(tracks, run_id, file, explain_context(settings, tracks))
    path = str(written.path)
    print_answer(path, {"run_id": run_id, "path": path}, as_json=as_json)


def write_report(app: App, run_id: str) -> Path:
    """Write the report of a run as it stands now; return its path."""
    rules, wrong_rules = app.usable_rules()
    prices, wrong_prices = usable_prices(app.settings)
    for problem in filter(None, (wrong_rules, wrong_prices)):
        click.echo(problem, err=True)
    context = ExplainContext(
        rules=rules,
        ledger=app.ledger,
        ui_url=find_ui_url(app.settings),
        prices=prices,
        waits=reads_what_waits(app.tracks),
    )
    file = app.settings.reports / f"{run_id}.html"
    return page.write_report(app.tracks, run_id, file, context).path
