"""What the command says of itself: whole on 80 columns, in groups, at once."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tests.cli.conftest import Call
from tracks_dagster.cli import GROUPS, SUMMARIES, main
from tracks_dagster.cli.upkeep.completion import SHELLS, VARIABLE

COLUMNS = 80
WITHOUT_AN_ANSWER = ("mcp", "up", "board", "completion")
GROUP_MAX = 7  # what the eye takes in at once


def pages() -> list[tuple[str, ...]]:
    """Return the arguments of every page of help."""
    context = click.Context(main)
    found: list[tuple[str, ...]] = [()]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, each) for each in command.list_commands(context)]
    return found


@pytest.mark.parametrize("page", pages(), ids=" ".join)
def test_help_is_whole_on_eighty_columns(page: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(main, [*page, "--help"], terminal_width=COLUMNS)
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= COLUMNS
    # Usage says "[OPTIONS] COMMAND [ARGS]..." and, of what may be repeated, "NAME..."
    assert not [line for line in shown.stdout.splitlines()[1:] if line.endswith("...")]


@pytest.mark.parametrize("page", pages(), ids=" ".join)
def test_every_command_that_answers_does_so_in_json_too_and_calls_a_run_run(
    page: tuple[str, ...],
) -> None:
    command: click.Command = main
    for name in page:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    if not isinstance(command, click.Group) and page[0] not in WITHOUT_AN_ANSWER:
        assert any("--json" in param.opts for param in command.params)
    assert "RUN_ID" not in command.get_help(click.Context(command))


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("statsu",), "No such command 'statsu'; did you mean status?"),
        (("nonsense",), "No such command 'nonsense'; `main --help` lists them."),
        (("checkpoints", "lst"), "No such command 'lst'; did you mean list?"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    typed: tuple[str, ...], says: str, call: Call
) -> None:
    refused = call(*typed)
    assert (refused.exit_code, says in refused.stderr) == (2, True), refused.stderr


def test_every_command_stands_once_in_a_group_of_a_few() -> None:
    shown = CliRunner().invoke(main, ["--help"], terminal_width=COLUMNS).stdout.splitlines()
    for title, commands in GROUPS.items():
        assert f"{title}:" in shown
        assert len(commands) <= GROUP_MAX
    for name, summary in SUMMARIES.items():
        assert [line for line in shown if line.split() == [name, *summary.split()]], name


def test_help_and_version_import_no_subcommand() -> None:
    script = (
        "import sys\n"
        "from tracks_dagster.cli import main\n"
        "for arguments in (['--help'], ['--version']):\n"
        "    main(arguments, standalone_mode=False)\n"
        "commands = {'tracks_dagster.cli.start.run', 'tracks_dagster.cli.status'}\n"
        "assert not commands & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "\ntracks 0." in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_gets_its_completion_script(shell: str, call: Call) -> None:
    assert VARIABLE in call("completion", shell).stdout


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("tracks exp", {"explain", "export"}),
        ("tracks checkpoints ver", {"verify"}),
        ("tracks explain --evi", {"--evidence"}),
    ],
)
def test_commands_and_options_are_completed(typed: str, expected: set[str]) -> None:
    words = typed.split()
    environment = {
        VARIABLE: "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner(env=environment).invoke(main, prog_name="tracks")
    assert {line.partition(",")[2] for line in result.stdout.splitlines()} == expected
