"""`tracks completion`: a shell runs it at each start, so it loads nothing else."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from tracks_dagster.cli.terminal import echo_whole

VARIABLE = "_TRACKS_COMPLETE"  # click's own name for the program "tracks"
SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    bash, zsh: eval "$(tracks completion bash)" in ~/.bashrc or ~/.zshrc. fish: tracks completion fish
    > ~/.config/fish/completions/tracks.fish
    """
    completion = get_completion_class(shell)
    if completion is None:  # click knows all of SHELLS
        raise click.UsageError(f"There is no completion for {shell}.")
    echo_whole(completion(context.find_root().command, {}, "tracks", VARIABLE).source())
