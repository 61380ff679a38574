"""`tracks board`: the pages on which runs are watched while they train."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import click

from tracks_dagster.cli.common import allow_host_option, archive_option, settings_for
from tracks_dagster.home.admission import (
    PASSWORD,
    Visitors,
    check_listening,
    check_writing,
    host_of,
)
from tracks_dagster.home.on_demand import ADDRESS
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.units import counted


@click.command("board")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=3001,
    show_default=True,
    help="Port; 0: a free one.",
)
@click.option(
    "--listen",
    "address",
    default=ADDRESS,
    show_default=True,
    metavar="ADDRESS",
    help="Answer other machines too, on this address of ours; 0.0.0.0: on all.",
)
@click.option(
    "--user-header",
    default="",
    metavar="NAME",
    help="Let in only whom a proxy of yours names in this header.",
)
@allow_host_option
@click.option(
    "--write",
    "may_write",
    is_flag=True,
    help="Retry, stop, note, tag, promote, quarantine … by forms on a run's page.",
)
@click.option(
    "--prefix",
    metavar="/PATH",
    help="Serve below this path of your proxy; default: the path of TRACKS_BOARD_URL.",
)
@click.option(
    "--export",
    "export_to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Serve nothing: write the pages of these runs as files that open without a server.",
)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--fd", type=int, hidden=True, help="A socket to answer on, of `tracks up`.")
@archive_option
def board_command(
    port: int,
    address: str,
    user_header: str,
    may_write: bool,
    prefix: str | None,
    fd: int | None,
    archive: Path | None,
    allow_host: tuple[str, ...],
    export_to: Path | None,
    runs: tuple[str, ...],
) -> None:
    """Serve the board and print its address: the fleet, each run live, runs side by side.

    It only reads (but for --write), answers on this machine alone, and asks no other machine for
    anything. `tracks up` starts it too. Ctrl-C stops it.

    With --export the named runs' pages are written into a new folder: their comparison (index.html,
    its curves explored as on the board), each run, its report, and what it logged.

    For others: --listen, the name by which they come (--allow-host), and who may: those who have the
    password in TRACKS_BOARD_PASSWORD, or whom a proxy names (--user-header). TLS is the proxy's. With
    --write the record names whom the proxy named, else the owner of this machine.
    """
    from tracks_dagster.wings.watch.board.effects.below import check_prefix
    from tracks_dagster.wings.watch.board.effects.serving import (
        Access,
        listen,
        serve,
        serve_on_demand,
    )

    settings = settings_for(archive)
    if export_to is not None:
        _export(settings, runs, export_to)
        return
    if runs:
        raise InvalidInput(
            f"{runs[0]} was named, and the board serves every run: open its page there, or give "
            "--export FOLDER to write pages of the named ones."
        )
    public = settings.board_url
    visitors = Visitors(
        hosts=frozenset(allow_host) | host_of(public),
        password=os.environ.get(PASSWORD, ""),
        user_header=user_header,
    )
    if may_write:
        check_writing(address, visitors)
        if archive is not None:
            raise InvalidInput("An exported run is not changed: leave out --write or --archive.")
    access = Access(
        visitors=visitors,
        may_write=may_write,
        prefix=check_prefix(urlsplit(public).path if prefix is None else prefix),
    )
    if fd is not None:
        serve_on_demand(settings, fd, access=access)
        return
    check_listening(address, visitors)
    try:
        serve(
            settings,
            listen(port, address),
            lambda url: click.echo(f"{url} (Ctrl-C stops it)"),
            access=access,
        )
    except KeyboardInterrupt:  # uvicorn passes the signal on once it has ended well
        return


def _export(settings: Settings, runs: tuple[str, ...], folder: Path) -> None:
    from tracks_dagster.wings.watch.board.effects.sources import Sources
    from tracks_dagster.wings.watch.board.effects.static_pages import write_pages

    sources = Sources(settings)
    try:
        written = write_pages(sources, runs, folder)
    finally:
        sources.close()
    size = f"{written.total_bytes / 1e6:.1f} MB"
    click.echo(f"{written.file_count} files, {size}. Open {written.index}.")
    if written.left_out:
        left_out = counted(written.left_out, "thing")
        click.echo(f"{left_out} that scripts logged were left out: so many do not fit.", err=True)
