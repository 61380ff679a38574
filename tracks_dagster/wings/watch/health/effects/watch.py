"""Records alerts of runs and of machines: when an episode of a rule begins, and when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.idle import IdleDay
from tracks_dagster.ledger.deciding import Answer, Append
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.names import WATCH_HEALTH
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.pool_state import PoolState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.wings.watch.health.advice import with_advice
from tracks_dagster.wings.watch.health.effects.looking import Looks, runs_that_go_on
from tracks_dagster.wings.watch.health.rules import Begin, End, next_episode, next_of_machine


class WatchHealth:
    """Begins and ends the episodes of every run that goes on. It tells, and changes nothing of a run.

    Between two ticks it keeps how far it has read each journal.
    """

    name = WATCH_HEALTH

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: tuple[Tracks, Looks] | None = None

    def due(self, world: World) -> Iterable[str]:
        """Return the runs that train, or are between two attempts."""
        return list(runs_that_go_on(world.ledger))

    def decide(self, state: RunState, world: World) -> Answer:
        """Return the next alert to begin or to end; None where the record is as it should be."""
        if state.finished is not None:
            return None
        look = self._of(world).look(state, scheduling=world.policy.scheduling, prices=world.prices)
        episode = next_episode(state, look.lights.findings, look.lights.clear, world.tracks.now())
        match episode:
            case Begin(alert=alert, attempt_id=attempt_id):
                advised = with_advice(alert, look.lights.advice)
                draft = world.tracks.draft(Kind.ALERT, advised, attempt_id=attempt_id)
                return Append(draft=draft, what="alerted", why=alert.text, is_last=False)
            case End(alert=of, cleared=cleared):
                draft = world.tracks.draft(Kind.ALERT_CLEARED, cleared, attempt_id=of.attempt_id)
                why = f"{cleared.rule} is over: {cleared.why}"
                return Append(draft=draft, what="cleared", why=why, is_last=False)
            case None:
                return None

    def _of(self, world: World) -> Looks:
        with self._lock:
            if self._looks is None or self._looks[0] is not world.tracks:
                self._looks = (world.tracks, Looks(world.tracks, world.ledger))
            return self._looks[1]


# --- of a machine, in its pool's track --------------------------------------------------------------


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
