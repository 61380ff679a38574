"""`tracks checkpoints verify`: read every byte, and record what came of it."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tracks_dagster.checkpoints.effects.verification import Verified, fallback_words, verify
from tracks_dagster.cli.common import as_json, by_option, open_app
from tracks_dagster.cli.telling import Told, of_every_run, tell
from tracks_dagster.reading import open_store_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import CheckpointMismatch, InvalidInput, StoreUnavailable
from tracks_dagster.track.names import check_run_id
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState, find_at
from tracks_dagster.wiring import App


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
    """Read every byte of the checkpoints of RUN, or of all runs; exit with 1 when one is not good.

    What was read in full is recorded as verified, what is corrupt is quarantined: a resume then
    falls back to the checkpoint that is named. A run that cannot be read is told, and the others go
    on.
    """
    if run_id is None and (step is not None or attempt is not None):
        raise InvalidInput("--step and --attempt need a RUN: they say which of its checkpoints.")
    open_store_to_read(Settings.from_environment())  # an empty home is told, not made
    app = open_app()
    if run_id is None:
        told = of_every_run(app.store, lambda each: _verify_run(app, each, by=by))
    else:
        told = _verify_run(app, check_run_id(run_id), step=step, attempt_id=attempt, by=by)
    ctx.exit(tell(told, as_json=as_json, nothing="There is no checkpoint to verify."))


def _verify_run(
    app: App, run_id: str, *, step: int | None = None, attempt_id: int | None = None, by: str
) -> Iterator[Told]:
    for ref in _wanted(app.tracks.run(run_id), step=step, attempt_id=attempt_id):
        yield _verify(app, ref, by=by)


def _wanted(state: RunState, *, step: int | None, attempt_id: int | None) -> list[CheckpointRef]:
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


def _verify(app: App, ref: CheckpointRef, *, by: str) -> Told:
    """Verify one checkpoint. What cannot be read now, or by this version, is not known to be bad."""
    where = f"{ref.run_id} step {ref.step}, attempt {ref.attempt_id}"
    try:
        read = verify(app.tracks, app.checkpoints, ref, by=by)
    except (CheckpointMismatch, StoreUnavailable) as error:
        row = {"status": "unreadable", "problem": str(error), "ref": to_json(ref)}
        return Told(row=row, text=f"unreadable  {where}: {error}", is_bad=True)
    row = {"status": read.status, **to_json(read)}
    text = f"{read.status:<12}{where}{_detail(read)}"
    return Told(row=row, text=text, is_bad=read.problem is not None)


def _detail(read: Verified) -> str:
    if read.problem is not None:
        by = f"record {read.seq}" if read.seq is not None else "an earlier record"
        fallback = fallback_words(read.fallback)
        return f": {read.problem}\n            Quarantined by {by}. {fallback}"
    if read.total_bytes is None:
        return ", while it was read"
    return f": {read.total_bytes} bytes, record {read.seq}"
