"""The `tracks` command: how subcommands are found, and how errors become exit codes.

A subcommand's module is imported only when it is called, so that reading commands load neither
Dagster nor torch and `tracks status` answers at once. Exit codes: 0 done, 1 the answer is bad news,
2 wrong use (nothing was written).
"""

from __future__ import annotations

import importlib
from typing import Any

import click
from click.shell_completion import CompletionItem

from tracks_dagster.cli.catalog import GROUPS, SUMMARIES, module_of
from tracks_dagster.cli.printing import visible_output
from tracks_dagster.cli.words import take_words
from tracks_dagster.track.errors import (
    DataRejected,
    InvalidInput,
    LedgerError,
    StoreUnavailable,
    StoreUnsuitable,
    TracksError,
)

BAD_NEWS = 1
WRONG_USE = 2

# What a person gave, or pointed at, cannot be used: anything else that goes wrong is bad news.
_WRONG_USE = (InvalidInput, DataRejected, StoreUnavailable, StoreUnsuitable, LedgerError)


class LazyGroup(click.Group):
    """Finds a subcommand by importing its module; lists and completes them without."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the catalog."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        if cmd_name not in SUMMARIES:
            return None
        return take_words(_load(cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the catalog."""
        width = max(map(len, SUMMARIES))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the subcommands, and options of `tracks` itself, that begin so."""
        names = [name for name in SUMMARIES if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=SUMMARIES[name]) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command; nothing that it prints speaks to the terminal but in colours of ours."""
        with visible_output():
            return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; an error of ours is told in its own words, without a traceback."""
        try:
            return super().invoke(ctx)
        except TracksError as error:
            ctx.exit(fail(error))


def _load(name: str) -> click.Command:
    command: click.Command = getattr(importlib.import_module(module_of(name)), f"{name}_command")
    return command


def fail(error: TracksError) -> int:
    """Tell an error of ours on stderr and return the exit code that it means."""
    click.echo(f"tracks: {error}", err=True)
    for note in getattr(error, "__notes__", ()):
        click.echo(note, err=True)
    return WRONG_USE if isinstance(error, _WRONG_USE) else BAD_NEWS


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tracks-dagster", message="tracks %(version)s")
def main() -> None:
    """Training runs that survive preemption and failure, kept as records and run by Dagster.

    TRACKS_HOME, TRACKS_STORE and TRACKS_POSTGRES_URL set where everything is stored; docs/settings.md
    lists all settings. `tracks COMMAND --help` shows the rest.
    """
