"""The search of a study by its kind: one of ours, or a sampler of the extra `tune`."""

from __future__ import annotations

from tracks_dagster.studies.search import OF_LIBRARY, Search, own_search
from tracks_dagster.track.bodies import StudyDeclared


def search_of(declared: StudyDeclared) -> Search:
    """Return what chooses the configs of a study; raises InvalidInput where its extra is missing."""
    if declared.search["kind"] not in OF_LIBRARY:
        return own_search(declared)
    from tracks_dagster.studies.effects.optuna_search import OptunaSearch

    return OptunaSearch.of(declared)
