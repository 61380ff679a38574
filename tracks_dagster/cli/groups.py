"""Groups of commands whose help is whole: every summary wraps, none ends in "..."."""

from __future__ import annotations

import click

SUMMARY_CHARACTERS_MAX = 1000  # click cuts at what fits in the line; a summary is one sentence


class WholeGroup(click.Group):
    """A group that lists each subcommand with its whole first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands and what each does."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None:
                rows.append((name, command.get_short_help_str(SUMMARY_CHARACTERS_MAX)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
