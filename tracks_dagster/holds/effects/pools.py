"""What ended in each compute pool of late, by the ledger, and whether that is a storm."""

from __future__ import annotations

from datetime import datetime, timedelta

from tracks_dagster.holds.hold import Hold
from tracks_dagster.holds.storm import PoolEnd, PoolView, StormRule, find_storm
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.reasons import ReasonFamily
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.lifecycle import RunLifecycle

ENDS_MAX = 1000  # of one pool that are counted, newest first: any storm is clear from them

# An attempt, as `training_attempts` has it, that a person asked to leave its node: no interruption.
IS_MOVED = "termination_reason = 'node_drained' and rule = 'stop_requested'"


class Pools:
    """Looks at each pool once: make one for a tick."""

    def __init__(self, ledger: Ledger, rule: StormRule, *, now: datetime) -> None:
        self._ledger = ledger
        self._rule = rule
        self._since = now - timedelta(seconds=rule.window_s)
        self._views: dict[str, PoolView] = {}

    def storm(self, pool: str, now: datetime) -> Hold | None:
        """Return the hold of the storm that blows in the pool at `now`; None in calm weather."""
        return find_storm(self.view(pool), self._rule, now)

    def view(self, pool: str) -> PoolView:
        """Return the ends of the pool inside the window, and how many runs it works for."""
        if pool not in self._views:
            self._views[pool] = PoolView(
                pool=pool, ends=self._ends(pool), run_count=self._run_count(pool)
            )
        return self._views[pool]

    def _ends(self, pool: str) -> tuple[PoolEnd, ...]:
        rows = self._ledger.query(
            "select run_id, attempt_id, ended_at from training_attempts where pool = :pool "
            "and ended_at > :since and reason_family <> :as_meant "
            f"and not ({IS_MOVED}) "  # a person emptied its node
            "order by ended_at desc limit :ends_max",
            {
                "pool": pool,
                "since": format_time(self._since),
                "as_meant": ReasonFamily.AS_MEANT.value,
                "ends_max": ENDS_MAX,
            },
        )
        return tuple(
            PoolEnd(run_id=row["run_id"], attempt_id=row["attempt_id"], ended_at=row["ended_at"])
            for row in rows
        )

    def _run_count(self, pool: str) -> int:
        # From the runs that are not over, not from all attempts of the pool: hence no index on `pool`.
        rows = self._ledger.query(
            "select count(*) as n from training_runs r join training_attempts a "
            "on a.run_id = r.run_id and a.attempt_id = r.attempt_count "
            "where r.state = :running and coalesce(a.pool, '') = :pool",
            {"running": RunLifecycle.RUNNING.value, "pool": pool},
        )
        return int(rows[0]["n"])
