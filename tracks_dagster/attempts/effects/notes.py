"""Notes: what a person knows of a run or an attempt and the machine does not."""

from __future__ import annotations

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.track.states.run_state import known_attempt
from tracks_dagster.track.text.safe_text import check_words


def note(tracks: Tracks, run_id: str, *, attempt_id: int | None, by: str, text: str) -> Record:
    """Append the note, which was cleaned of secrets before, and return its record.

    Raises UnknownRun for a run or attempt that is not there, InvalidInput for words that say nothing.
    """
    check_words({"note": text, "by": by})
    if attempt_id is not None:
        known_attempt(tracks.run(run_id), attempt_id)
    draft = tracks.draft(Kind.NOTE, Note(by=by, text=text), attempt_id=attempt_id)
    return tracks.note_run(run_id, draft)
