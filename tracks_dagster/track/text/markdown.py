"""Markdown that shows text as it is: tables and lists for Dagster's UI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracks_dagster.track.text.safe_text import visible

_SIGNS = "\\|`*_[]~"  # what markdown would take for something else, the backslash first


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a cell is one line of plain text."""
    lines = [_row(columns), "|" + " --- |" * len(columns), *(_row(row) for row in rows)]
    return "\n".join(lines)


def bullets(lines: Iterable[str]) -> str:
    """Return a list, a line each; unlike a block of code it wraps where the page ends."""
    return "\n".join(f"- {plain(line)}" for line in lines)


def plain(text: str) -> str:
    """Return text that markdown shows as it is: no cell ends early, nothing becomes a tag."""
    for sign in _SIGNS:
        text = text.replace(sign, f"\\{sign}")
    return visible(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(plain(cell) for cell in cells) + " |"
