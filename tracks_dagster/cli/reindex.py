"""`tracks reindex`: rebuild the ledger from the tracks."""

from __future__ import annotations

import click

from tracks_dagster.cli.common import open_app


@click.command("reindex")
def command() -> None:
    """Rebuild the ledger from the tracks; safe at any time, also while runs go on."""
    count = open_app().projector.reindex()
    click.echo(f"Rebuilt the ledger from {count} tracks.")
