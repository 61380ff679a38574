"""What runs logged beside numbers, side by side at one step. Pure: what was read, to a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracks_dagster.track.media import CONFUSION, HISTOGRAM, TABLE, Logged
from tracks_dagster.track.records import Json
from tracks_dagster.wings.watch.board import formats
from tracks_dagster.wings.watch.board.comparison import ColouredRun
from tracks_dagster.wings.watch.board.run_page import Link

NAMES_MAX = 24  # on a page
ROWS_MAX = 50  # of a table
CLASSES_MAX = 40  # of a confusion matrix
TEXT_CHARACTERS_MAX = 20_000
SHADES = 5  # classes c0 to c4 of board.css
BARS_WIDTH, BARS_HEIGHT = 320, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One thing of one run. step: at which it was logged, "" where there is none; address: its file;
    bars: of a histogram, x, y, width and height each; rows: of a table, each cell with its shade."""

    kind: str = ""
    step: str = ""
    address: str = ""
    text: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[tuple[str, str], ...], ...] = ()
    bars: tuple[tuple[float, float, float, float], ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRow:
    """One name, with what each run logged under it. every: the files of all steps, where asked for."""

    name: str
    cells: tuple[Shown, ...]
    every: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedView:
    """The page /media. first, last: the steps that a slider reaches; given: of the address."""

    title: str
    runs: tuple[ColouredRun, ...]
    rows: tuple[LoggedRow, ...]
    first: int
    last: int
    step: int
    given: tuple[tuple[str, str], ...]
    pages: tuple[Link, ...] = ()
    words: tuple[str, ...] = ()


def shown(item: Logged, address: str, text: str, found: Json) -> Shown:
    """Return one thing as it is shown. text, found: of a text and of what is JSON; what cannot be is
    shown by its file alone."""
    plain = Shown(kind=item.kind, step=formats.grouped(item.step), address=address)
    try:
        if item.kind == TABLE:
            rows = [tuple((_text(value), "") for value in row) for row in found["rows"]]
            words = f"the first {ROWS_MAX} of {len(rows)} rows" if len(rows) > ROWS_MAX else ""
            columns = tuple(map(_text, found["columns"]))
            return replace(plain, columns=columns, rows=tuple(rows[:ROWS_MAX]), words=words)
        if item.kind == CONFUSION:
            return replace(plain, **_confusion(found["labels"], found["counts"]))
        if item.kind == HISTOGRAM:
            return replace(plain, bars=_bars(found["counts"]), words=_span(found))
    except (KeyError, TypeError, ValueError, IndexError):
        return replace(plain, words="It cannot be shown.")
    return replace(plain, text=text[:TEXT_CHARACTERS_MAX])


def _text(value: Json) -> str:
    if isinstance(value, float):
        return formats.number(value)
    return formats.UNKNOWN if value is None else str(value)


def _confusion(labels: Sequence[str], counts: Sequence[Sequence[float]]) -> dict[str, Json]:
    """Return the rows, each cell with the share of its row as a shade."""
    rows = []
    for label, line in zip(labels[:CLASSES_MAX], counts, strict=False):
        total = sum(line) or 1
        shades = [f"c{min(SHADES - 1, int(SHADES * value / total))}" for value in line]
        cells = list(zip(map(_text, line), shades, strict=True))[:CLASSES_MAX]
        rows.append(((_text(label), ""), *cells))
    is_cut = len(labels) > CLASSES_MAX
    return {
        "columns": ("is ↓ taken for →", *map(_text, labels[:CLASSES_MAX])),
        "rows": tuple(rows),
        "words": f"the first {CLASSES_MAX} of {len(labels)} classes" if is_cut else "",
    }


def _bars(counts: Sequence[int]) -> tuple[tuple[float, float, float, float], ...]:
    most, width = max(counts, default=0) or 1, BARS_WIDTH / max(1, len(counts))
    heights = (count / most * BARS_HEIGHT for count in counts)
    return tuple(
        (
            round(n * width, 2),
            round(BARS_HEIGHT - height, 2),
            round(width * 0.9, 2),
            round(height, 2),
        )
        for n, height in enumerate(heights)
    )


def _span(found: Mapping[str, Json]) -> str:
    edges, others = found["edges"], found.get("not_finite", 0)
    span = f"{formats.number(edges[0])} to {formats.number(edges[-1])}" if edges else "no number"
    more = f", {formats.grouped(others)} not finite" if others else ""
    return f"{span}, {formats.grouped(sum(found['counts']))} values{more}"
