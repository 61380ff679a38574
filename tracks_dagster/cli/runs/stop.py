"""`tracks stop`: end a run for good."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import (
    as_json,
    by_option,
    open_app,
    print_answer,
    run_argument,
    seq_of,
    why_option,
)
from tracks_dagster.cli.in_time import answer_in_time
from tracks_dagster.holds.effects.stops import request_stop
from tracks_dagster.track.names import check_run_id


@click.command("stop")
@run_argument
@why_option
@by_option
@as_json
def command(run_id: str, why: str, by: str, as_json: bool) -> None:
    """Save and end the open attempt of RUN, then finish the run as cancelled."""
    with answer_in_time(f"stop {run_id}", to_know=f"tracks explain {run_id}"):
        record = request_stop(open_app().tracks, check_run_id(run_id), mode="stop", by=by, why=why)
    print_answer(
        f"Stopping {run_id}: its gang saves and ends, and the run is finished as cancelled.",
        {"run_id": run_id, "mode": "stop", "seq": seq_of(record)},
        as_json=as_json,
    )
