"""Ends attempts whose run, class, team or owner has spent its money or time: they save first.

The request is a stop of its own mode (BUDGET): the supervisor lets the gang save and end, the end is
recorded as `budget_exhausted`, and no retry follows by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracks_dagster.attempts.effects.world import World
from tracks_dagster.ledger.deciding import Answer, Append
from tracks_dagster.retry.caps import has_day_caps, over_day_cap, over_run_cap
from tracks_dagster.retry.effects.due import runs_with_open_attempts
from tracks_dagster.retry.stage_time import over_stage_time
from tracks_dagster.scheduling.effects.usage import read_usage
from tracks_dagster.track.bodies import BUDGET, StopRequested
from tracks_dagster.track.names import WATCH_ATTEMPTS
from tracks_dagster.track.records import Kind
from tracks_dagster.track.states.run_state import RunState

_CAPPED = """
select r.run_id from training_runs r join training_attempts a on a.run_id = r.run_id
where a.termination_reason is null and (r.max_device_s is not null or :has_prices and (
    r.max_cost is not null or exists (
        select 1 from training_attempts b where b.run_id = r.run_id and b.max_cost is not null)))
order by r.declared_at, r.run_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Asks an open attempt to save and end once a cap in money or time is reached."""

    name: str = WATCH_ATTEMPTS

    def due(self, world: World) -> Iterable[str]:
        """Return the runs with an open attempt and a cap; of a policy with caps all with an open one.

        Without a price table nothing costs money that is known.
        """
        has_prices = world.prices is not None
        if has_prices and has_day_caps(world.policy.scheduling):
            return runs_with_open_attempts(world.ledger)
        rows = world.ledger.query(_CAPPED, {"has_prices": has_prices})
        return [row["run_id"] for row in rows]

    def decide(self, state: RunState, world: World) -> Answer:
        """Return the stop, with the numbers; None while no cap is reached."""
        attempt = state.open_attempt
        if attempt is None or state.stop_for(attempt) is not None:
            return None
        why = spent(state, world)
        if why is None:
            return None
        body = StopRequested(by=self.name, why=why, mode=BUDGET)
        draft = world.tracks.draft(Kind.STOP_REQUESTED, body)
        return Append(draft=draft, what="stopped", why=why)


def spent(state: RunState, world: World) -> str | None:
    """Return which cap is reached, with the numbers; None while none is, of money without prices."""
    now, scheduling = world.tracks.now(), world.policy.scheduling
    words = over_stage_time(state, now)
    if words is not None or world.prices is None:
        return words
    words = over_run_cap(state, world.prices, now)
    if words is None and has_day_caps(scheduling):
        usage = read_usage(world.ledger, scheduling, now=now, prices=world.prices)
        words = over_day_cap(state, scheduling, usage, world.prices.currency)
    return words
