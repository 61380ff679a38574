"""Saved views of the table of all runs: a name for a filter, an order, columns and a group.

They are records of one track, so that colleagues find them in the terminal and on the board.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.run_table import READ_MAX, Asked, Table
from tracks_dagster.review.run_filter import FIELDS, parse
from tracks_dagster.review.run_table import check_order, default_columns, is_seed
from tracks_dagster.track.bodies import ViewRemoved, ViewSaved
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Draft, Kind, Record, format_time
from tracks_dagster.track.states.view_state import SavedView, ViewState
from tracks_dagster.track.text.nearest import instead
from tracks_dagster.track.text.safe_text import check_words

VIEWS_MAX = 200  # offered at once
WORDS_MAX = 1000  # characters of a filter, as the board takes them
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,39}")


def save_view(tracks: Tracks, view: ViewSaved) -> Record | None:
    """Append the view, in place of one of that name; None where it is so already. Raises InvalidInput
    for what cannot be a name or a filter, and for more than VIEWS_MAX."""
    check_words({"by": view.by})
    if _NAME.fullmatch(view.name) is None:
        raise InvalidInput(
            f"{view.name[:60]!r} is not a name of a view: write 1 to 40 letters, digits, '_', '-' or "
            "'.', the first one a letter or a digit."
        )
    parse(view.filter)
    check_order(view.order)
    if len(",".join((view.filter, *view.order, *view.columns, view.group))) > WORDS_MAX:
        raise InvalidInput(f"A view has at most {WORDS_MAX} characters.")

    def choose(state: ViewState | None) -> Draft | None:
        offered = {} if state is None else {each.body.name: each.body for each in state.offered}
        known = offered.get(view.name)
        if known is not None and replace(known, by=view.by) == view:
            return None
        if known is None and len(offered) >= VIEWS_MAX:
            raise InvalidInput(f"There are {VIEWS_MAX} views; remove one first.")
        return tracks.draft(Kind.VIEW_SAVED, view)

    return tracks.decide_views(choose)


def remove_view(tracks: Tracks, name: str, *, by: str, why: str) -> Record | None:
    """Append that a view is offered no more; None where it is removed already. Raises InvalidInput
    where there was none."""
    check_words({"by": by, "why": why})

    def choose(state: ViewState | None) -> Draft | None:
        found = None if state is None else state.find(name)
        if found is None:
            raise _no_view(name, state)
        body = ViewRemoved(name=name, by=by, why=why)
        return tracks.draft(Kind.VIEW_REMOVED, body) if found.removed is None else None

    return tracks.decide_views(choose)


def find_view(tracks: Tracks, name: str) -> SavedView:
    """Return the view of that name; raises InvalidInput where there is none, with who removed it."""
    state = tracks.find_views()
    found = None if state is None else state.find(name)
    if found is None:
        raise _no_view(name, state)
    if found.removed is not None and found.removed_at is not None:
        at = format_time(found.removed_at)[:16].replace("T", " ")
        raise InvalidInput(
            f"{found.removed.by} removed the view {name!r} on {at}Z ({found.removed.why})."
        )
    return found


def _no_view(name: str, state: ViewState | None) -> InvalidInput:
    offered = () if state is None else tuple(view.body.name for view in state.offered)
    none = "none was saved yet: `tracks runs --where … --save-view NAME` does."
    listed = f"there are {', '.join(sorted(offered))}." if offered else none
    return InvalidInput(f"There is no view {name[:60]!r}; {instead(name, sorted(offered), listed)}")


def beside(view: ViewSaved, given: ViewSaved) -> ViewSaved:
    """Return the view with what is given beside it in place of its own."""
    return ViewSaved(
        name=given.name,
        by=given.by,
        filter=given.filter or view.filter,
        order=given.order or view.order,
        columns=given.columns or view.columns,
        group=given.group or view.group,
    )


def read_shown(
    read: Callable[[Asked], Table], asked: Asked, shown: ViewSaved, saved: SavedView | None
) -> tuple[Table, tuple[str, ...], tuple[str, ...]]:
    """Return the runs, the columns to show, and in words what is asked for and no run has (any more).

    shown: whose columns and group are shown; of groups all runs are read, with these columns alone, and
    no seed that nobody chose.
    saved: the view that this began with. Raises LedgerError; InvalidInput for what is asked beside it.
    """
    is_own = saved is None or (asked.where, asked.order) != (saved.body.filter, saved.body.order)
    columns, by = shown.columns, shown.group
    lacking: tuple[str, ...] = ()
    if not by or not columns:
        table, lacking = _read(None if is_own else saved, read, asked)
        columns = columns or tuple(
            name for name in default_columns(table.rows) if not (by and is_seed(name))
        )
    if by:
        whole = replace(asked, limit=READ_MAX, skip=0, names=(by, *columns))
        table, lacking = _read(None if is_own else saved, read, whole)
    return table, columns, (*lacking, *_lacking_columns(shown, saved, table))


def _read(
    view: SavedView | None, read: Callable[[Asked], Table], asked: Asked
) -> tuple[Table, tuple[str, ...]]:
    """Return the table that `asked` makes of a view, and what of the view no run has any more.

    An order by what no run has is left out; of a filter by it no run fits, for others would be shown
    under the view's name. view: None where a person asks so now, who gets InvalidInput.
    """
    if view is None:
        return read(asked), ()
    lacking: list[str] = []
    for tried in (asked, replace(asked, order=())):
        try:
            return read(tried), tuple(dict.fromkeys(lacking))
        except InvalidInput as error:
            lacking.append(f"The view {view.body.name!r}: {error}")
    return Table(rows=(), read=0, is_more=False), tuple(dict.fromkeys(lacking))


def _lacking_columns(shown: ViewSaved, saved: SavedView | None, table: Table) -> tuple[str, ...]:
    """Return in a sentence which columns none of these runs has, of those that somebody chose."""
    names = [name for name in shown.columns if name not in FIELDS]
    lacking = [name for name in names if all(run.get(name) is None for run in table.rows)]
    if not table.rows or not lacking:
        return ()
    is_own = saved is None or shown.columns != saved.body.columns
    whose = "" if is_own or saved is None else f"The view {saved.body.name!r}: "
    none = "None" if not whose else "none"
    return (f"{whose}{none} of these runs has {', '.join(lacking)}.",)
