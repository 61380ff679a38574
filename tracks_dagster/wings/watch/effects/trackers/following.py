"""The follower that keeps trackers up to date: a commit, an end, a rollback sends what is new.

Its cursors only spare looks: what a tracker has, the tracker itself keeps (`exporting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from tracks_dagster.ledger.effects.following import follow
from tracks_dagster.ledger.effects.ticks import Tick, TimeSlice, take_turns
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.following import Cursors
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.track.errors import TrackerError
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Kind, Record, format_time
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.effects.trackers.exporting import Exported, export_run
from tracks_dagster.wings.watch.effects.trackers.tracker_file import NamedTracker

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
select r.run_id, r.model_family, c.seq
from training_runs r join track_cursors c on c.track = 'runs/' || r.run_id
where r.state in (:running, :waiting, :refused) or r.finished_at >= :since
order by r.declared_at, r.run_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerFollower:
    """Sends one tracker what is new of each run. done: what it sent."""

    tracks: Tracks
    given: NamedTracker
    cache: Path | None
    done: list[Exported]

    @property
    def name(self) -> str:
        """Names its cursors: another place is another follower."""
        return self.given.cursor

    def take(self, state: TrackState, new: Sequence[Record]) -> None:
        """Send what follows from these records; raises TrackerError to have them again."""
        if not isinstance(state, RunState) or not any(each.kind in CHANGES for each in new):
            return
        tracker = self.given.tracker
        exported = export_run(self.tracks, state, tracker, cache=self.cache, seconds_max=RUN_S_MAX)
        if exported.steps or exported.rolled_back:
            self.done.append(exported)
        if not exported.is_whole:
            raise TrackerError(
                f"{tracker.name} has it up to step {exported.to_step}; the next tick sends more."
            )


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
        f"{row['run_id']} to {each.tracker.name}": (row["run_id"], row["seq"], each)
        for each in trackers
        for row in rows
        if not each.projects or row["model_family"] in each.projects
    }

    def look(name: str) -> Tick[Exported]:
        run_id, seq, given = due[name]
        track, done = run_track(run_id), list[Exported]()
        if cursors.get(given.cursor, track) >= seq:
            return Tick()
        follower = TrackerFollower(tracks=tracks, given=given, cache=cache, done=done)
        try:
            follow(tracks, cursors, follower, track)
        except TrackerError as error:
            return Tick(done=tuple(done), problems=(str(error),))
        return Tick(done=tuple(done))

    return take_turns(list(due), look, TimeSlice(after=after, seconds_max=TICK_S_MAX))
