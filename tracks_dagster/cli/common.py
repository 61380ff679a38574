"""What several subcommands share: the application, JSON output, options that mean the same."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import click

from tracks_dagster.cli import refuse_unknown
from tracks_dagster.cli.terminal import RECORDED, card, console, echo_whole, style_of
from tracks_dagster.home.admission import check_hosts
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reading import open_ledger_to_read
from tracks_dagster.settings import Settings, person
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import check_run_id, parse_attempt_key
from tracks_dagster.track.records import Json, Record, format_time
from tracks_dagster.track.states.run_state import CheckpointState, RunState
from tracks_dagster.track.text.safe_text import visible, visible_json
from tracks_dagster.track.text.wrapping import breaks_a_cell, column_widths, wrap_line
from tracks_dagster.wiring import App, build

THEN_S_MAX = 3600.0  # of a command that completes a bundle
STDERR = 2
Command = TypeVar("Command", bound=Callable[..., object])

TEXT_WIDTH = 100  # of sentences that go into a file or another program
FILE_WIDTH = 200  # of a table that goes into a file or another program
CARDS_BELOW = (
    100  # columns of a terminal: a table whose cells need several lines there is read as cards
)
SUMMARY_CHARACTERS_MAX = 1000  # click cuts at what fits in the line; a summary is one sentence

_STEP_SUFFIX = re.compile(r"(?P<run_id>.+)@(?P<step>\d+)")


def open_app() -> App:
    """Return the application that the environment describes."""
    return build(Settings.from_environment())


def print_json(value: Json) -> None:
    """Print one JSON value on stdout, over several lines; a time in it as records have it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_time_text)
    echo_whole(visible_json(text))


def print_json_line(value: Json) -> None:
    """Print one JSON value on stdout, in one line."""
    echo_whole(visible_json(json.dumps(value, ensure_ascii=False, default=_time_text)))


def _time_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat() if value.tzinfo is None else format_time(value)
    raise TypeError(f"{value!r} is not JSON")


def print_answer(sentence: str, facts: Mapping[str, Json], *, as_json: bool) -> None:
    """Print what a command did: one sentence, or the facts of it as JSON."""
    if as_json:
        print_json(dict(facts))
    else:
        click.echo(sentence)


def seq_of(record: Record | None) -> int | None:
    """Return the seq of the record that a decision left, None where it was so already."""
    return record.seq if record is not None else None


def print_recorded(
    what: str, facts: Mapping[str, Json], record: Record | None, *, more: str = "", as_json: bool
) -> None:
    """Print what was decided, with its record, and `more`; or the facts with its seq as JSON."""
    sentence = f"{what}: {recorded(record)}. {more}".rstrip()
    print_answer(sentence, {**facts, "seq": seq_of(record)}, as_json=as_json)


def recorded(record: Record | None) -> str:
    """Return the record that a decision left, in words."""
    return f"record {record.seq}" if record is not None else "as it was already"


def text_width() -> int:
    """Return how wide text is to be: COLUMNS, else the terminal's width, else 100 characters."""
    return shutil.get_terminal_size((TEXT_WIDTH, 0)).columns


