"""Drive a run without a UI: a daemon for as long as it is needed, and a follower that watches.

The sensors of the daemon decide and launch. This process may be killed at any moment, and the next
`tracks run --run-id` continues the run from its track.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import click

from tracks_dagster.attempts.effects.manual_retry import ManualRetry, retry_by_person
from tracks_dagster.attempts.effects.supervise import claim_outside_drill, steps_done
from tracks_dagster.cli.start.follow import (
    Followed,
    Interrupts,
    Keeper,
    RunFollower,
)
from tracks_dagster.cli.start.progress_line import View, open_view
from tracks_dagster.home.dagster_home import DagsterHome
from tracks_dagster.settings import eval_tries, usable_prices
from tracks_dagster.track.errors import InvalidInput, TracksError
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wiring import App


def take_up(app: App, run_id: str, *, by: str, intent: str) -> RunState | None:
    """Return the run of that id, None when there is none; one that was drained gets a new attempt.

    intent: why it is taken up again, as the record of that attempt has it.
    """
    state = app.tracks.find_run(run_id)
    if state is None:
        return None
    status = run_status(state)
    click.echo(f"{run_id} exists and continues as it was declared: {status.why}", err=True)
    if status.state == RunLifecycle.WAITING:
        why = f"Continued by `tracks run`: {intent}"
        world = app.world(app.policy)
        retry_by_person(world, run_id, ManualRetry(name=by, why=why))
    return state


def drive(
    app: App, home: DagsterHome, run_id: str, *, wait_s: float, by: str, shown: int = 0
) -> Followed:
    """Follow the run until it is over, drained, or has not changed for `wait_s`.

    Uses the daemon of this home; one that had to be started is stopped at the end. Prints on
    stderr how to continue where the run is not over. shown: how many records were there before and need
    no line. Raises the final error of the store, the ledger or Dagster, with how to continue as a note.
    """
    with continue_hint(run_id):
        return _drive(app, home, run_id, wait_s=wait_s, by=by, shown=shown)


@contextmanager
def continue_hint(run_id: str) -> Iterator[None]:
    """Print how to continue a declared run, whatever ends the command before the run's end.

    An error of ours gets it as a note, which `cli.fail` prints below its text.
    """
    try:
        yield
    except TracksError as error:
        has_note = _how_to_continue(run_id) in getattr(error, "__notes__", ())
        if not has_note and not isinstance(error, InvalidInput):  # that wrote nothing
            error.add_note(_how_to_continue(run_id))
        raise
    except KeyboardInterrupt:
        click.echo(_how_to_continue(run_id), err=True)
        raise


def _drive(
    app: App, home: DagsterHome, run_id: str, *, wait_s: float, by: str, shown: int
) -> Followed:
    state = run_status(app.tracks.run(run_id)).state
    if state != RunLifecycle.RUNNING:
        return Followed(state=state, is_drained=False, waited_for=None)  # nothing to wait for
    with Interrupts() as interrupts, home.daemon():
        with open_view() as view:
            keeper = Keeper(home.ensure_daemon, home.why_daemon_ended, view.event)
            follower = RunFollower(
                app.tracks,
                run_id,
                view,
                interrupts,
                wait_s=wait_s,
                by=by,
                shown=shown,
                prices=usable_prices(app.settings)[0],
                tries=partial(eval_tries, app.settings),
                check=lambda: _look_after_daemon(app, home, run_id, keeper),
            )
            try:
                followed = follower.to_the_end()
            except KeyboardInterrupt:
                followed = _end_at_once(app, run_id, follower, view)
        _print_how_to_continue(app, run_id, followed)  # before the daemon takes its time to stop
    return followed


def _look_after_daemon(app: App, home: DagsterHome, run_id: str, keeper: Keeper) -> None:
    play_daemon_death(app, home, run_id)
    keeper.keep()


def play_daemon_death(app: App, home: DagsterHome, run_id: str) -> None:
    """Kill the daemon where a drill of the run asks for it, once."""
    state = app.tracks.run(run_id)
    if not any(drill.kind == "kill_daemon" for drill in state.declared.drills):
        return
    done = steps_done(app.tracks, state)
    daemon = home.find_daemon()
    if daemon is None or claim_outside_drill(app.tracks, state, "kill_daemon", done) is None:
        return
    os.kill(daemon.pid, signal.SIGKILL)


def _end_at_once(app: App, run_id: str, follower: RunFollower, view: View) -> Followed:
    """Kill the gang, if one lives; the next daemon finds it gone and closes the attempt."""
    view.event("ending everything at once")
    try:  # two Ctrl-C in a row leave no time for it before
        follower.request_drain()
    except TracksError as error:
        view.event(f"Why it ends was not recorded: {error}")
    try:
        attempt = app.tracks.run(run_id).open_attempt
        if attempt is not None:
            ref = AttemptRef(run_id, attempt.attempt_id)
            app.launcher_of(attempt.opened.compute.launcher).kill(ref)
    except TracksError as error:
        view.event(f"The gang was not ended, and trains on: {error}")
    return Followed(state=RunLifecycle.WAITING.value, is_drained=True, waited_for=None)


def _print_how_to_continue(app: App, run_id: str, followed: Followed) -> None:
    if followed.is_drained:
        click.echo(_how_to_continue(run_id), err=True)
    elif followed.state == RunLifecycle.WAITING:
        status = run_status(app.tracks.run(run_id))
        click.echo(f"{run_id} did not change. {followed.waited_for or status.why}", err=True)
        click.echo(_how_to_continue(run_id), err=True)
    elif followed.state == RunLifecycle.REFUSED:
        click.echo(f"To see why: tracks explain {run_id}", err=True)


def _how_to_continue(run_id: str) -> str:
    return f"To continue: tracks run --run-id {run_id}"
