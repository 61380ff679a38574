"""What a command prints and takes from a person is safe: for the terminal, and for the record.

Stdout and stderr show control characters as escapes while a command runs. Only tables and the bar go
around it, with their own colours; a table's cells are escaped one by one. Colours are for terminals:
NO_COLOR, FORCE_COLOR and TERM=dumb are obeyed.

Every argument but the name of a file is made valid text. Bytes that are not UTF-8 (latin-1, a paste)
would stay in a record for ever, and so would a password. They are replaced, and the person
sees a warning. A file's name stays as it is, or the file would not be found.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, TextIO

import click

from tracks_dagster.settings import own_secrets
from tracks_dagster.track.text.redact import HIDDEN, redact
from tracks_dagster.track.text.safe_text import REPLACEMENT, valid_text, visible
from tracks_dagster.track.text.wrapping import wrap_line

if TYPE_CHECKING:
    from rich.console import Console  # what prints no table need not load it
    from rich.text import Text

WIDTH_MIN = 40  # a narrower terminal breaks lines by itself
# Titles of columns with words of a state, a light or a verdict; and what these words look like.
_OF_STATES = frozenset(
    ("", "state", "status", "ended as", "verified", "healthy?", "improving?", "resources?")
)
_IN_HEAD = ("state", "status", "ended as", "")  # of a card; a light needs its title
SHORT = 30  # characters of a cell that shares a line of a card with others
_STYLES = {
    **dict.fromkeys(("succeeded", "completed", "done", "green", "ok", "yes"), "green"),
    **dict.fromkeys(("running", "open", "kept", "resume"), "cyan"),
    **dict.fromkeys(("waiting", "queued", "paused", "yellow", "unseen", "unknown"), "yellow"),
    **dict.fromkeys(("refused", "failed", "red", "missing", "quarantined"), "bold red"),
    **dict.fromkeys(("cancelled", "imported", "stopped", "grey", "deleted", "superseded"), "dim"),
}


@contextmanager
def visible_output() -> Iterator[None]:
    """Escape what is written to stdout and stderr for as long as the `with` lasts."""
    with redirect_stdout(_Visible(sys.stdout)), redirect_stderr(_Visible(sys.stderr)):
        yield


class _Visible(io.TextIOBase):
    """Writes to another stream, escaped; what its encoding lacks is escaped too."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = raw(stream)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self.stream.errors

    def write(self, text: str | bytes) -> int:
        if isinstance(text, bytes):  # click writes them so where a stream has no buffer below
            text = text.decode("utf-8", "replace")
        self.stream.write(self._encodable(visible(self._wrapped(text))))
        return len(text)

    def write_whole(self, text: str) -> None:
        """Write text whose lines are not to be broken."""
        self.stream.write(self._encodable(visible(text)))

    def _encodable(self, text: str) -> str:
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def _wrapped(self, text: str) -> str:
        """Break lines between words where they are longer than the terminal is wide."""
        if not self.isatty():
            return text
        width = max(WIDTH_MIN, shutil.get_terminal_size((WIDTH_MIN, 0)).columns)
        if len(text) <= width:
            return text
        lines = text.splitlines(keepends=True)
        ends = (len(line) - len(line.rstrip("\r\n")) for line in lines)
        return "".join(
            wrap_line(line[: len(line) - end], width) + line[len(line) - end :]
            for line, end in zip(lines, ends, strict=True)
        )

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def writable(self) -> bool:
        return True


def echo_whole(text: str, *, nl: bool = True) -> None:
    """Print JSON, a log or a file: its lines as they are, however wide the terminal is."""
    if isinstance(sys.stdout, _Visible):
        sys.stdout.write_whole(f"{text}\n" if nl else text)
    else:
        click.echo(text, nl=nl)


def raw(stream: TextIO) -> TextIO:
    """Return the stream below, for what draws with codes of its own and escapes what it was given."""
    return stream.stream if isinstance(stream, _Visible) else stream


