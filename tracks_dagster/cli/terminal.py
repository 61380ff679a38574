"""What a command prints and takes from a person is safe: for the terminal, and for the record.

Stdout and stderr show control characters as escapes while a command runs. Only tables and the bar go
around it, with their own colours; a table's cells are escaped one by one.

Every argument but the name of a file is made valid text. Bytes that are no UTF-8 (a latin-1 terminal, a
paste) would stay in a record for ever, and so would a password. They are replaced, and the person
sees a warning. A file's name stays as it is, or the file would not be found.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

import click

from tracks_dagster.settings import own_secrets
from tracks_dagster.track.text.redact import HIDDEN, redact
from tracks_dagster.track.text.safe_text import REPLACEMENT, valid_text, visible
from tracks_dagster.track.text.wrapping import wrap_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table  # what prints no table need not load it

WIDTH_MIN = 40  # a narrower terminal breaks lines by itself


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
    """Return a console with colours of its own; whoever prints on it makes the text visible."""
    from rich.console import Console

    return Console(file=raw(stream), width=width, highlight=False, markup=False)


def visible_table(table: Table) -> Table:
    """Return the table with every header and cell of text made visible."""
    for column in table.columns:
        column.header = _cell(column.header)
        column._cells = [_cell(cell) for cell in column._cells]
    return table


def _cell(cell: Any) -> Any:
    return visible(cell) if isinstance(cell, str) else cell


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
