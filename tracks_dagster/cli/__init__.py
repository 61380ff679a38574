"""The `tracks` command: how subcommands are found, and how errors become exit codes.

A subcommand's module is imported only when it is called, so that reading commands load neither
Dagster nor torch and `tracks status` answers at once. Exit codes: 0 done, 1 the answer is bad news,
2 wrong use (nothing was written).
"""

from __future__ import annotations

import errno
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from tracks_dagster.cli.terminal import check_text_arguments, visible_output
from tracks_dagster.track.errors import (
    DataRejected,
    InvalidInput,
    LedgerError,
    StoreUnavailable,
    StoreUnsuitable,
    TracksError,
)
from tracks_dagster.track.text.nearest import did_you_mean
from tracks_dagster.wing import Wing, load, wings

BAD_NEWS = 1
WRONG_USE = 2

# What the system refuses of a path that a person gave; which command met it does not matter. A right
# that is missing may also be found late, when something was written already: it is bad news.
_BAD_PATH = (errno.ELOOP, errno.ENAMETOOLONG)
_CLOSED_PATH = (errno.EACCES, errno.EPERM, errno.EROFS)
PATH_SHOWN = 200  # characters

# What a person gave, or pointed at, cannot be used; every other error is bad news.
_WRONG_USE = (InvalidInput, DataRejected, StoreUnavailable, StoreUnsuitable, LedgerError)

# The subcommands as `tracks --help` lists them: by what somebody is about to do. Each has a sentence
# that fits in a line of 80 columns; nothing is imported to show it.
_CORE: Mapping[str, Mapping[str, str]] = {
    "Start": {
        "init": "Write a folder's tracks.yaml, or the policy, by asking.",
        "up": "Serve the UI and keep the daemon running.",
        "run": "Declare a training run and follow it to its end.",
        "submit": "Declare a training run, print its id, and return.",
        "projects": "Projects in Dagster: their schedules, and the launchpad.",
    },
    "Before a full run": {
        "smoke": "A few steps of a project: does it start, save, evaluate?",
        "canary": "Real data and config for a while: does its loss fall?",
    },
    "While it trains": {},
    "Woken at night": {
        "status": "Runs: state, attempt, step, and what they wait for.",
        "explain": "Why an attempt ended, from the record alone.",
        "logs": "What the ranks of an attempt printed.",
        "report": "A run as one HTML file.",
        "search": "Notes, alerts, decisions and messages of failures.",
        "review": "What ended on a day, and what needs a person.",
    },
    "Decide about a run": {
        "retry": "Open the next attempt.",
        "drain": "Save and end the attempt, keep the run; or empty a node.",
        "stop": "Save and end the run for good.",
        "note": "Add a sentence to its track.",
        "eval": "Ask for an eval of a checkpoint.",
        "waive": "Give a required eval up.",
        "promote": "Give a checkpoint an alias.",
    },
    "Checkpoints and data": {
        "checkpoints": "List, save, verify, collect, pin and export checkpoints.",
        "snapshots": "Add, list, quarantine and release snapshots of data.",
        "lineage": "What a thing descends from, and what descends from it.",
        "blast": "What descends from a source and is in use now.",
        "quarantine": "Stop new work from starting from a source.",
        "release": "End the quarantine of a source.",
    },
    "Compare and count": {
        "runs": "All runs in one table: filtered, sorted, grouped.",
        "diff": "Two attempts or checkpoints, or an experiment, side by side.",
        "goodput": "Where the device hours went.",
        "slo": "How long each workload class waited, and what it promises.",
        "sql": "One SELECT over the ledger.",
    },
    "Reasons and retries": {
        "policy": "What is retried: how often, how soon, with which change.",
        "classify": "Why failures of other jobs happened.",
        "reclassify": "Read stored evidence again, or give the reason yourself.",
    },
    "Machines and upkeep": {
        "pool": "Nodes of compute pools; quarantine and release them.",
        "doctor": "What a run needs and this machine or cluster lacks.",
        "export": "A run with all its records, to read elsewhere.",
        "fsck": "Check every track, checkpoint, snapshot and the ledger.",
        "reindex": "Rebuild the ledger from the tracks.",
        "completion": "Print the completion script of bash, zsh or fish.",
    },
}
# Command `x` is `x_command` in module `x`, or in the one named here.
_MODULES = {
    "init": "start.init",
    "up": "start.up",
    "run": "start.run",
    "submit": "start.submit",
    "smoke": "start.run",
    "canary": "start.run",
    "projects": "start.projects",
    "report": "explain",
    "search": "logbook",
    "note": "logbook",
    "drain": "stop",
    "eval": "evals",
    "waive": "evals",
    "promote": "evals",
    "checkpoints": "data.checkpoints",
    "snapshots": "data.snapshots",
    "lineage": "data.sources",
    "blast": "data.sources",
    "quarantine": "data.sources",
    "release": "data.sources",
    "runs": "compare.runs",
    "diff": "compare.diff",
    "goodput": "compare.ledger",
    "slo": "compare.ledger",
    "sql": "compare.ledger",
    "export": "compare.export",
    "policy": "policies.policy",
    "classify": "policies.classify",
    "reclassify": "policies.classify",
    "pool": "upkeep.pool",
    "doctor": "upkeep.doctor",
    "fsck": "upkeep.fsck",
    "reindex": "upkeep.fsck",
    "completion": "upkeep.completion",
}


