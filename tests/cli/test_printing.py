"""Nothing that a command reads can speak to the terminal, forge a line or break a program's JSON."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.cli.common import print_json_line, print_table
from tracks_dagster.cli.terminal import echo_state, visible_output
from tracks_dagster.settings import Settings
from tracks_dagster.track.text.safe_text import visible
from tracks_dagster.wiring import build

FORGED = "2026-01-31 02:00 ann: promoted"
HOSTILE = f"hostile\x1b]0;t\x07\x1b[2J\x9b31m\x08\u202e[/red][link=x]\r{FORGED}\n{FORGED}"


@pytest.fixture
def hostile(story: Story) -> Story:
    """The story with a note that a program wrote into the store, and all of it in the ledger."""
    app = build(Settings.from_environment())
    story.history.note(HOSTILE, attempt_id=2).write_to(app.store)
    app.projector.scan()
    return story


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", f"{RUN_ID}/a02"),
        ("explain", RUN_ID, "--records"),
        ("search", "hostile"),
        ("status", RUN_ID),
        ("triage",),
        ("sql", "select text, '[/red]' as \"[b]\" from notes where text like 'hostile%'"),
        ("review",),
        ("note", RUN_ID, HOSTILE),
        ("checkpoints", "pin", f"{RUN_ID}@40", "--why", HOSTILE),
        ("explain", HOSTILE),
        (HOSTILE,),
    ],
    ids=lambda arguments: arguments[0][:8],
)
def test_no_command_prints_a_control_character(
    arguments: tuple[str, ...], hostile: Story, call: Call
) -> None:
    printed = call(*arguments)
    assert visible(printed.stdout + printed.stderr) == printed.stdout + printed.stderr


def test_words_of_another_forge_no_line_of_ours(hostile: Story, call: Call) -> None:
    call("checkpoints", "pin", f"{RUN_ID}@40", "--why", f"a\n{FORGED}")
    for arguments in (("explain", f"{RUN_ID}/a02"), ("search", "hostile"), ("status",)):
        lines = call(*arguments).stdout.splitlines()
        assert not [line for line in lines if line.strip().startswith(FORGED)], arguments


@pytest.mark.parametrize(
    "arguments",
    [("explain", f"{RUN_ID}/a02", "--json"), ("search", "hostile", "--json")],
    ids=lambda arguments: arguments[0],
)
def test_json_keeps_the_words_and_escapes_what_a_terminal_would_obey(
    arguments: tuple[str, ...], hostile: Story, call: Call
) -> None:
    printed = call(*arguments).stdout
    assert visible(printed) == printed
    assert "\x9b31m" in json.dumps(json.loads(printed), ensure_ascii=False)


def test_a_report_runs_nothing_and_holds_no_control_character(
    hostile: Story, call: Call, tmp_path: Path
) -> None:
    call("explain", RUN_ID, "--html", str(tmp_path / "r.html"))
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert visible(page) == page
    assert "\\x1b]0;t\\x07" in page


class Terminal(io.StringIO):
    """A terminal that remembers what was written."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_sentences_broken_between_words_and_json_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    screen, sentence = (
        Terminal(),
        "A refusal of some length that names `tracks retry RUN` as a cure.",
    )
    monkeypatch.setattr(sys, "stdout", screen)
    with visible_output():
        click.echo(sentence)
        print_json_line({"why": sentence})
    lines = screen.getvalue().splitlines()
    assert lines[:2] == ["A refusal of some length that names `tracks retry RUN` as a", "cure."]
    assert json.loads(lines[2]) == {"why": sentence}


@pytest.mark.parametrize("width", [80, 30])
def test_no_word_of_a_table_is_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`tracks policy` showed node_draine/d in 80 columns."""
    monkeypatch.setenv("COLUMNS", str(width))
    titles = ("reason", "what follows", "how often it may be so in a run", "by")
    row = ("node_drained", "the next attempt, elsewhere", "without any limit", "retry_preempted")
    print_table(titles, [row])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    words = {word for cell in row for word in cell.replace(",", "").split()}
    assert words <= set(shown.replace(",", "").replace(";", "").split())


TITLES = ("run", "state", "step", "what now")
ROWS = [
    ("lr-1", "refused", "25/40", "The budget is used up; `tracks retry lr-1` gives it another.")
]


@pytest.mark.parametrize(
    ("is_terminal", "environment", "is_coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
@pytest.mark.parametrize("width", ["60", "160"])
def test_a_state_has_a_colour_on_a_terminal_that_wants_one(
    is_terminal: bool,
    environment: dict[str, str],
    is_coloured: bool,
    width: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": width, **environment}.items():
        monkeypatch.setenv(name, value)
    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    print_table(TITLES, ROWS)
    echo_state("lr-1: ", "refused", ".")
    reds = screen.getvalue().count("\x1b[1;31mrefused")
    assert reds == (2 if is_coloured else 0)
    assert is_terminal or is_coloured or "\x1b[3" not in screen.getvalue()


def test_below_100_columns_a_row_that_needs_several_lines_is_a_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "run-" + "x" * 40
    monkeypatch.setenv("COLUMNS", "60")
    print_table(TITLES, [(name, *ROWS[0][1:])])
    assert capsys.readouterr().out.splitlines() == [
        f"{name}  refused",
        "  step 25/40",
        "  what now: The budget is used up; `tracks retry lr-1` gives",
        "    it another.",
    ]
    monkeypatch.setenv("COLUMNS", "100")
    print_table(TITLES, [(name, *ROWS[0][1:])])
    assert capsys.readouterr().out.splitlines()[0].split() == [
        "run",
        "state",
        "step",
        "what",
        "now",
    ]
    monkeypatch.setenv("COLUMNS", "60")
    print_table(("step", "state"), [("25", "open"), ("40", "kept")])  # has room
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("width", ["60", "160"])
def test_a_terminal_without_a_letter_gets_it_escaped(
    width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    print_table(TITLES, [("größe", "–", "–", "\N{GREEK SMALL LETTER MU}" * 40)])
    ascii_only.flush()
    assert b"gr\\xf6\\xdfe" in ascii_only.buffer.getvalue()  # type: ignore[attr-defined]
