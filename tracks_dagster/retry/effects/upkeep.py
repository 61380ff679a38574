"""What the watcher does now and then for tracks that nothing is due on: it brings them into the ledger.

Each part has a few seconds of a tick, however many tracks there are, and goes on where it was cut.
"""

from __future__ import annotations

import time
from datetime import timedelta

from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.ticks import (
    UPKEEP_S_MAX,
    Seconds,
    Tick,
    TimeSlice,
    take_turns,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.due import runs_of_a_person
from tracks_dagster.track.track import run_track

REVISIT_EVERY = timedelta(minutes=5)
SCAN_EVERY = timedelta(days=1)  # a full scan finds tracks that no process of ours has projected


def revisit(
    tracks: Tracks, ledger: Ledger, *, after: str | None, seconds: Seconds = time.monotonic
) -> Tick[None]:
    """Bring in, every few minutes, the tracks of runs that wait for a person.

    Nothing is due on them, and no tick looks at them. But a person's command that was killed right
    after its record had left it out of the ledger, and the run would wait on. Where there are too many
    for one tick, the next time goes on with the others.
    """

    def look(run_id: str) -> Tick[None]:
        tracks.project(run_track(run_id))
        return Tick()

    time_slice = TimeSlice(after=after, seconds_max=UPKEEP_S_MAX, seconds=seconds)
    return take_turns(runs_of_a_person(ledger), look, time_slice)


def scan(
    projector: Projector, *, after: str | None, seconds: Seconds = time.monotonic
) -> Tick[None]:
    """Scan the whole store once a day, a few seconds at each tick until it is done.

    A track that cannot be taken in waits for a person and is met again tomorrow; a store that cannot
    be reached is asked again at the next tick. Neither keeps the runs waiting.
    """
    began_s = seconds()
    part = projector.scan_part(after=after, has_time=lambda: seconds() - began_s < UPKEEP_S_MAX)
    return Tick(
        cut_at=None if part.is_last else part.reached,
        is_done=part.is_last,
        problems=part.problems,
    )
