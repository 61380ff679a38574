"""Strike the nodes that attempts ended on, quarantine those that stand out, avoid those on hold.

Asked where what follows on an attempt's end is decided: the strike is recorded before the next attempt
opens, and a tick that died in between is repeated. What an attempt struck is in the pool's track
alone, so asking again costs one read; the time that nodes worked is summed only for a new strike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.avoidance import Opening, avoid, no_node_left
from tracks_dagster.retry.decision import Decision, Retry
from tracks_dagster.retry.node_health import QUARANTINED_MAX, NodeRule, due_quarantine
from tracks_dagster.track.bodies import Alert, NodeQuarantined, NodeStruck
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.placement import nodes_of, pool_of
from tracks_dagster.track.records import Draft, Kind, format_time
from tracks_dagster.track.states.pool_state import PoolState
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.track import run_track

# Of a pool inside the window, the newest: a strike costs the same however much has ended there. What is
# left out shortens the times of all nodes alike, and only their ratios are compared.
ATTEMPTS_MAX = 1000
WHY_CHARACTERS_MAX = 200  # of the attempt's own words
COUNTED_MAX = 32  # strikes that the record of a quarantine names, the newest
WORDS_CHARACTERS_MAX = 300  # of what is wrong with a pool's track, in a decision


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWork:
    """How long each node worked in the pool's attempts that ended of late. seconds: by node."""

    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """The time that all nodes worked together."""
        return sum(self.seconds.values(), start=0.0)


class NodeHealth:
    """Decides on nodes by one policy's rule; make one for a tick. Safe for several threads."""

    def __init__(self, tracks: Tracks, ledger: Ledger, rule: NodeRule) -> None:
        self._tracks = tracks
        self._ledger = ledger
        self._rule = rule
        self._works: dict[str, PoolWork] = {}

    def is_due(self, state: RunState) -> bool:
        """Whether `look` has something to append."""
        blamed = self._blamed(state)
        if blamed is None:
            return False
        attempt, pool, _ = blamed
        try:
            found = self._tracks.find_pool(pool)
        except TrackBroken:
            return False  # `tracks fsck` tells of it, and no run waits for it
        if found is None or not found.has_struck(state.run_id, attempt.attempt_id):
            return True
        return due_quarantine(found, self._rule, self._tracks.now()) is not None

    def look(self, state: RunState, *, by: str) -> None:
        """Strike the node that the newest attempt ended on, and quarantine what is due. Idempotent.

        Nothing where it has not ended, ended for no fault of a node or because a person emptied its
        node, or nobody knows of which node.
        Raises StoreUnavailable, LedgerError and Contended: then it is done by the next call.
        """
        blamed = self._blamed(state)
        if blamed is None or not self.is_due(state):
            return
        attempt, pool, node = blamed
        found = self._tracks.find_pool(pool)
        if found is None or not found.has_struck(state.run_id, attempt.attempt_id):
            self._strike(pool, node, state, attempt, by)
        self._quarantine(pool, by)

    def none_left(self, state: RunState, decision: Decision) -> Alert | None:
        """Return the alert for a retry that excludes every known node; None where one is left, or where
        the same text is recorded already."""
        if not isinstance(decision, Retry) or not decision.compute.excluded_nodes:
            return None
        alert = no_node_left(decision.compute, self._work(pool_of(decision.compute)).seconds.keys())
        if alert is None or any(known.body.text == alert.text for known in state.alerts):
            return None
        return alert

    def _blamed(self, state: RunState) -> tuple[AttemptState, str, str] | None:
        """Return the newest attempt, its pool and the node that its end is held against."""
        attempt = state.last_attempt
        if attempt is None or attempt.ended is None or attempt.reason not in self._rule.reasons:
            return None
        node = None if state.is_moved(attempt) else struck_node(attempt)
        return None if node is None else (attempt, pool_of(attempt.opened.compute), node)

    def _strike(
        self, pool: str, node: str, state: RunState, attempt: AttemptState, by: str
    ) -> None:
        assert attempt.ended is not None
        assert attempt.ended_at is not None
        self._tracks.project(run_track(state.run_id))  # its own time counts too
        work = read_work(self._ledger, pool, now=self._tracks.now(), window_s=self._rule.window_s)
        self._works[pool] = work
        struck = NodeStruck(
            pool=pool,
            node=node,
            run_id=state.run_id,
            attempt_id=attempt.attempt_id,
            reason=str(attempt.reason),
            struck_at=format_time(attempt.ended_at),
            exposure_s=round(work.seconds.get(node, 0.0), 3),
            pool_exposure_s=round(work.total_s, 3),
            pool_node_count=len(work.seconds.keys() | {node}),
            why=attempt.ended.root_message[:WHY_CHARACTERS_MAX],
            by=by,
        )
        draft = self._tracks.draft(Kind.NODE_STRUCK, struck)

        def choose(pool_state: PoolState | None) -> Draft | None:
            known = pool_state is not None and pool_state.has_struck(
                struck.run_id, struck.attempt_id
            )
            return None if known else draft

        self._tracks.decide_pool(pool, choose)

    def _quarantine(self, pool: str, by: str) -> None:
        """Append what is due, at most as many as may be in quarantine together."""

        def choose(state: PoolState | None) -> Draft | None:
            due = due_quarantine(state, self._rule, self._tracks.now()) if state else None
            if due is None:
                return None
            body = NodeQuarantined(
                pool=pool,
                node=due.node,
                until_at=format_time(due.until_at),
                by=by,
                why=due.why,
                counted_seqs=due.counted_seqs[-COUNTED_MAX:],
            )
            return self._tracks.draft(Kind.NODE_QUARANTINED, body)

        for _ in range(QUARANTINED_MAX):
            if self._tracks.decide_pool(pool, choose) is None:
                return

    def _work(self, pool: str) -> PoolWork:
        if pool not in self._works:
            self._works[pool] = read_work(
                self._ledger, pool, now=self._tracks.now(), window_s=self._rule.window_s
            )
        return self._works[pool]


