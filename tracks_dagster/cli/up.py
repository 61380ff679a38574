"""`tracks up`: the web server and the daemon of this home, until Ctrl-C."""

from __future__ import annotations

import threading

import click

from tracks_dagster.cli.daemon_keeper import DaemonKeeper
from tracks_dagster.cli.interrupts import Interrupts
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import build, open_cluster_home, open_dagster_home

LOOK_EVERY_S = 2.0


@click.command("up")
@click.option("--port", type=int, default=3000, show_default=True, help="Of the web server.")
@click.option(
    "--kubernetes", "on_kubernetes", is_flag=True, help="Start every Dagster run as a pod."
)
def command(port: int, on_kubernetes: bool) -> None:
    """Serve the UI, keep the daemon running, and print the address; Ctrl-C stops both.

    Gangs go on without them and are adopted by the next daemon. With --kubernetes the runs are pods
    of the cluster that kubernetes.yaml names; Postgres and a store that pods reach are needed.
    """
    settings = Settings.from_environment()
    # What cannot be used is told before anything is started.
    home = open_cluster_home(settings) if on_kubernetes else open_dagster_home(settings)
    build(settings)
    with Interrupts() as interrupts, home.daemon(), home.webserver(port) as address:
        click.echo(f"{address} (Ctrl-C stops it)")
        keeper = DaemonKeeper(home, lambda text: click.echo(text, err=True))
        while not interrupts.count:
            keeper.keep()
            threading.Event().wait(LOOK_EVERY_S)
