"""`tracks board`: the pages on which runs are watched while they train."""

from __future__ import annotations

from pathlib import Path

import click

from tracks_dagster.cli.common import allow_host_option, archive_option, settings_for


@click.command("board")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=3001,
    show_default=True,
    help="Port on 127.0.0.1; 0: a free one.",
)
@allow_host_option
@click.option("--fd", type=int, hidden=True, help="A socket to answer on, of `tracks up`.")
@archive_option
def board_command(
    port: int, fd: int | None, archive: Path | None, allow_host: tuple[str, ...]
) -> None:
    """Serve the board and print its address: the fleet, each run live, runs side by side.

    It only reads, answers on this machine alone, and asks no other machine for anything. `tracks up`
    starts it too. Ctrl-C stops it.
    """
    from tracks_dagster.wings.watch.board.effects.serving import listen, serve, serve_on_demand

    settings = settings_for(archive)
    if fd is not None:
        serve_on_demand(settings, fd, hosts=allow_host)
        return
    try:
        serve(
            settings,
            listen(port),
            lambda address: click.echo(f"{address} (Ctrl-C stops it)"),
            hosts=allow_host,
        )
    except KeyboardInterrupt:  # uvicorn passes the signal on once it has ended well
        return
