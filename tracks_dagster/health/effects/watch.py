"""Records alerts: when an episode of a rule begins, and when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.health.advice import with_advice
from tracks_dagster.health.effects.looking import Looks, runs_that_go_on
from tracks_dagster.health.rules import Begin, End, next_episode
from tracks_dagster.ledger.deciding import Answer, Append
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.names import WATCH_HEALTH
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import RunState


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
