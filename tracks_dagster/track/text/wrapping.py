"""Text for a terminal: lines broken between words, columns as wide as their words. Pure."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Collection, Iterable, Sequence

WORD_MAX = 44  # characters of a table's word that stays whole; a digest is folded
_COMMAND = re.compile(r"`[^`\n]*`")
_JOINT = "\N{NO-BREAK SPACE}"  # in place of a space that must not end a line, while it is wrapped


def wrap_line(line: str, width: int, *, indent: str | None = None, kept: int = 0) -> str:
    """Return one line over several of at most `width`; words and commands that are longer stay whole.

    indent: before the second and later ones; None: below the first one's words. kept: characters at the
    beginning that no break may touch.
    """
    if len(line) <= width:
        return line

    text = _COMMAND.sub(lambda match: match.group().replace(" ", _JOINT), line)
    kept += len(text[kept:]) - len(text[kept:].lstrip(" "))
    wrapper = textwrap.TextWrapper(
        width=width,
        initial_indent=text[:kept],
        subsequent_indent=(text[:kept] and f"{text[:kept]}  ") if indent is None else indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return wrapper.fill(text[kept:]).replace(_JOINT, " ")


def cells(text: str) -> int:
    """Return how many columns of a terminal a text takes: a letter of Chinese takes two."""
    if text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(each) in "WF" for each in text)


def column_widths(
    rows: Sequence[Sequence[str]], room: int, whole: Collection[int] = ()
) -> list[int] | None:
    """Return how wide each column is in `room` characters, without cutting a word; None: not possible.

    whole: columns whose cells are never broken. What is left beyond the words goes to the columns that
    need least first: a short one is not broken for a long one.
    """
    wanted, least = [], []
    for number, column in enumerate(zip(*rows, strict=True)):
        lines = [line for cell in column for line in cell.splitlines() or [""]]
        wanted.append(max(map(cells, lines)))
        words = (cells(word) for line in lines for word in line.split())
        longest = min(WORD_MAX, max(words, default=0))
        least.append(wanted[-1] if number in whole else longest)
    spare = room - sum(least)
    if spare < 0:
        return None
    widths = list(least)
    order = sorted(range(len(widths)), key=lambda n: wanted[n] - least[n])
    for place, number in enumerate(order):
        more = min(wanted[number] - least[number], spare // (len(order) - place))
        widths[number] += max(0, more)
        spare -= max(0, more)
    return widths


def breaks_a_cell(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> bool:
    """Whether a cell is wider than its column."""
    return any(
        cells(line) > width
        for row in rows
        for cell, width in zip(row, widths, strict=True)
        for line in cell.splitlines()
    )
