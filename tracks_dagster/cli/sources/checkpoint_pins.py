"""`tracks checkpoints pin` and `unpin`: a person holds a checkpoint, whatever retention wants."""

from __future__ import annotations

import click

from tracks_dagster.checkpoints.effects.pins import find_held, hold_of, pin, unpin
from tracks_dagster.cli.common import (
    as_json,
    attempt_option,
    by_option,
    open_app,
    print_answer,
    recorded,
    seq_of,
    why_option,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Record
from tracks_dagster.track.states.checkpoints import CheckpointRef, parse_at
from tracks_dagster.track.states.run_state import find_at
from tracks_dagster.track.text.safe_text import check_words


@click.command("pin")
@click.argument("at", metavar="RUN@STEP")
@attempt_option
@why_option
@by_option
@as_json
def pin_checkpoint(at: str, attempt: int | None, why: str, by: str, as_json: bool) -> None:
    """Hold the checkpoint RUN@STEP: it is neither superseded nor deleted until it is unpinned."""
    check_words({"why": why, "by": by})
    run_id, step = parse_at(at)
    tracks = open_app().tracks
    ref = find_at(tracks.run(run_id), step, attempt_id=attempt).ref
    record = pin(tracks, ref, holder=hold_of(by), by=by, why=why)
    _tell("pinned", ref, hold_of(by), record, as_json=as_json)


@click.command("unpin")
@click.argument("at", metavar="RUN@STEP")
@attempt_option
@click.option(
    "--holder", help="Whose pin, as `tracks checkpoints list` shows it; yours by default."
)
@why_option
@by_option
@as_json
def unpin_checkpoint(
    at: str, attempt: int | None, holder: str | None, why: str, by: str, as_json: bool
) -> None:
    """Let go of a pin on the checkpoint RUN@STEP; retention decides about it again."""
    check_words({"why": why, "by": by})
    run_id, step = parse_at(at)
    tracks = open_app().tracks
    name = holder or hold_of(by)
    ref = find_held(tracks.run(run_id), step, holder=name, attempt_id=attempt)
    _tell("unpinned", ref, name, unpin(tracks, ref, holder=name, by=by, why=why), as_json=as_json)


COMMANDS = (pin_checkpoint, unpin_checkpoint)


def _tell(
    verb: str, ref: CheckpointRef, holder: str, record: Record | None, *, as_json: bool
) -> None:
    print_answer(
        f"Step {ref.step} of {ref.run_id}, attempt {ref.attempt_id}, {verb} by {holder}: "
        f"{recorded(record)}.",
        {"ref": to_json(ref), "pin": holder, "status": verb, "seq": seq_of(record)},
        as_json=as_json,
    )
