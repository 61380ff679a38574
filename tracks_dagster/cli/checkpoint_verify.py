"""`tracks checkpoints verify`: read every byte, and record what came of it."""

from __future__ import annotations

import click

from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, by_option, open_app, print_json
from tracks_dagster.core.body_json import to_json
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.errors import CheckpointMismatch, InvalidInput
from tracks_dagster.core.names import check_run_id
from tracks_dagster.core.records import Json
from tracks_dagster.core.run_state import RunState, find_at
from tracks_dagster.services.verification import Verified, fallback_words, verify
from tracks_dagster.wiring import App, Settings, open_store_to_read


@click.command("verify")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--step", type=int, help="Only the checkpoint of this step.")
@click.option("--attempt", type=int, help="Only checkpoints of this attempt.")
@by_option
@as_json
@click.pass_context
def command(
    ctx: click.Context,
    run_id: str | None,
    step: int | None,
    attempt: int | None,
    by: str,
    as_json: bool,
) -> None:
    """Read every byte of the checkpoints of RUN, or of all runs; exit with 1 when one is corrupt.

    What was read in full is recorded as verified, what is corrupt is quarantined: a resume then
    falls back to the checkpoint that is named.
    """
    if run_id is None and (step is not None or attempt is not None):
        raise InvalidInput("--step and --attempt need a RUN: they say which of its checkpoints.")
    open_store_to_read(Settings.from_environment())  # an empty home is told, not made
    app = open_app()
    told = [_verify(app, ref, by=by) for ref in _wanted(app, run_id, step=step, attempt_id=attempt)]
    print_json([row for row, _ in told]) if as_json else _print(told)
    ctx.exit(BAD_NEWS if any(row["status"] != "verified" for row, _ in told) else 0)


def _wanted(
    app: App, run_id: str | None, *, step: int | None, attempt_id: int | None
) -> list[CheckpointRef]:
    if run_id is None:
        states = [app.tracks.run(name) for name in app.store.folders("runs/")]
        return [ref for state in states for ref in state.resumable]
    state = app.tracks.run(check_run_id(run_id))
    if step is not None:
        return [find_at(state, step, attempt_id=attempt_id).ref]
    refs = [ref for ref in state.resumable if attempt_id in (None, ref.attempt_id)]
    if not refs and attempt_id is not None:
        raise InvalidInput(_no_attempt(state, attempt_id))
    return refs


def _no_attempt(state: RunState, attempt_id: int) -> str:
    attempts = sorted({ref.attempt_id for ref in state.resumable})
    have = ", ".join(map(str, attempts)) or "none"
    return f"Attempt {attempt_id} of {state.run_id} has no checkpoint; attempts that have: {have}."


def _verify(app: App, ref: CheckpointRef, *, by: str) -> tuple[dict[str, Json], str]:
    """Return one row of JSON and one text. A manifest of another format says nothing of its bytes."""
    where = f"{ref.run_id} step {ref.step}, attempt {ref.attempt_id}"
    try:
        read = verify(app.tracks, app.checkpoints, ref, by=by)
    except CheckpointMismatch as error:
        row = {"status": "unreadable", "problem": str(error), "ref": to_json(ref)}
        return row, f"unreadable  {where}: {error}"
    if read.problem is not None:
        return {"status": "corrupt", **to_json(read)}, f"corrupt     {where}: {_corrupt(read)}"
    if read.total_bytes is None:
        return {"status": "verified", **to_json(read)}, f"deleted     {where}, while it was read"
    text = f"verified    {where}: {read.total_bytes} bytes, record {read.seq}"
    return {"status": "verified", **to_json(read)}, text


def _corrupt(read: Verified) -> str:
    by = f"record {read.seq}" if read.seq is not None else "an earlier record"
    return f"{read.problem}\n            Quarantined by {by}. {fallback_words(read.fallback)}"


def _print(told: list[tuple[dict[str, Json], str]]) -> None:
    for _, text in told:
        click.echo(text)
    if not told:
        click.echo("There is no checkpoint to verify.")
