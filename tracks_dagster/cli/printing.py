"""The one door for what a command prints: nothing that it read can speak to the terminal.

Stdout and stderr show control characters as escapes while a command runs. Only tables and the bar go
around it, with their own colours; a table's cells are escaped one by one.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from tracks_dagster.track.text.safe_text import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table  # what prints no table need not load it


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
        shown = visible(text).encode(self.encoding, "backslashreplace").decode(self.encoding)
        self.stream.write(shown)
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def writable(self) -> bool:
        return True


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
