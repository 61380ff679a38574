"""Records the alerts of a machine in its pool's track."""

from __future__ import annotations

from datetime import datetime

from tracks_dagster.attempts.idle import IdleDay
from tracks_dagster.health.rules import next_of_machine
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.pool_state import PoolState

EPISODES_MAX = 16  # of one look


def watch_machine(tracks: Tracks, pool: str, day: IdleDay, now: datetime) -> Tick[None]:
    """Begin and end the episodes of a machine's devices, by the day as it was just seen.

    decided: those, in words. A pool without any record has none: nothing was ever leased there.
    """

    def chosen(state: PoolState | None) -> Draft | None:
        episode = None if state is None else next_of_machine(state.alerts, day, now)
        if episode is None:
            return None
        kind = Kind.ALERT if isinstance(episode, Alert) else Kind.ALERT_CLEARED
        return tracks.draft(kind, episode)

    done = []
    for _ in range(EPISODES_MAX):
        record = tracks.decide_pool(pool, chosen)
        if record is None:
            break
        done.append(f"{pool}: {record.body.get('text') or record.body.get('why')}")
    return Tick(decided=tuple(done))
