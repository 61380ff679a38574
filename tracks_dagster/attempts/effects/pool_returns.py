"""Brings a run back to its own pool, where one that preempts nobody would keep it for ever.

The request is a move: the gang saves and ends, which costs nothing of a budget, and the retry goes to
the run's own pool (`retry.elsewhere`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.ledger.deciding import Answer, Append
from tracks_dagster.retry.effects.due import runs_with_open_attempts
from tracks_dagster.retry.elsewhere import is_due_back, own_pool
from tracks_dagster.track.bodies import MOVE, StopRequested
from tracks_dagster.track.names import WATCH_ATTEMPTS
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import duration


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReturns:
    """Asks an open attempt in another pool to save and make way for one in its own."""

    name: str = WATCH_ATTEMPTS

    def due(self, world: World) -> Iterable[str]:
        """Return the runs with an open attempt; none where the policy names no other pools."""
        return runs_with_open_attempts(world.ledger) if world.policy.other_pools else ()

    def decide(self, state: RunState, world: World) -> Answer:
        """Return the request; None while it may stay, and before it trains: it would lose its start."""
        attempt, policy = state.open_attempt, world.policy
        if attempt is None or attempt.restored is None or state.stop_for(attempt) is not None:
            return None
        if not policy.other_pools or not is_due_back(state, policy, world.tracks.now()):
            return None
        why = (
            f"back from {pool_of(attempt.opened.compute)} to its own pool, {own_pool(state)}, after "
            f"{duration(policy.other_pool_s)}"
        )
        body = StopRequested(by=self.name, why=why, mode=MOVE)
        draft = world.tracks.draft(Kind.STOP_REQUESTED, body)
        return Append(draft=draft, what="moved", why=why)
