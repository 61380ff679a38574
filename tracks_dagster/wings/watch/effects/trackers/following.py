"""The follower that keeps trackers up to date: a commit, an end, a rollback sends what is new.

So does what comes into the store after such a record: the last part of a journal, something logged.
Its cursors only spare looks: what a tracker has, the tracker itself keeps (`exporting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tracks_dagster.curves.effects.media import read_launch_logged
from tracks_dagster.curves.effects.rows import committed_step
from tracks_dagster.ledger.effects.following import follow
from tracks_dagster.ledger.effects.ticks import Tick, TimeSlice, take_turns
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.following import Cursors
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.stores.journals import last_step
from tracks_dagster.track.errors import TrackerError
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, Kind, Record, format_time
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.effects.trackers.exporting import Exported, export_run
from tracks_dagster.wings.watch.effects.trackers.tracker_file import NamedTracker

LATE_MAX = timedelta(minutes=10)  # after an attempt's end, for what it stored last
LOOK_BACK = timedelta(days=7)  # older finished runs are exported by `tracks curves RUN` alone
RUN_S_MAX = 10.0  # of one run in one tick; what is left the next one sends
TICK_S_MAX = 30.0  # of Dagster's 60
CHANGES = frozenset(
    {
        Kind.ATTEMPT_OPENED,
        Kind.ATTEMPT_RESTORED,
        Kind.CHECKPOINT_COMMITTED,
        Kind.CHECKPOINT_QUARANTINED,
        Kind.ATTEMPT_ENDED,
        Kind.RETRY_REFUSED,
        Kind.RUN_FINISHED,
    }
)
_HEADS = """
select r.run_id, r.model_family, c.seq, a.launch_id, a.closed_at
from training_runs r join track_cursors c on c.track = 'runs/' || r.run_id
left join training_attempts a on a.run_id = r.run_id and a.attempt_id = r.attempt_count
where r.state in (:running, :waiting, :refused) or r.finished_at >= :since
order by r.declared_at, r.run_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerFollower:
    """Sends one tracker what is new of each run. done: what it sent."""

    tracks: Tracks
    cursors: Cursors
    given: NamedTracker
    cache: Path | None
    done: list[Exported]

    @property
    def name(self) -> str:
        """Names its cursors: another place is another follower."""
        return self.given.cursor

    def take(self, state: TrackState, new: Sequence[Record]) -> None:
        """Send what follows from these records; raises TrackerError to have them again."""
        if isinstance(state, RunState) and any(each.kind in CHANGES for each in new):
            self._send(state)

    def take_late(self, state: RunState) -> None:
        """Send what came after the newest record, where something did; raises TrackerError."""
        sent = self.cursors.get(self._stored, run_track(state.run_id))
        if sent != count_stored(self.tracks.store, state):
            self._send(state)

    @property
    def _stored(self) -> str:
        """Names the cursors of what was stored when a run was last sent."""
        return f"{self.name}-stored"

    def _send(self, state: RunState) -> None:
        tracker = self.given.tracker
        stored = count_stored(self.tracks.store, state)  # before what comes meanwhile
        exported = export_run(self.tracks, state, tracker, cache=self.cache, seconds_max=RUN_S_MAX)
        if exported.is_news:
            self.done.append(exported)
        if not exported.is_whole:
            raise TrackerError(
                f"{tracker.name} has it up to step {exported.to_step}; the next tick sends more."
            )
        self.cursors.move(self._stored, run_track(state.run_id), stored)


def count_stored(store: ObjectStore, state: RunState) -> int:
    """Return how much of what a tracker gets is stored of the newest attempt: steps and things logged,
    up to the newest commit. It grows with each that comes."""
    attempt, until = state.last_attempt, committed_step(state)
    if attempt is None or attempt.placed is None:
        return 0
    items, _ = read_launch_logged(store, state.ref(attempt), attempt.placed.launch_id)
    newest = last_step(store, state.ref(attempt), attempt.placed.launch_id)
    steps = 0 if newest is None else min(newest.step, until)
    return steps + sum(item.step <= until for item in items)


def send_what_is_due(
    tracks: Tracks,
    ledger: Ledger,
    cursors: Cursors,
    trackers: Sequence[NamedTracker],
    *,
    cache: Path | None,
    after: str | None = None,
) -> Tick[Exported]:
    """Bring every tracker up to date, run by run in turn; raises LedgerError.

    A tracker that cannot be reached is a problem of each run, and keeps no other waiting for longer
    than its own bounds. Runs that finished before LOOK_BACK are left alone.
    """
    open_states = {
        each.value: each.value
        for each in (RunLifecycle.RUNNING, RunLifecycle.WAITING, RunLifecycle.REFUSED)
    }
    since = format_time(tracks.now() - LOOK_BACK)
    rows = ledger.query(_HEADS, {**open_states, "since": since})
    due = {
        f"{row['run_id']} to {each.tracker.name}": (row, each)
        for each in trackers
        for row in rows
        if not each.projects or row["model_family"] in each.projects
    }

    def look(name: str) -> Tick[Exported]:
        (row, given), done = due[name], list[Exported]()
        track = run_track(row["run_id"])
        is_new = cursors.get(given.cursor, track) < row["seq"]
        follower = TrackerFollower(
            tracks=tracks, cursors=cursors, given=given, cache=cache, done=done
        )
        try:
            if is_new:
                follow(tracks, cursors, follower, track)
            elif _may_come_late(row, tracks.now()):
                follower.take_late(tracks.run(row["run_id"]))
        except TrackerError as error:
            return Tick(done=tuple(done), problems=(str(error),))
        return Tick(done=tuple(done))

    return take_turns(list(due), look, TimeSlice(after=after, seconds_max=TICK_S_MAX))


def _may_come_late(row: Mapping[str, Json], now: datetime) -> bool:
    """Whether something of the newest attempt may have come since the newest record."""
    if row["launch_id"] is None:
        return False
    return row["closed_at"] is None or now - row["closed_at"] <= LATE_MAX
