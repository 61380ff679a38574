"""The table of all runs as a page: what its cells show, and where its links lead. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from tracks_dagster.review.run_table import Run, cell, shown_cell, title
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board.formats import grouped
from tracks_dagster.wings.watch.board.run_page import Link

MARKS = {True: "▼", False: "▲"}  # sorted by this column, the largest or the smallest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """Of a column. address: of this page sorted by it; mark: how it is sorted now."""

    name: str
    address: str
    mark: str
    is_number: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run. cells: of the columns after its name, each with whether it is a number."""

    run_id: str
    intent: str
    state: str
    cells: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRuns:
    """The page. columns, where: as its form has them; ways: to other pages of it, and to files."""

    title: str
    summary: str
    where: str
    columns: str
    order: str
    titles: tuple[Title, ...]
    rows: tuple[Row, ...]
    ways: tuple[Link, ...]


def all_runs_view(
    rows: Sequence[Run],
    columns: Sequence[str],
    asked: Mapping[str, str],
    *,
    page: int,
    page_size: int,
    is_more: bool,
    cut_at: int = 0,
) -> AllRuns:
    """Return the page of these runs. asked: of the address: where, sort, columns. cut_at: how many runs
    were looked at where there are older ones, else 0."""
    shown = [name for name in columns if name not in ("run", "state")]
    numbers = {
        name for name in shown if any(isinstance(run.get(name), int | float) for run in rows)
    }
    order = asked.get("sort", "")
    first = page * page_size
    summary = (
        "No run is so." if not rows else f"{counted(len(rows), 'run')}, {_order_words(order)}."
    )
    if page or is_more:
        summary = f"Runs {first + 1} to {first + len(rows)}, {_order_words(order)}."
    if cut_at:
        summary += f" Only the newest {grouped(cut_at)} runs were looked at; there are older ones."
    return AllRuns(
        title="Runs",
        summary=summary,
        where=asked.get("where", ""),
        columns=asked.get("columns", ""),
        order=order,
        titles=tuple(_title(name, asked, name in numbers) for name in shown),
        rows=tuple(_row(run, shown) for run in rows),
        ways=tuple(_ways(asked, page=page, is_more=is_more)),
    )


def _title(name: str, asked: Mapping[str, str], is_number: bool) -> Title:
    order = asked.get("sort", "")
    is_by_it = order.removeprefix("-") == name
    is_down = order.startswith("-")
    turned = name if is_by_it and is_down else f"-{name}"
    address = f"/runs?{urlencode({**asked, 'sort': turned})}"
    return Title(
        name=title(name),
        address=address,
        mark=MARKS[is_down] if is_by_it else "",
        is_number=is_number,
    )


def _row(run: Run, columns: Sequence[str]) -> Row:
    values = [(name, run.get(name)) for name in columns]
    return Row(
        run_id=run.name,
        intent=cell(run.get("intent")),
        state=cell(run.get("state")),
        cells=tuple(
            (shown_cell(name, value), isinstance(value, int | float)) for name, value in values
        ),
    )


def _ways(asked: Mapping[str, str], *, page: int, is_more: bool) -> list[Link]:
    found = []
    if page:
        found.append(
            Link(label="before", address=f"/runs?{urlencode({**asked, 'page': page - 1})}")
        )
    if is_more:
        found.append(Link(label="more", address=f"/runs?{urlencode({**asked, 'page': page + 1})}"))
    query = f"?{urlencode(asked)}" if asked else ""
    found += [Link(label=each, address=f"/runs.{each.lower()}{query}") for each in ("CSV", "JSON")]
    return found


def _order_words(order: str) -> str:
    if not order:
        return "the newest first"
    which = "largest" if order.startswith("-") else "smallest"
    return f"by {order.removeprefix('-')}, the {which} first"
