"""`tracks submit`: declare a run and return at once; the daemon of the store starts it."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from tracks_dagster.attempts.effects.local.project_code import project_folder
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, parse_settings, print_answer
from tracks_dagster.cli.declared_options import declared_options
from tracks_dagster.cli.start.follow import Interrupts, RunFollower
from tracks_dagster.cli.start.progress_line import open_view
from tracks_dagster.cli.start.run import STEPS_FIELD, WAIT_S, print_outcome, problem_of
from tracks_dagster.home.home_folder import check_home
from tracks_dagster.review.effects.outcome import read_outcome
from tracks_dagster.settings import Settings, eval_tries, person, usable_prices
from tracks_dagster.submitting import submit
from tracks_dagster.track.declared_fields import DEFAULTS, FIELDS
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.training.saves.manifest import weights_sha256
from tracks_dagster.wiring import App, build


@click.command("submit")
@click.argument("project", required=False)
@click.option(
    "--from",
    "branch_from",
    metavar="RUN@STEP",
    help="Branch from that checkpoint; options that are not given are inherited.",
)
@click.option(
    "--from-attempt",
    "branch_from_attempt",
    type=int,
    help="Attempt of that checkpoint; default: the newest that has STEP.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change the config.")
@click.option("--wait", "waits", is_flag=True, help="Follow it to its end; Ctrl-C only stops that.")
@click.option(
    "--wait-s",
    type=float,
    default=WAIT_S,
    show_default=True,
    help="With --wait: give up after so many seconds without a change.",
)
@declared_options(
    FIELDS,
    run_id={"help": "Its id; the same again is the same run, and another one is refused."},
    owner={"default": person, "show_default": "your user name"},
    checkpoint_every_steps={
        "show_default": f"as the project's file says, else {DEFAULTS[STEPS_FIELD]}, or off with "
        "--checkpoint-every-s"
    },
)
@as_json
@click.pass_context
def submit_command(
    ctx: click.Context,
    /,
    project: str | None,
    branch_from: str | None,
    branch_from_attempt: int | None,
    settings: tuple[str, ...],
    waits: bool,
    wait_s: float,
    as_json: bool,
    asked: dict[str, Any],
) -> None:
    """Declare a run of PROJECT, print its id and return: no daemon is started here.

    PROJECT is the folder of a project (with a slash in it: ./mine), a script (train.py), or the name of
    a project that was added. Left out, it is the folder that you are in, or with --from the code that
    the source stored.

    A daemon of the store (`tracks up`) starts it; `tracks status RUN` says what it waits for.
    """
    if wait_s <= 0:
        raise InvalidInput(f"--wait-s {wait_s:g} is not a time to wait; use more than 0.")
    given = Settings.from_environment()
    check_home(given.home)
    here = project_folder(None) if project is None and branch_from is None else None
    app = build(given)
    done = submit(
        app,
        here or project,
        asked,
        config=parse_settings(settings),
        by=person(),
        branch_from=branch_from,
        branch_from_attempt=branch_from_attempt,
        remark=partial(click.echo, err=True),
    )
    if not waits:
        facts = {"run_id": done.run_id, "is_new": done.is_new}
        print_answer(done.run_id, facts, as_json=as_json)
        return
    click.echo(done.run_id, err=True)
    result = _followed(app, done.run_id, wait_s=wait_s)
    print_outcome(result, as_json=as_json)
    is_good = result["state"] == RunLifecycle.SUCCEEDED and not problem_of(result)
    ctx.exit(0 if is_good else BAD_NEWS)


def _followed(app: App, run_id: str, *, wait_s: float) -> dict[str, Json]:
    """Watch the run to its end; return its outcome with the state it ended in."""
    by = person()
    with open_view() as view:
        # Signals are left as they are: who ends this command ends no run that others may follow too.
        prices = usable_prices(app.settings)[0]
        follower = RunFollower(
            app.tracks,
            run_id,
            view,
            Interrupts(),
            wait_s=wait_s,
            by=by,
            prices=prices,
            tries=partial(eval_tries, app.settings),
        )
        followed = follower.to_the_end()
    if followed.waited_for is not None:
        click.echo(f"{run_id}: {followed.waited_for}", err=True)
    return {**read_outcome(app.tracks, run_id, weights_sha256, by=by), "state": followed.state}
