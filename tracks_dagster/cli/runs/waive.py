"""`tracks waive`: let a required eval go, in words."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import (
    as_json,
    by_option,
    open_app,
    print_answer,
    run_argument,
    why_option,
)
from tracks_dagster.data.effects.evals import waive
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.text.safe_text import check_words


@click.command("waive")
@run_argument
@click.argument("suite")
@why_option
@by_option
@as_json
def command(run_id: str, suite: str, why: str, by: str, as_json: bool) -> None:
    """Let the eval SUITE of RUN go, so that the run can finish without it."""
    check_words({"why": why, "by": by})
    waived = waive(open_app().tracks, check_run_id(run_id), suite, by=by, why=why)
    print_answer(
        f"{run_id} may finish without {waived.suite}; it cannot be promoted on it.",
        {"run_id": run_id, **to_json(waived)},
        as_json=as_json,
    )
