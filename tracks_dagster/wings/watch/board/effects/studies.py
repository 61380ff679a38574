"""The pages of studies: what they read, and what is made of it once for all that look."""

from __future__ import annotations

from starlette.requests import Request

from tracks_dagster.settings import usable_prices
from tracks_dagster.studies.words import off_peak_words
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.wings.watch.board.effects import queries
from tracks_dagster.wings.watch.board.effects.fresh import Fresh
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.effects.study_pictures import pictures_of
from tracks_dagster.wings.watch.board.study import Pictures, StudyView, study_view

STUDIES_MAX = 500  # of the list
FRESH_S = 4.0  # all that a page is made of is made again at most so often
MADE_S = 60.0  # a page of the same records is the same
KEPT_MAX = 16


class StudyPages:
    """Answers what asks for studies. Safe in threads."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._read: Fresh[StudyState] = Fresh(for_s=FRESH_S, entries_max=KEPT_MAX)
        self._pictures: Fresh[Pictures] = Fresh(for_s=MADE_S, entries_max=KEPT_MAX)
        self._views: Fresh[StudyView] = Fresh(for_s=MADE_S, entries_max=KEPT_MAX)

    def all(self) -> list[dict[str, Json]]:
        """Return the newest studies, as the ledger has them."""
        rows = self._sources.studies(STUDIES_MAX)
        return [{**row, "declared_at": format_time(row["declared_at"])} for row in rows]

    def study(self, name: str) -> StudyState:
        """Return a study as it is now; raises UnknownRun."""
        return self._read.get(name, lambda: self._sources.tracks.study(name))

    def page(self, request: Request) -> StudyView:
        """Return the page of a study; raises UnknownRun, InvalidInput."""
        study = self.study(request.path_params["name"])
        asked, page = queries.trials(request), queries.page(request)
        place = (study.declared.study, study.head.sha256)
        pictures = self._pictures.get(place, lambda: pictures_of(study))
        prices = usable_prices(self._sources.settings)[0]
        currency = "" if prices is None else prices.currency
        waits = off_peak_words(study, self._sources.now())
        key = (*place, tuple(asked.items()), page, currency, waits)
        return self._views.get(
            key,
            lambda: study_view(study, asked, page, pictures, currency=currency, waits=waits),
        )
