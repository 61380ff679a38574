"""Stop a study in a person's name; its decider drains what is open, and finishes it."""

from __future__ import annotations

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import StudyStopped
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import study_track
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.text.safe_text import check_words


def stop_study(tracks: Tracks, name: str, *, by: str, why: str) -> Record | None:
    """Append `study_stopped` and return its record; None where it was asked before.

    Raises UnknownRun, and InvalidInput for a study that is finished already.
    """
    check_words({"why": why, "by": by})
    tracks.study(name)
    tracks.project(study_track(name))  # a caller killed right after its append had not come to it
    draft = tracks.draft(Kind.STUDY_STOPPED, StudyStopped(by=by, why=why))

    def choose(state: StudyState | None) -> Draft | None:
        if state is None or state.finished is not None:
            cause = state.finished.cause if state and state.finished else "unknown"
            raise InvalidInput(f"The study {name} is finished already ({cause}).")
        return None if state.stopped is not None else draft

    return tracks.decide_study(name, choose)