def print_table(
    titles: Iterable[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """Print a table on stdout: as wide as COLUMNS or the terminal, else as any row needs.

    right: titles of columns of numbers. whole: of columns whose cells are never broken. No word is cut:
    where the columns have no room for theirs, each row is printed as lines below each other, and so it
    is in less than CARDS_BELOW columns where a cell has no room in one line.
    """
    from rich.table import Table
    from rich.text import Text

    titles, lines = tuple(map(visible, titles)), [tuple(map(visible, row)) for row in rows]
    is_given = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = text_width() if is_given else FILE_WIDTH
    filled = [(*row, *("",) * (len(titles) - len(row))) for row in lines]
    room = width - 2 * (len(titles) - 1)  # two spaces between two columns
    kept = [number for number, title in enumerate(titles) if title in whole]
    widths = column_widths([titles, *filled], room, kept)
    screen = console(sys.stdout, width=width)
    if widths is None and not is_given:
        _print_blocks(titles, filled, width)
    elif widths is None or (width < CARDS_BELOW and breaks_a_cell(filled, widths)):
        for row in filled:
            screen.print(card(titles, row, width), soft_wrap=True)
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title, wide in zip(titles, widths, strict=True):
            align: Literal["left", "right"] = "right" if title in right else "left"
            table.add_column(title, justify=align, overflow="fold", width=wide)
        for row in lines:
            cells = zip(titles, row, strict=False)
            table.add_row(*(Text(cell, style=style_of(title, cell)) for title, cell in cells))
        screen.print(table)


def _print_blocks(titles: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> None:
    """Print each row as a block: its first cell that is not empty, then what is known of the others."""
    for row in rows:
        head, *others = [(title, cell) for title, cell in zip(titles, row, strict=True) if cell]
        echo_whole(f"{head[0]} {', '.join(head[1].splitlines())}")
        known = [f"{t}: {', '.join(cell.splitlines())}" for t, cell in others if cell != "–"]
        if known:
            echo_whole(wrap_line(f"  {'; '.join(known)}", width, indent="  "))


def as_json(command: Command) -> Command:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def archive_option(command: Command) -> Command:
    """Add `--archive` to a reading command; `settings_for` chooses what it then reads."""
    return click.option(
        "--archive",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read this exported run (`tracks export`) and no store.",
    )(command)


def allow_host_option(command: Command) -> Command:
    """Add `--allow-host` to a command that serves pages."""
    return click.option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        callback=lambda context, option, given: sorted(check_hosts(given)),
        help="Answer to this name too, by which others come through a proxy of yours. Repeat it.",
    )(command)


def settings_for(archive: Path | None) -> Settings:
    """Return the settings of the environment, or those that read an exported run."""
    given = Settings.from_environment()
    if archive is None:
        return given
    return replace(given, store_url=str(archive.absolute()), postgres_url=None)


def as_of_option(command: Command) -> Command:
    """Add `--as-of` to a reading command."""
    return click.option(
        "--as-of",
        metavar="TIME",
        help="Count only records up to then, e.g. 2026-01-31T02:00; UTC without a zone.",
    )(command)


def run_argument(command: Command) -> Command:
    """Add the run that a command is about."""
    return click.argument("run_id", metavar="RUN")(command)


def why_option(command: Command) -> Command:
    """Add the mandatory `--why` to a command that decides something."""
    return click.option(
        "--why", type=RECORDED, required=True, help="Why, in words; it is recorded."
    )(command)


def by_option(command: Command) -> Command:
    """Add `--by`, the person in whose name something is decided."""
    return click.option(
        "--by",
        type=RECORDED,
        default=person,
        show_default="your user name",
        help="In whose name to record it.",
    )(command)


def cut_off_option(command: Command) -> Command:
    """Add `--cut-off`, by which a person says that training was cut off at what is handed on."""
    return click.option(
        "--cut-off", "may_be_cut_off", is_flag=True, help="Even where training was cut off at it."
    )(command)


def deciding_options(command: Command) -> Command:
    """Add `--why`, `--by` and `--json`, in which all deciding commands are alike."""
    return why_option(by_option(as_json(command)))


def added_option(command: Command) -> Command:
    """Add `--add`, files of a person's own for a bundle, and `--then`, a command that completes it."""
    command = click.option(
        "--then",
        "then",
        metavar="COMMAND",
        callback=lambda _ctx, _option, text: None if text is None else partial(_run_in, text),
        help="Run in the bundle before it is sealed: merge an adapter, convert the weights. What it "
        "writes there is of the bundle; where it fails there is none.",
    )(command)
    return click.option(
        "--add",
        "added",
        metavar="FILE",
        multiple=True,
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Put a file of yours into the bundle, a tokenizer for example.",
    )(command)


def _run_in(text: str, folder: Path) -> None:
    """Run a person's command in a folder; raises InvalidInput where it fails."""
    try:
        words = shlex.split(text)
        done = subprocess.run(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=STDERR,  # stdout is for the answer
            timeout=THEN_S_MAX,
            check=False,
        )
    except (ValueError, OSError, IndexError, subprocess.TimeoutExpired) as error:
        raise InvalidInput(f"--then {text!r} cannot complete the bundle: {error}.") from error
    if done.returncode != 0:
        raise InvalidInput(
            f"--then {text!r} ended with {done.returncode} (above is why), so no bundle was made."
        )


def code_option(command: Command) -> Command:
    """Add `--code`, the folder of a project whose code is taken as it is now."""
    return click.option(
        "--code",
        "folder",
        type=click.Path(path_type=Path),
        is_flag=False,
        flag_value=".",
        help="The code of the project in that folder as it is now; default: the one you are in.",
    )(command)


def attempt_option(command: Command) -> Command:
    """Add `--attempt`, which of several attempts committed the step of a RUN@STEP."""
    return click.option(
        "--attempt",
        type=int,
        help="The checkpoint's attempt; default: the newest that has the step.",
    )(command)


def parse_target(text: str) -> tuple[str, int | None]:
    """Return (run_id, attempt_id or None) of `RUN` or `RUN/aNN`; raises InvalidInput."""
    if "@" in text:
        raise InvalidInput(
            f"{text!r} is written as a checkpoint is, and this takes RUN or RUN/aNN. `tracks lineage "
            f"{text}` says which attempt made it."
        )
    if "/" in text:
        return parse_attempt_key(text)
    return check_run_id(text), None


def parse_run_and_step(text: str) -> tuple[str, int | None]:
    """Return (run_id, step or None) of `RUN` or `RUN@STEP`; raises InvalidInput."""
    match = _STEP_SUFFIX.fullmatch(text)
    if match is None:
        return check_run_id(text), None
    return check_run_id(match["run_id"]), int(match["step"])


def project_of_code(folder: Path) -> Path:
    """Return the folder of the project that `--code` names; raises InvalidInput where there is none."""
    from tracks_dagster.attempts.effects.local.project_code import project_folder

    home = project_folder(None if folder == Path() else folder)
    if home is None:
        raise InvalidInput("--code: you are in no project; name its folder, --code DIR.")
    return home


def named_checkpoint(
    tracks: Tracks, text: str, attempt_id: int | None = None
) -> tuple[RunState, CheckpointState]:
    """Return the checkpoint that a person names, the same way for every command; raises UnknownRun or
    InvalidInput. The ledger is asked for a manifest's sha256 alone."""
    from tracks_dagster.review.effects.comparing import find_checkpoint

    settings = Settings.from_environment()
    return find_checkpoint(
        tracks, lambda: open_ledger_to_read(settings), text, attempt_id=attempt_id
    )


def parse_as_of(text: str | None) -> datetime | None:
    """Return the time in UTC, or None where none is given; raises InvalidInput."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError) as error:  # in UTC it may lie outside of the years 1 to 9999
        raise InvalidInput(
            f"--as-of {text!r} is not a time; write it as 2026-01-31T02:00 or 2026-01-31."
        ) from error


def parse_settings(pairs: tuple[str, ...]) -> dict[str, Json]:
    """Return the config overrides of `--set key=value`; a value is JSON, else text.

    Raises InvalidInput for a pair without "=" and for a key that is given twice with other values.
    """
    config: dict[str, Json] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise InvalidInput(
                f"--set {pair!r} is not key=value; write for example --set lr=0.001."
            )
        value = _value(text)
        if key in config and config[key] != value:
            raise InvalidInput(f"{key} is set to {config[key]!r} and to {value!r}; choose one.")
        config[key] = value
    return config


def _value(text: str) -> Json:
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return text
    except ValueError as error:
        raise InvalidInput(f"The value {text[:40]!r} cannot be in a config: {error}.") from error


class WholeGroup(click.Group):
    """A group that lists each subcommand with its whole first sentence, and knows a mistyped one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; a mistyped one is refused with those that are meant."""
        refuse_unknown(self, ctx, args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands and what each does."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None:
                rows.append((name, command.get_short_help_str(SUMMARY_CHARACTERS_MAX)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
