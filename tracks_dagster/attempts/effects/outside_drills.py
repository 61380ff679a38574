"""Drills that hit what stands outside a gang: the process that supervises it, the home's daemon.

Whoever plays one looks at the run again and again and claims the drill in the track before it fires.
"""

from __future__ import annotations

from tracks_dagster.attempts.drills import claim_note, was_claimed
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.stores.journals import last_step
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import run_track


def steps_done(tracks: Tracks, state: RunState) -> int:
    """Return the newest step that a rank of the run's last attempt has shipped; 0 before."""
    attempt = state.last_attempt
    if attempt is None or attempt.placed is None:
        return 0
    launch_id = attempt.placed.launch_id
    line = last_step(tracks.store, state.run_id, attempt.attempt_id, launch_id)
    return line.step if line is not None else 0


def claim_outside_drill(tracks: Tracks, state: RunState, kind: str, step: int) -> Drill | None:
    """Claim a drill of that kind that is due now that `step` is done; None when there is none.

    Two that claim at once both fire: the drills of one kind have one player at a time.
    """
    for index, drill in enumerate(state.declared.drills):
        is_due = drill.kind == kind and step >= drill.step
        if not is_due or was_claimed(tracks.records(run_track(state.run_id)), index):
            continue
        draft: Draft = tracks.draft(Kind.NOTE, claim_note(index, drill))
        tracks.note_run(state.run_id, draft)
        return drill
    return None
