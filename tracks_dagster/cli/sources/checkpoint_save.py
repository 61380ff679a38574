"""`tracks checkpoints save`: a checkpoint of a running gang now, and not at its next interval."""

from __future__ import annotations

import click

from tracks_dagster.attempts.effects.on_demand import ask_to_save, wait_for_save, why_not_saved
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, open_app, print_json, run_argument
from tracks_dagster.reading import open_store_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import check_run_id

WAIT_S = 300.0
WAIT_S_MAX = 24 * 3600.0


@click.command("save")
@run_argument
@click.option("--wait", "wait_s", type=float, default=WAIT_S, show_default=True, help="Seconds.")
@as_json
@click.pass_context
def command(ctx: click.Context, run_id: str, wait_s: float, as_json: bool) -> None:
    """Ask the gang of RUN, on this machine or on the cluster, to save at the end of its running step.

    Waits until the checkpoint is committed and says which it is; exit with 1 when none came.
    """
    if not 0 < wait_s <= WAIT_S_MAX:
        raise InvalidInput(f"--wait is {wait_s:g}; use more than 0 and at most {WAIT_S_MAX:g} s.")
    open_store_to_read(Settings.from_environment())  # an empty home is told, not made
    app = open_app()
    asked = ask_to_save(app.tracks, app.launcher_of, check_run_id(run_id))
    found = wait_for_save(app.tracks, asked, wait_s=wait_s)
    why_not = "" if found is not None else why_not_saved(app.tracks.run(run_id), asked)
    if as_json:
        print_json({"ref": to_json(found.ref) if found else None, "problem": why_not or None})
    elif found is not None:
        click.echo(
            f"Step {found.ref.step} of {run_id}, attempt {found.ref.attempt_id}, committed "
            f"({found.body.trigger}): record {found.seq}, manifest {found.ref.manifest_sha256}."
        )
    else:
        click.echo(why_not)
    ctx.exit(0 if found is not None else BAD_NEWS)
