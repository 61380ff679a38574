"""Open the first attempt of a run whose declaring process did not come to it, or say why not, once."""

from __future__ import annotations

from tracks_dagster.attempts.effects.opening.runs import open_first_attempt
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import ALERT_FIRST_ATTEMPT_HELD
from tracks_dagster.track.records import Kind, Record


def open_or_tell(tracks: Tracks, run_id: str, *, decided_by: str) -> tuple[Record | None, str]:
    """Return the record that this call appended, and in words what came of it.

    A snapshot that was quarantined after the run was declared holds the attempt back until somebody
    releases it or stops the run: that is an alert in the track, the same words once. Idempotent.
    """
    try:
        opened = open_first_attempt(tracks, run_id, decided_by=decided_by)
    except InvalidInput as error:
        why = (
            f"{error} It is opened by itself then; "
            f'`tracks stop {run_id} --why "…"` ends the run instead.'
        )
        if any(alert.body.text == why for alert in tracks.run(run_id).alerts):
            return None, why
        alert = Alert(rule=ALERT_FIRST_ATTEMPT_HELD, text=why)
        return tracks.note_run(run_id, tracks.draft(Kind.ALERT, alert)), why
    return opened, "its first attempt"
