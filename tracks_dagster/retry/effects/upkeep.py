"""What the watcher does now and then for tracks that nothing is due on: it brings them into the ledger.

Each part has a few seconds of a tick, however many tracks there are, and goes on where it was cut.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.due import runs_of_a_person
from tracks_dagster.retry.effects.turns import UPKEEP_S_MAX, Seconds, Turns
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.records import format_time, parse_time
from tracks_dagster.track.track import run_track

REVISIT_EVERY = timedelta(minutes=5)
SCAN_EVERY = timedelta(days=1)  # a full scan finds tracks that no process of ours has projected


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How far one part has come. done_at: when it was last done; after: the run or track after which
    it goes on; None: at the first one."""

    done_at: str | None
    after: str | None = None
    problems: tuple[str, ...] = ()


def revisit_if_due(
    tracks: Tracks,
    ledger: Ledger,
    last_at: str | None,
    now: datetime,
    *,
    after: str | None = None,
    seconds: Seconds = time.monotonic,
) -> Upkeep:
    """Bring in, every few minutes, the tracks of runs that wait for a person; return when it was.

    Nothing is due on them, and no tick looks at them. But a person's command that was killed right
    after its record had left it out of the ledger, and the run would wait on. Where there are too many
    for one tick, the next time goes on with the others.
    """
    if last_at is not None and now - parse_time(last_at) < REVISIT_EVERY:
        return Upkeep(done_at=last_at, after=after)
    turns = Turns(runs_of_a_person(ledger), after=after, seconds=seconds, part_s_max=UPKEEP_S_MAX)
    problems = []
    for run_id in turns:
        try:
            tracks.project(run_track(run_id))
        except TracksError as error:
            problems.append(f"{run_id}: {error}")
    return Upkeep(done_at=format_time(now), after=turns.cut_at, problems=tuple(problems))


def scan_if_due(
    projector: Projector,
    last_scan_at: str | None,
    now: datetime,
    *,
    after: str | None = None,
    seconds: Seconds = time.monotonic,
) -> Upkeep:
    """Scan the whole store once a day, a few seconds at each tick until it is done.

    A track that cannot be taken in waits for a person and is met again tomorrow; a store that cannot
    be reached is asked again at the next tick. Neither keeps the runs waiting.
    """
    if not scan_is_due(last_scan_at, now):
        return Upkeep(done_at=last_scan_at)
    began_s = seconds()
    part = projector.scan_part(after=after, has_time=lambda: seconds() - began_s < UPKEEP_S_MAX)
    return Upkeep(
        done_at=format_time(now) if part.is_last else last_scan_at,
        after=None if part.is_last else part.reached,
        problems=part.problems,
    )


def scan_is_due(last_scan_at: str | None, now: datetime) -> bool:
    """Whether the daily scan of the whole store is due; never scanned means yes."""
    return last_scan_at is None or now - parse_time(last_scan_at) >= SCAN_EVERY
