"""The `tracks` command: its list of subcommands, and how errors become exit codes.

A subcommand's module is imported only when it is called, so that reading commands load neither
Dagster nor torch and `tracks status` answers at once. Exit codes: 0 done, 1 the answer is bad news,
2 wrong use (nothing was written).
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from tracks_dagster.cli.words import take_words
from tracks_dagster.core.errors import (
    DataRejected,
    InvalidInput,
    LedgerError,
    StoreUnavailable,
    StoreUnsuitable,
    TracksError,
)

COMMANDS = {  # in the order that `tracks --help` lists them
    "up": "tracks_dagster.cli.up",
    "run": "tracks_dagster.cli.run",
    "drill": "tracks_dagster.cli.drill",
    "doctor": "tracks_dagster.cli.doctor",
    "status": "tracks_dagster.cli.status",
    "triage": "tracks_dagster.cli.triage",
    "explain": "tracks_dagster.cli.explain",
    "logs": "tracks_dagster.cli.logs",
    "report": "tracks_dagster.cli.report",
    "review": "tracks_dagster.cli.review",
    "lineage": "tracks_dagster.cli.lineage",
    "blast": "tracks_dagster.cli.blast",
    "quarantine": "tracks_dagster.cli.quarantine",
    "release": "tracks_dagster.cli.release",
    "retry": "tracks_dagster.cli.retry",
    "stop": "tracks_dagster.cli.stop",
    "drain": "tracks_dagster.cli.drain",
    "pool": "tracks_dagster.cli.pool",
    "note": "tracks_dagster.cli.note",
    "search": "tracks_dagster.cli.search",
    "diff": "tracks_dagster.cli.diff",
    "export": "tracks_dagster.cli.export",
    "promote": "tracks_dagster.cli.promote",
    "policy": "tracks_dagster.cli.policy",
    "simulate": "tracks_dagster.cli.simulate",
    "waive": "tracks_dagster.cli.waive",
    "classify": "tracks_dagster.cli.classify",
    "reclassify": "tracks_dagster.cli.reclassify",
    "checkpoints": "tracks_dagster.cli.checkpoints",
    "snapshots": "tracks_dagster.cli.snapshot_decisions",
    "goodput": "tracks_dagster.cli.goodput",
    "sql": "tracks_dagster.cli.sql",
    "fsck": "tracks_dagster.cli.fsck",
    "reindex": "tracks_dagster.cli.reindex",
}

BAD_NEWS = 1
WRONG_USE = 2

# What a person gave, or pointed at, cannot be used: anything else that goes wrong is bad news.
_WRONG_USE = (InvalidInput, DataRejected, StoreUnavailable, StoreUnsuitable, LedgerError)


class LazyGroup(click.Group):
    """Finds a subcommand by importing its module: `<module>.command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        return take_words(importlib.import_module(COMMANDS[cmd_name]).command)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; an error of ours is told in its own words, without a traceback."""
        try:
            return super().invoke(ctx)
        except TracksError as error:
            ctx.exit(fail(error))


def fail(error: TracksError) -> int:
    """Tell an error of ours on stderr and return the exit code that it means."""
    click.echo(f"tracks: {error}", err=True)
    return WRONG_USE if isinstance(error, _WRONG_USE) else BAD_NEWS


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Training runs that survive preemption and failure, kept as records and run by Dagster.

    TRACKS_HOME, TRACKS_STORE and TRACKS_POSTGRES_URL say where everything lives, TRACKS_POLICY which
    file changes the retry policy, TRACKS_RULES which one adds rules to the classifier,
    TRACKS_KUBERNETES which one says how gangs run on a cluster.
    """
