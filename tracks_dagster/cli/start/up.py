"""`tracks up`: the web server, the daemon and the board of this home, until Ctrl-C."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial

import click

from tracks_dagster.attempts.effects.local.launcher import living_gangs
from tracks_dagster.cli import BAD_NEWS, fail
from tracks_dagster.cli.common import allow_host_option
from tracks_dagster.cli.start.follow import Interrupts, Keeper
from tracks_dagster.home.dagster_home import CODE_SERVER_S_MAX, DagsterHome
from tracks_dagster.home.home_folder import how_open
from tracks_dagster.home.on_demand import BOARD_FILE, OnDemand, on_demand
from tracks_dagster.home.web_server import check_port
from tracks_dagster.processes.process import this_process, write_process
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import OrchestratorError, TracksError
from tracks_dagster.track.names import parse_attempt_key
from tracks_dagster.track.unforeseen import problem_of
from tracks_dagster.wing import launchers
from tracks_dagster.wiring import App, build, launching, open_dagster_home

LOOK_EVERY_S = 2.0
FIRST_LOOKS_EVERY_S = 0.2  # until the UI answers


def _place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each place of a wing where Dagster's runs can be."""
    for name, (_, launcher) in launchers().items():
        if launcher.runs:
            command = click.option(f"--{name}", name, is_flag=True, help=launcher.runs)(command)
    return command


@click.command("up")
@click.option("--port", type=int, default=3000, show_default=True, help="Port of the web server.")
@_place_options
@allow_host_option
def up_command(port: int, allow_host: tuple[str, ...], **places: bool) -> None:
    """Serve the UI and the board, keep the daemon running, print the addresses; Ctrl-C stops all.

    Gangs train on without them, and the next daemon adopts them. With --kubernetes the runs are pods
    of the cluster that kubernetes.yaml names; that needs Postgres and a store that pods reach.

    Leftovers of a killed command are ended first; other processes of this home are named.
    """
    settings = Settings.from_environment()
    # Wrong settings are an error before anything is started.
    chosen = next((name for name, is_chosen in places.items() if is_chosen), None)
    home = launching(chosen).open_home(settings) if chosen else open_dagster_home(settings)
    if (code := _look_around(settings, home)) != 0:
        sys.exit(code)
    check_port(port)
    with (
        Interrupts() as interrupts,
        home.daemon(),
        home.webserver(port, hosts=allow_host) as web,
        _board(settings, port, allow_host) as board,
    ):
        report = partial(click.echo, err=True)
        keepers = [
            Keeper(home.ensure_daemon, home.why_daemon_ended, report),
            Keeper(web.ensure, web.why_ended, report),
        ]
        with suppress(OrchestratorError):  # its keeper says why, and tries again
            web.ensure()
        is_shown, give_up_at = False, time.monotonic() + CODE_SERVER_S_MAX
        while not interrupts.count:
            for keeper in keepers:
                keeper.keep()
            is_late = time.monotonic() > give_up_at  # then a person may see there what is wrong
            if web.answers and not is_shown and (is_late or web.takes_launches()):
                is_shown = True
                unready = "; its code is not loaded yet: it launches nothing" if is_late else ""
                click.echo(f"{web.address} (Ctrl-C stops it{unready})")
                click.echo(f"{board.address} is the board: every open run, live")
            board.wait(LOOK_EVERY_S if is_shown else FIRST_LOOKS_EVERY_S)


@contextmanager
def _board(settings: Settings, port: int, hosts: Sequence[str]) -> Iterator[OnDemand]:
    """Hold the board beside the UI, for its first visitor to start, and write down where it answers."""
    log = settings.home / "board.log"
    command = ["board", *(f"--allow-host={host}" for host in hosts)]
    with on_demand(port, command, environment=settings.environment, log=log) as board:
        write_process(settings.home / BOARD_FILE, this_process(), address=board.address)
        yield board


def _look_around(settings: Settings, home: DagsterHome) -> int:
    """Report what runs, and whether the settings can be used; return the exit code, 0 to go on.

    In a child: what it imports and opens is not held for as long as the UI is up, 25 MB of it.
    """
    output, into = os.pipe()
    child = os.fork()
    if child == 0:
        code = BAD_NEWS
        try:
            with open(into, "w", encoding="utf-8") as file, redirect_stderr(file):  # noqa: PTH123
                try:
                    _report_what_runs(build(settings), home)
                    code = 0
                except TracksError as error:
                    code = fail(error)
                except Exception:  # noqa: BLE001  # a defect: this process ends before Python shows it
                    traceback.print_exc()
        finally:
            os._exit(code)
    os.close(into)
    with open(output, encoding="utf-8") as file:  # noqa: PTH123
        click.echo(file.read(), err=True, nl=False)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _report_what_runs(app: App, home: DagsterHome) -> None:
    """End what nobody uses; print on stderr who may read the home and what of it runs already."""
    if (problem := how_open(app.settings.home)) is not None:
        click.echo(problem, err=True)
    for what in home.end_unused():
        click.echo(f"Ended what an earlier command had left: {what}", err=True)
    for what in home.running():
        click.echo(f"Runs already, and is used by another command: {what}", err=True)
    for key, parent in living_gangs(app.settings.work):
        run_id, attempt_id = parse_attempt_key(key)
        try:
            state = app.tracks.find_run(run_id)
        except Exception as error:  # noqa: BLE001 - of that run alone
            click.echo(
                f"Runs already: the gang of {key}, pid {parent.pid}. {problem_of(error)}", err=True
            )
            continue
        attempt = state.attempt(attempt_id) if state is not None else None
        since = f"since {parent.began_at:%Y-%m-%dT%H:%M:%SZ}"
        what = f"the gang of {key}: pid {parent.pid} and its ranks, {since}"
        fate = "it trains on, and the daemon adopts it"
        if attempt is None or not attempt.is_open:
            fate = f"its attempt is over; `kill -KILL -- -{parent.pid}` ends it"
        click.echo(f"Runs already: {what}; {fate}", err=True)