def catalog(added: Iterable[Wing]) -> Mapping[str, Mapping[str, str]]:
    """Return all commands with what these wings add, each behind the one that it follows."""
    groups = {title: list(commands.items()) for title, commands in _CORE.items()}
    for wing in added:
        for name, command in wing.commands.items():
            listed = groups[command.group]
            at = [each for each, _ in listed].index(command.after) + 1 if command.after else 0
            listed.insert(at, (name, command.summary))
    return {title: dict(listed) for title, listed in groups.items()}


GROUPS = catalog(wings().values())
SUMMARIES = {name: text for group in GROUPS.values() for name, text in group.items()}
_OF_WINGS = {
    name: (package, command.module)
    for package, wing in wings().items()
    for name, command in wing.commands.items()
}


class LazyGroup(click.Group):
    """Finds a subcommand by importing its module; lists and completes them without."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the catalog."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        if cmd_name not in SUMMARIES:
            return None
        return check_text_arguments(_load(cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a mistyped one is refused with those that are meant."""
        refuse_unknown(self, ctx, args)
        return super().resolve_command(ctx, args)

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
        """Run the command; what it prints cannot control the terminal, but for our colours."""
        with visible_output():
            return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; an error of ours is printed in its own words, without a traceback."""
        try:
            return super().invoke(ctx)
        except TracksError as error:
            ctx.exit(fail(error))
        except OSError as error:
            if error.errno not in (*_BAD_PATH, *_CLOSED_PATH) or error.filename is None:
                raise
            kind = InvalidInput if error.errno in _BAD_PATH else TracksError
            path = str(error.filename)
            shown = path if len(path) <= PATH_SHOWN else f"{path[:PATH_SHOWN]}…"
            ctx.exit(fail(kind(f"{shown}: {error.strerror}. Give another path.")))


def refuse_unknown(group: click.Group, ctx: click.Context, args: list[str]) -> None:
    """Raise UsageError for a subcommand that there is not, with those that it may mean."""
    name = args[0] if args else ""
    if not name or name.startswith("-") or name in group.list_commands(ctx):
        return
    hint = (
        did_you_mean(name, group.list_commands(ctx)) or f"`{ctx.command_path} --help` lists them."
    )
    ctx.fail(f"No such command {name!r}; {hint.rstrip()}")


def _load(name: str) -> click.Command:
    core = f"tracks_dagster.cli.{_MODULES.get(name, name)}"
    module = load(*_OF_WINGS[name]) if name in _OF_WINGS else importlib.import_module(core)
    command: click.Command = getattr(module, f"{name}_command")
    return command


def fail(error: TracksError) -> int:
    """Print an error of ours on stderr; return the exit code that it means."""
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
