"""The table of all runs, as a page and as files: what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tracks_dagster.review.effects.run_table import READ_MAX, Asked, Table
from tracks_dagster.review.effects.saved_views import find_view, read_shown
from tracks_dagster.review.run_table import names_of, table_csv
from tracks_dagster.track.bodies import ViewSaved
from tracks_dagster.track.states.view_state import SavedView
from tracks_dagster.wings.watch.board.all_runs import (
    AllRuns,
    Part,
    all_runs_view,
    asked_of,
    groups_view,
    view_acts,
    view_links,
)
from tracks_dagster.wings.watch.board.effects import queries
from tracks_dagster.wings.watch.board.effects.downloads import CSV
from tracks_dagster.wings.watch.board.effects.sources import Sources

TABLE_ROWS = 100  # of all runs, on a page
COMPLETE_HEADER = "Tracks-Complete"  # of a file of runs: "no" where there are more than are in it


class TablePages:
    """Answers what asks for the table of all runs. Safe in threads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def page(self, request: Request, *, may_act: bool) -> AllRuns:
        """Return the table, in groups where the address asks for them; raises InvalidInput."""
        (asked, found), page = self._asked(request), queries.page(request)
        by = asked.get("group", "")
        rows = Asked(**queries.filter_of(asked), limit=TABLE_ROWS, skip=page * TABLE_ROWS)
        chosen = ViewSaved(name="", by="", columns=names_of(asked.get("columns", "")), group=by)
        table, columns, notes = read_shown(self._sources.table, rows, chosen, found)
        cut_at = table.read if table.is_cut else 0
        if by:
            shown = groups_view(table.rows, columns, asked, cut_at=cut_at)
        else:
            part = Part(page=page, size=TABLE_ROWS, is_more=table.is_more, cut_at=cut_at)
            shown = all_runs_view(table.rows, columns, asked, part)
        saved, view = self._sources.views(), None if found is None else found.body
        return replace(
            shown,
            views=view_links(saved.offered if saved else (), view.name if view else ""),
            acts=view_acts(asked, view),
            seq=saved.head.seq if saved else 0,
            may_act=may_act,
            notes=notes,
        )

    def csv(self, request: Request) -> Response:
        """Return what `tracks runs --csv` prints; a header says whether all runs are in it."""
        table, columns = self._whole_table(request)
        text = table_csv(table.rows, columns)
        return Response(text, media_type=CSV, headers=_complete(table))

    def json(self, request: Request) -> Response:
        """Return the runs as `tracks runs --json` has them, and whether these are all."""
        table, _ = self._whole_table(request)
        runs = [dict(run.values) for run in table.rows]
        found = {"runs": runs, "is_complete": table.is_whole}
        return JSONResponse(found, headers=_complete(table))

    def _asked(self, request: Request) -> tuple[dict[str, str], SavedView | None]:
        """Return what the address asks of the table, and the saved view that it begins with."""
        name, own = request.query_params.get("view", "").strip(), queries.table(request)
        if not name:
            return own, None
        found = find_view(self._sources.tracks, name)
        return {**asked_of(found.body), **own}, found

    def _whole_table(self, request: Request) -> tuple[Table, Sequence[str]]:
        asked, found = self._asked(request)
        rows = Asked(**queries.filter_of(asked), limit=READ_MAX)
        chosen = ViewSaved(name="", by="", columns=names_of(asked.get("columns", "")))
        table, columns, _ = read_shown(self._sources.table, rows, chosen, found)
        return table, columns


def _complete(table: Table) -> Mapping[str, str]:
    return {COMPLETE_HEADER: "yes" if table.is_whole else "no"}
