"""Every rule has its runbook; every command in one parses, and where it reads, runs."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from tests.cli.conftest import Call
from tests.reference import RULES_PAGE, with_rules
from tests.stories import RUN_ID, Story
from tracks_dagster.cli import main
from tracks_dagster.settings import find_root
from tracks_dagster.wings.watch.health.rules import RULES, RUNBOOKS

HEADINGS = ("## What it means", "## Check", "## Do", "## When that does not help")
# As a command in a text begins: a line of its own, or in backticks.
COMMAND = re.compile(r"^ {4}tracks (.+)$|`tracks ([^`]+)`", re.MULTILINE)
WORD = re.compile(r"[a-z_]+")
READS = (
    ("explain",), ("status",), ("health",), ("logs",), ("triage",), ("profile",), ("slo",),
    ("goodput",), ("search",), ("fsck",), ("checkpoints", "list"), ("checkpoints", "advise"),
    ("checkpoints", "verify"), ("pool",), ("policy",),
)  # fmt: skip
WRITES = ("--apply", "quarantine", "release", "--check")


def runbook(rule: str) -> str:
    return (find_root() / RULES[rule].runbook).read_text(encoding="utf-8")


def commands(text: str) -> list[list[str]]:
    found = (one or other for one, other in COMMAND.findall(text))
    return [shlex.split(each) for each in found]


ALL = sorted(
    {tuple(command) for rule in RULES for command in commands(runbook(rule))}
    | {tuple(shlex.split(rule.command.format(run="RUN"))[1:]) for rule in RULES.values()}
)


def reads(command: tuple[str, ...]) -> bool:
    is_reading = any(command[: len(each)] == each for each in READS)
    return is_reading and not any(word in command for word in WRITES)


def test_every_rule_has_its_page_and_every_page_its_rule() -> None:
    pages = {path.stem for path in (find_root() / RUNBOOKS).glob("*.md")}
    assert pages == RULES.keys()
    for rule in RULES:
        text = runbook(rule)
        assert text.startswith(f"# {rule}\n")
        places = [text.find(f"\n{heading}\n") for heading in HEADINGS]
        assert -1 < places[0] < places[1] < places[2] < places[3], rule
        check, do = text[places[1] : places[2]], text[places[2] : places[3]]
        assert commands(check), f"{rule}: how to check"
        assert commands(do), f"{rule}: what to do"


def test_every_key_that_a_runbook_names_is_one_of_a_file() -> None:
    """As a row of the tables in docs/project.md and docs/policy.md has it."""
    docs = find_root() / "docs"
    rows = (docs / "project.md").read_text("utf-8") + (docs / "policy.md").read_text("utf-8")
    known = {
        key for row in re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE) for key in WORD.findall(row)
    }
    named = {key for rule in RULES for key in re.findall(r"`([a-z_]+):[ `]", runbook(rule))}
    assert named
    assert named <= known


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_every_command_of_a_runbook_parses(command: tuple[str, ...]) -> None:
    parse(main, list(command))


def parse(group: click.Command, arguments: list[str]) -> None:
    """Parse as `tracks` does, down to the subcommand; nothing is called."""
    context = group.make_context("tracks", list(arguments))
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("command", [each for each in ALL if reads(each)], ids=" ".join)
def test_every_command_of_a_runbook_that_reads_runs(
    command: tuple[str, ...], story: Story, call: Call
) -> None:
    given = [word.replace("RUN", RUN_ID) if word != "--run" else word for word in command]
    result = call(*given)
    has_warned = "By the clock of its journal" in result.stderr  # the story's steps take no time
    assert result.exit_code in (0, 1) or has_warned, result.output
    assert "Traceback" not in result.stderr


def test_the_table_in_the_docs_is_that_of_the_code() -> None:
    page = RULES_PAGE.read_text(encoding="utf-8")
    assert page == with_rules(page), "run `.venv/bin/python -m tests.reference`"
