"""Notes: what a person knows of a run or an attempt and the machine does not."""

from __future__ import annotations

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import Note
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.track.states.run_state import AttemptState, RunState
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


def known_attempt(state: RunState, attempt_id: int) -> AttemptState:
    """Return the attempt; raises UnknownRun naming those that there are."""
    attempt = state.attempt(attempt_id)
    if attempt is not None:
        return attempt
    count = len(state.attempts)
    first, last = attempt_key(state.run_id, 1), attempt_key(state.run_id, count)
    there = {0: "it has none yet", 1: f"it has {first}"}.get(count, f"it has {first} to {last}")
    raise UnknownRun(f"Training run {state.run_id} has no attempt {attempt_id}; {there}.")
