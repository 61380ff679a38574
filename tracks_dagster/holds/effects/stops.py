"""Request the end of a run or of its open attempt, in a person's name.

Only the request is written here: the supervisor drains the gang when it sees it, the watcher closes
what nobody supervises.
"""

from __future__ import annotations

from typing import Literal

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import StopRequested
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.safe_text import check_words

Mode = Literal["stop", "drain"]


def request_stop(tracks: Tracks, run_id: str, *, mode: Mode, by: str, why: str) -> Record | None:
    """Append `stop_requested` and return its record; None where the same was asked before.

    Raises UnknownRun, and InvalidInput when there is nothing left that could be stopped.
    """
    check_words({"why": why, "by": by})
    tracks.run(run_id)
    tracks.project(run_track(run_id))  # a caller killed right after its append had not come to it
    draft = tracks.draft(Kind.STOP_REQUESTED, StopRequested(by=by, why=why, mode=mode))

    def choose(state: RunState | None) -> Draft | None:
        if state is None or state.finished is not None:
            stopped = state.finished.stop_cause if state and state.finished else "unknown"
            raise InvalidInput(f"Training run {run_id} is finished already ({stopped}).")
        attempt = state.open_attempt
        if mode == "drain" and attempt is None:
            raise InvalidInput(
                f"Training run {run_id} has no open attempt that could be drained; "
                f"`tracks stop {run_id}` ends the run itself."
            )
        since = attempt.opened_seq if attempt else _last_seq(state)
        is_asked = any(stop.seq > since and stop.body.mode == mode for stop in state.stops)
        return None if is_asked else draft

    return tracks.decide_run(run_id, choose)


def _last_seq(state: RunState) -> int:
    attempt = state.last_attempt
    return attempt.ended_seq if attempt and attempt.ended_seq is not None else 0
