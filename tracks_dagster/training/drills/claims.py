"""Claims a drill for this launch: it fires once a run, whoever replays the step."""

from __future__ import annotations

from collections.abc import Callable

from tracks_dagster.attempts.drills import claim_note, was_claimed
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.records import Kind
from tracks_dagster.training.launch import Launch


def claim(launch: Launch, index: int, drill: Drill, why_not: Callable[[], str] | None) -> bool:
    """Claim the drill, on rank 0; False when an earlier attempt did, or it cannot be played here.

    why_not: says why it cannot, "" when it can. Raises Fenced. The note stands in the track before
    the drill fires, whatever dies meanwhile.
    """
    launch.own_track.refresh()  # a fenced gang must not use up the next one's drill
    track = launch.whole_track()
    if was_claimed(track.refresh(), index):
        return False
    skipped = why_not() if why_not is not None else ""
    note = claim_note(index, drill, skipped=skipped)
    track.note(launch.draft(Kind.NOTE, note))
    return not skipped