def struck_node(attempt: AttemptState) -> str | None:
    """Return the node that an attempt's end is held against; None where nobody knows.

    The one on which it failed first; of a gang on one node the placement names it too.
    """
    if attempt.ended is not None and attempt.ended.blamed_node is not None:
        return attempt.ended.blamed_node
    nodes = nodes_of(attempt.placed) if attempt.placed else ()
    return nodes[0] if len(nodes) == 1 else None


def read_work(ledger: Ledger, pool: str, *, now: datetime, window_s: float) -> PoolWork:
    """Return how long nodes worked in attempts of `pool` that ended inside the window, by the ledger.

    A node of an attempt works from its placement to its end; what lies before the window is left out.
    """
    since = now - timedelta(seconds=window_s)
    rows = ledger.query(
        "select nodes_json, placed_at, ended_at from training_attempts where pool = :pool "
        "and ended_at > :since and placed_at is not null and termination_reason is not null "
        "order by ended_at desc limit :attempts_max",
        {"pool": pool, "since": format_time(since), "attempts_max": ATTEMPTS_MAX},
    )
    seconds: dict[str, float] = {}
    for row in rows:
        worked_s = (row["ended_at"] - max(row["placed_at"], since)).total_seconds()
        for node in json.loads(row["nodes_json"]):
            seconds[node] = seconds.get(node, 0.0) + max(0.0, worked_s)
    return PoolWork(seconds=seconds)


def avoid_now(tracks: Tracks, opening: Opening) -> Opening:
    """Return `opening` with the nodes excluded that are on hold now.

    A pool's track that is damaged keeps no run waiting: its quarantines are not known then, which the
    decision says, and `tracks fsck` tells what to do.
    """
    if opening.compute.launcher == LOCAL:
        return opening
    holds = Holds(tracks)
    try:
        in_pool = holds.on_pool_nodes(pool_of(opening.compute), tracks.now())
    except TrackBroken as error:
        words = f"No quarantine was looked at: {str(error)[:WORDS_CHARACTERS_MAX]}"
        return replace(opening, decision=f"{opening.decision} {words}")
    return avoid(opening, (*in_pool, *holds.on_nodes()))
