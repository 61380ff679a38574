"""`tracks eval`: ask for an eval of any committed checkpoint."""

from __future__ import annotations

import click

from tracks_dagster.attempts.effects.heartbeat import describe_age, read_heartbeat
from tracks_dagster.cli.common import as_json, attempt_option, by_option, open_app, print_json
from tracks_dagster.data.effects.evals import Asked, ask_for_evals
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.states.checkpoints import parse_at
from tracks_dagster.track.states.run_state import find_at
from tracks_dagster.track.text.safe_text import check_words


@click.command("eval")
@click.argument("at", metavar="RUN@STEP")
@click.option("--suite", help="Only this suite; by default each that the run requires.")
@click.option("--seed", type=click.IntRange(min=0), help="Another seed than the run requires.")
@attempt_option
@click.option("--why", default="", help="In words; it stands in the record.")
@by_option
@as_json
def command(
    at: str,
    suite: str | None,
    seed: int | None,
    attempt: int | None,
    why: str,
    by: str,
    as_json: bool,
) -> None:
    """Ask for an eval of the checkpoint RUN@STEP; the daemon's run_evals runs it.

    One that is under way, or done with that seed, is shown as it stands and not asked for again. With
    evals of several seeds `tracks diff` shows what the seed alone makes.
    """
    check_words({"by": by, **({"why": why} if why else {})})
    run_id, step = parse_at(at)
    tracks = open_app().tracks
    ref = find_at(tracks.run(run_id), step, attempt_id=attempt).ref
    asked = ask_for_evals(tracks, ref, by=by, why=why, suite=suite, seed=seed)
    nobody = describe_age(read_heartbeat(tracks.store), tracks.now())
    if as_json:
        print_json([to_json(each) for each in asked])
        return
    for each in asked:
        click.echo(_describe(run_id, each))
    if nobody is not None and any(each.ended is None for each in asked):
        click.echo(f"It waits: {nobody}.", err=True)


def _describe(run_id: str, asked: Asked) -> str:
    opened = asked.opened
    name = f"{opened.eval_id} of {run_id}, seed {opened.seed}"
    if asked.is_new:
        shown = f"`tracks explain {run_id} --full` shows what it measures"
        return f"Asked for {name}: attempt {opened.number}; {shown}."
    if asked.ended is None:
        return f"{name} is under way: attempt {opened.number}. Nothing was written."
    metrics = ", ".join(
        f"{metric} {value:.6g}" for metric, value in sorted(asked.ended.metrics.items())
    )
    return f"{name} is done: {metrics}. Nothing was written; --seed N measures with another seed."
