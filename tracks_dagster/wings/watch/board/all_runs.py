"""The table of all runs as a page: what its cells show, and where its links lead. Pure.

All that is chosen is in the address, so each choice is a link or a form, and works without a script.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from tracks_dagster.review.run_filter import Run
from tracks_dagster.review.run_table import (
    cell,
    differing,
    group,
    names_of,
    shown_cell,
    shown_spread,
    title,
)
from tracks_dagster.track.bodies import ViewSaved
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.metric_values import LEAST_IS_BEST
from tracks_dagster.track.states.view_state import SavedView
from tracks_dagster.track.text.units import counted
from tracks_dagster.wings.watch.board.acts import VIEW, WHY, Act, Field
from tracks_dagster.wings.watch.board.comparison import RUNS_MAX
from tracks_dagster.wings.watch.board.formats import grouped
from tracks_dagster.wings.watch.board.run_page import Link

PAGE = "/runs"
MARKS = {True: "▼", False: "▲"}  # sorted by this column, the largest or the smallest first
HEAD = ("run", "name", "state")  # in the first two columns
VIEW_KEYS = ("where", "sort", "columns", "group")  # of the address: what a view keeps
OFFERED_MAX = 60  # columns that may be added, as links

Asked = Mapping[
    str, str
]  # of the address: where, sort, columns, group, differ, without what is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Title:
    """Of a column. address: of this page sorted by it alone; then: of that, by it after what is sorted
    already; mark: how it is sorted now, with its place among several; ways: to move it, to take it
    away."""

    name: str
    address: str
    then: str
    mark: str
    is_down: bool
    is_number: bool
    ways: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run. cells: of the columns after its name, each with whether it is a number."""

    run_id: str
    name: str
    intent: str
    state: str
    cells: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """Runs alike in one value. address: of these runs, empty where no condition picks them alone;
    cells: mean ± deviation."""

    name: str
    address: str
    count: int
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRuns:
    """The page. asked: as its form has it; same: columns that are the same in all rows, left out with
    their value; offered: columns that may be added; choices: ways to show the same otherwise; ways:
    to other pages of it, and to files. views: saved ones; acts: that save or remove one, seq: of the
    newest record of views, may_act: whether by a form; notes: what a saved one asks for and no run has.
    """

    title: str
    summary: str
    asked: Asked
    titles: tuple[Title, ...]
    rows: tuple[Row, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    same: tuple[str, ...] = ()
    offered: tuple[Link, ...] = ()
    choices: tuple[Link, ...] = ()
    ways: tuple[Link, ...] = ()
    views: tuple[Link, ...] = ()
    acts: tuple[Act, ...] = ()
    seq: int = 0
    may_act: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Which rows of a table are shown. page: 0-based; size: of a page; is_more: others follow; cut_at:
    how many runs were looked at where there are older ones, else 0."""

    page: int = 0
    size: int
    is_more: bool = False
    cut_at: int = 0


def all_runs_view(rows: Sequence[Run], columns: Sequence[str], asked: Asked, part: Part) -> AllRuns:
    """Return the page of these runs."""
    chosen = [name for name in columns if name not in HEAD]
    same = _same(rows, chosen) if "differ" in asked else {}
    shown = [name for name in chosen if name not in same]
    first = part.page * part.size
    summary = (
        "No run is so." if not rows else f"{counted(len(rows), 'run')}, {_order_words(asked)}."
    )
    if part.page or part.is_more:
        summary = f"Runs {first + 1} to {first + len(rows)}, {_order_words(asked)}."
    return AllRuns(
        title="Runs",
        summary=f"{summary}{_cut(part.cut_at)}",
        asked=asked,
        titles=_titles(rows, shown, asked),
        rows=tuple(_row(run, shown) for run in rows),
        same=tuple(f"{title(name)} {value}" for name, value in same.items()),
        offered=tuple(_offered(rows, shown, asked)),
        choices=(*_choices(asked), *_compared(rows)),
        ways=tuple(_ways(asked, page=part.page, is_more=part.is_more)),
    )


def groups_view(
    runs: Sequence[Run],
    columns: Sequence[str],
    asked: Asked,
    *,
    cut_at: int = 0,
) -> AllRuns:
    """Return the page of these runs in groups by `asked["group"]`; cut_at: as of `Part`."""
    by = asked["group"]
    found = group(runs, by, columns)
    shown = [name for name in columns if any(name in spreads for _, spreads in found.values())]
    linked = _picked_alone(by, {name: members for name, (members, _) in found.items()})
    return AllRuns(
        title="Runs",
        summary=f"{counted(len(runs), 'run')} in {counted(len(found), 'group')} by {by}: "
        f"mean ± deviation.{_cut(cut_at)}",
        asked=asked,
        titles=_titles(runs, shown, asked),
        groups=tuple(
            GroupRow(
                name=name or "–",
                address=_of_group(name, asked) if name in linked else "",
                count=len(members),
                cells=tuple(shown_spread(each, spreads.get(each), len(members)) for each in shown),
            )
            for name, (members, spreads) in found.items()
        ),
        choices=_choices(asked),
        ways=tuple(_files(asked)),
    )


def view_of(given: Mapping[str, str], by: str) -> ViewSaved:
    """Return the view that a form of this page saves; raises InvalidInput for one of nothing."""
    if not any(given.get(key) for key in VIEW_KEYS):
        raise InvalidInput("This view asks for nothing: give it a filter, an order or columns.")
    return ViewSaved(
        name=given.get(VIEW, ""),
        by=by,
        filter=given.get("where", ""),
        order=names_of(given.get("sort", "")),
        columns=names_of(given.get("columns", "")),
        group=given.get("group", ""),
    )


def asked_of(view: ViewSaved) -> dict[str, str]:
    """Return what the address of this page asks for where it is that view."""
    asked = {
        "where": view.filter,
        "sort": ",".join(view.order),
        "columns": ",".join(view.columns),
        "group": view.group,
    }
    return {key: text for key, text in asked.items() if text}


def view_links(views: Iterable[SavedView], chosen: str) -> tuple[Link, ...]:
    """Return links to saved views, by name."""
    names = sorted(view.body.name for view in views)
    return tuple(
        Link(label=name, address=f"{PAGE}?{urlencode({'view': name})}", is_chosen=name == chosen)
        for name in names
    )


def view_acts(asked: Asked, view: ViewSaved | None) -> tuple[Act, ...]:
    """Return what may be done to this page as a view; view: the saved one that it began with."""
    return (*_save(asked, view), *([] if view is None else [_remove(view)]))


def _save(asked: Asked, view: ViewSaved | None) -> Iterable[Act]:
    """Yield the way to save the page, unless it asks for nothing, or is a view just as it was saved."""
    kept = {key: asked[key] for key in VIEW_KEYS if key in asked}
    if not kept or (view is not None and kept == asked_of(view)):
        return
    options = " ".join(f"--{key} {shlex.quote(text)}" for key, text in kept.items())
    name = "" if view is None else view.name
    yield Act(
        name="save",
        what="Keep this table under a name, for everybody on this store.",
        fields=(
            Field(name=VIEW, label="name", value=name),
            *(Field(name=key, value=text) for key, text in kept.items()),
        ),
        command=f"tracks runs {options} --save-view {name or 'NAME'}",
    )


def _remove(view: ViewSaved) -> Act:
    return Act(
        name="remove",
        what="Offer this view to nobody any more; its records stay.",
        fields=(Field(name=VIEW, value=view.name), Field(name=WHY, label="why")),
        command=f'tracks runs remove-view {view.name} --why "…"',
    )


def _cut(cut_at: int) -> str:
    if not cut_at:
        return ""
    return f" Only the newest {grouped(cut_at)} runs were looked at; there are older ones."


def _same(rows: Sequence[Run], columns: Sequence[str]) -> dict[str, str]:
    """Return the columns of which all rows have the same value, with it."""
    found = {}
    for name in columns:
        values = {cell(run.get(name)) for run in rows}
        if len(values) == 1 and len(rows) > 1:
            found[name] = next(iter(values)) or "–"
    return found


def _titles(rows: Sequence[Run], columns: Sequence[str], asked: Asked) -> tuple[Title, ...]:
    numbers = {
        name for name in columns if any(isinstance(run.get(name), int | float) for run in rows)
    }
    return tuple(_title(name, columns, asked, name in numbers) for name in columns)


def _title(name: str, columns: Sequence[str], asked: Asked, is_number: bool) -> Title:
    keys = _keys(asked)
    at = next((at for at, key in enumerate(keys) if key.removeprefix("-") == name), None)
    is_down = at is not None and keys[at].startswith("-")
    is_best_least = at is None and any(word in name for word in LEAST_IS_BEST)
    turned = name if is_down or is_best_least else f"-{name}"
    several = [*keys, turned] if at is None else [*keys[:at], turned, *keys[at + 1 :]]
    mark = "" if at is None else MARKS[is_down] + (str(at + 1) if len(keys) > 1 else "")
    return Title(
        name=title(name),
        address=_address(asked, sort=turned),
        then=_address(asked, path="", sort=",".join(several)),
        mark=mark,
        is_down=is_down,
        is_number=is_number,
        ways=tuple(_column_ways(name, columns, asked)),
    )


def _column_ways(name: str, columns: Sequence[str], asked: Asked) -> Iterable[Link]:
    """Yield links that move a column to the left, and take it away."""
    at = columns.index(name)
    if at:
        moved = [*columns[: at - 1], name, columns[at - 1], *columns[at + 1 :]]
        yield Link(label="move left", address=_address(asked, columns=",".join(moved)))
    if len(columns) > 1:
        others = [each for each in columns if each != name]
        yield Link(label="take away", address=_address(asked, columns=",".join(others)))


def _offered(rows: Sequence[Run], columns: Sequence[str], asked: Asked) -> Iterable[Link]:
    """Yield links that add a column that some of these runs have; those that differ first."""
    keys = dict.fromkeys([*differing(rows), *(key for run in rows for key in run.values)])
    others = [key for key in keys if key not in columns and key not in HEAD]
    for name in others[:OFFERED_MAX]:
        added = ",".join([*columns, name])
        yield Link(label=title(name), address=_address(asked, columns=added))


def _choices(asked: Asked) -> tuple[Link, ...]:
    differ = "" if "differ" in asked else "1"
    return (
        Link(
            label="only what differs", address=_address(asked, differ=differ), is_chosen=not differ
        ),
    )


def _compared(rows: Sequence[Run]) -> Iterable[Link]:
    """Yield a link that compares these runs, the first RUNS_MAX of them."""
    first = [("run", run.name) for run in rows[:RUNS_MAX]]
    if len(first) > 1:
        words = "these" if len(first) == len(rows) else "the first"
        yield Link(label=f"compare {words} {len(first)}", address=f"/compare?{urlencode(first)}")


def _row(run: Run, columns: Sequence[str]) -> Row:
    values = [(name, run.get(name)) for name in columns]
    return Row(
        run_id=run.name,
        name=cell(run.get("name")),
        intent=cell(run.get("intent")),
        state=cell(run.get("state")),
        cells=tuple((shown_cell(name, value), _is_number(value)) for name, value in values),
    )


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _picked_alone(by: str, groups: Mapping[str, Sequence[Run]]) -> set[str]:
    """Return the groups whose value is that of no other run, as a filter reads it: it takes capitals as
    small letters and a part of a list as the list, and cannot ask for what is not known."""
    values = [run.get(by) for members in groups.values() for run in members]
    parts = {str(part).lower() for value in values if isinstance(value, list) for part in value}
    counts = Counter(name.lower() for name in groups)
    return {
        name
        for name, members in groups.items()
        if name
        and '"' not in name
        and counts[name.lower()] == 1
        and name.lower() not in parts
        and not isinstance(members[0].get(by), list | dict)
    }


def _of_group(name: str, asked: Asked) -> str:
    where = f'{asked.get("where", "")} {asked["group"]}="{name}"'.strip()
    return _address(asked, where=where, group="")


def _ways(asked: Asked, *, page: int, is_more: bool) -> Iterable[Link]:
    if page:
        yield Link(label="before", address=_address(asked, page=str(page - 1)))
    if is_more:
        yield Link(label="more", address=_address(asked, page=str(page + 1)))
    yield from _files(asked)


def _files(asked: Asked) -> Iterable[Link]:
    for kind in ("CSV", "JSON"):
        yield Link(label=kind, address=_address(asked, path=f"{PAGE}.{kind.lower()}"))


def _address(asked: Asked, *, path: str = PAGE, **changes: str) -> str:
    """Return the address of this page with these changes; an empty one takes a choice away."""
    query = urlencode({key: text for key, text in {**asked, **changes}.items() if text})
    return f"{path}?{query}" if query else path


def _keys(asked: Asked) -> list[str]:
    return [key for each in asked.get("sort", "").split(",") if (key := each.strip())]


def _order_words(asked: Asked) -> str:
    keys = _keys(asked)
    if not keys:
        return "the newest first"
    ends = {True: "largest", False: "smallest"}
    return ", then ".join(
        f"by {title(key.removeprefix('-'))}, the {ends[key.startswith('-')]} first" for key in keys
    )
