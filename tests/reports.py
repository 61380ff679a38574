"""The report of a run as it is now, read and rendered in one call."""

from __future__ import annotations

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.explain.run import NO_CONTEXT, ExplainContext, load_run
from tracks_dagster.review.effects.pages.report import render_loaded


def render_report(tracks: Tracks, run_id: str, context: ExplainContext = NO_CONTEXT) -> str:
    """Return the page; raises as `load_run`."""
    return render_loaded(tracks, load_run(tracks, run_id, context), context)