def console(stream: TextIO, *, width: int | None = None) -> Console:
    """Return a console with colours of its own; who prints on it makes the text visible. What the
    stream's encoding lacks is escaped."""
    from rich.console import Console

    below = raw(stream)
    if isinstance(below, io.TextIOWrapper):
        below.reconfigure(errors="backslashreplace")
    return Console(file=below, width=width, highlight=False, markup=False)


def echo_state(before: str, state: str, after: str) -> None:
    """Print a sentence on stdout with a state or a light in it, in its colour on a terminal."""
    from rich.text import Text

    screen = console(sys.stdout)
    if screen.color_system is None:
        click.echo(f"{before}{state}{after}")
        return
    text = wrap_line(visible(f"{before}{state}{after}"), max(WIDTH_MIN, screen.width))
    line, begin = Text(text), len(visible(before))
    line.stylize(_STYLES.get(state, ""), begin, begin + len(state))
    screen.print(line, soft_wrap=True)


def style_of(title: str, cell: str) -> str:
    """Return the colour of a cell of a table, "" for the terminal's own: words of states have one."""
    return _STYLES.get(cell.partition(",")[0], "") if title in _OF_STATES else ""


def card(titles: Sequence[str], row: Sequence[str], width: int) -> Text:
    """Return a row of a table as lines of at most `width`: its name and state, its short cells, then
    each long one by itself. Nothing is cut: a word that is longer than a line stays whole."""
    from rich.text import Text

    cells = [(t, ", ".join(cell.splitlines())) for t, cell in zip(titles, row, strict=True)]
    (head, name), *others = [each for each in cells if each[1] not in ("", "–")] or cells[:1]
    state = next((each for each in others if each[0] in _IN_HEAD), ("", ""))
    others = [each for each in others if each is not state]
    line = f"{head} {name}" if name.isdigit() else name
    found = Text(wrap_line(f"{line}  {state[1]}".rstrip(), width, indent=""), end="")
    found.stylize("bold", 0, len(found) - len(state[1]))
    found.stylize(style_of(*state), len(found) - len(state[1]))
    at = width  # in the line of short cells, which begins with the first
    long = [(t, cell) for t, cell in others if len(cell) > SHORT or len(t) + len(cell) + 3 > width]
    for title, cell in others:
        if (title, cell) not in long:
            more = len(title) + 1 + len(cell)
            is_next = at + 3 + more <= width
            at = at + 3 + more if is_next else 2 + more
            found.append(" · " if is_next else "\n  ")
            found.append(f"{title} ", "dim").append(cell, style_of(title, cell))
    for title, cell in long:
        line = f"  {title}: {cell}" if title else f"  {cell}"
        found.append(f"\n{wrap_line(line, width, indent='    ')}")
    return found


class _Text(click.types.StringParamType):
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the argument as valid text; warns on stderr when it differs from what was given."""
        given: str = super().convert(value, param, ctx)
        valid = valid_text(given)
        if valid != given:
            message = (
                f"{_name(param)} is not UTF-8: what cannot be read is replaced by {REPLACEMENT}."
            )
            click.echo(f"tracks: {message}", err=True)
        return valid


class _RecordedText(_Text):
    def __init__(self, *, is_one_line: bool) -> None:
        self._is_one_line = is_one_line

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the text as it may be recorded; warns on stderr where a secret was hidden."""
        given = super().convert(value, param, ctx)
        if self._is_one_line:  # or a second line of it would look like one of ours
            given = " ".join(given.split())
        cleaned = redact(given, own_secrets())
        if cleaned != given:
            message = f"{_name(param)} holds what looks like a secret: {HIDDEN} is recorded for it."
            click.echo(f"tracks: {message}", err=True)
        return cleaned


RECORDED = _RecordedText(is_one_line=True)  # the type of an option whose text goes into a record
RECORDED_TEXT = _RecordedText(is_one_line=False)
_TEXT = _Text()


def check_text_arguments(command: click.Command) -> click.Command:
    """Return the command, its subcommands included, with every argument of plain text made valid."""
    for param in command.params:
        if param.type is click.STRING:
            param.type = _TEXT
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            check_text_arguments(subcommand)
    return command


def _name(param: click.Parameter | None) -> str:
    if param is None:
        return "An argument"
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
