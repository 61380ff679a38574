"""The decider that opens the first attempt of a run whose declaring process did not come to it."""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.attempts.effects.opening.runs import first_attempt
from tracks_dagster.ledger.deciding import Answer, Append, Wait
from tracks_dagster.ledger.effects.deciding import HasTracks
from tracks_dagster.retry.effects.due import runs_without_attempts
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import ALERT_FIRST_ATTEMPT_HELD, WATCH_ATTEMPTS
from tracks_dagster.track.states.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAttempts:
    """A snapshot that was quarantined after the run was declared holds its first attempt back until
    somebody releases it or stops the run: that is an alert in the track, the same words once."""

    name: str = WATCH_ATTEMPTS

    def due(self, world: HasTracks) -> list[str]:
        """Return the runs without an attempt, oldest first."""
        return runs_without_attempts(world.ledger)

    def decide(self, state: RunState, world: HasTracks) -> Answer:
        """Return the first attempt, or the wait for a release; None when it is open or not wanted."""
        try:
            draft = first_attempt(world.tracks, state, self.name)
        except InvalidInput as error:
            why = (
                f"{error} It is opened by itself then; "
                f'`tracks stop {state.run_id} --why "…"` ends the run instead.'
            )
            is_known = any(alert.body.text == why for alert in state.alerts)
            alert = Alert(rule=ALERT_FIRST_ATTEMPT_HELD, text=why)
            return Wait(why=why, alert=None if is_known else alert)
        if draft is None:
            return None
        return Append(draft=draft, what="opened", why="its first attempt")
