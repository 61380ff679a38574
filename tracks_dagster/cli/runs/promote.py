"""`tracks promote`: give a checkpoint an alias, on the evals that are recorded for it."""

from __future__ import annotations

import click

from tracks_dagster.attempts.effects.opening.runs import PROMOTION_ALIAS
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    as_json,
    by_option,
    open_app,
    parse_run_and_step,
    print_answer,
    why_option,
)
from tracks_dagster.data.effects.promotion import promote
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.safe_text import check_words


@click.command("promote")
@click.argument("target", metavar="RUN[@STEP]")
@click.option("--alias", default=PROMOTION_ALIAS, show_default=True, help="The name to give.")
@why_option
@by_option
@as_json
@click.pass_context
def command(ctx: click.Context, target: str, alias: str, why: str, by: str, as_json: bool) -> None:
    """Promote the final checkpoint of RUN, or the newest one of STEP."""
    check_words({"alias": alias, "why": why, "by": by})
    run_id, step = parse_run_and_step(target)
    tracks = open_app().tracks
    ref = _checkpoint(tracks.run(run_id), step)
    decided = promote(tracks, ref, alias=alias, by=by, why=why)
    verb = "Promoted" if decided.promoted else "Did not promote"
    sentence = f"{verb} step {ref.step} of {run_id} to {alias}: {decided.why}"
    print_answer(sentence, to_json(decided), as_json=as_json)
    ctx.exit(0 if decided.promoted else BAD_NEWS)


def _checkpoint(state: RunState, step: int | None) -> CheckpointRef:
    candidates = [ref for ref in state.resumable if step is None or ref.step == step]
    if not candidates:
        steps = ", ".join(str(ref.step) for ref in state.resumable) or "none"
        raise InvalidInput(
            f"Training run {state.run_id} has no committed checkpoint of step {step}; "
            f"it has: {steps}."
        )
    return resume_target(candidates)
