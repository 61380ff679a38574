"""Strike the nodes and devices that attempts ended on, quarantine those that stand out, avoid those on
hold.

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
from tracks_dagster.retry.node_health import (
    DEVICES_ALLOWED_MIN,
    QUARANTINED_MAX,
    DueQuarantine,
    NodeRule,
    due_quarantine,
)
from tracks_dagster.scheduling.effects.leases import DevicePool
from tracks_dagster.track.bodies import Alert, NodeQuarantined, NodeStruck
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import LOCAL, run_track
from tracks_dagster.track.placement import nodes_of, pool_of
from tracks_dagster.track.records import Draft, Kind, format_time
from tracks_dagster.track.states.pool_state import PoolState
from tracks_dagster.track.states.run_state import AttemptState, RunState

# Of a pool inside the window, the newest: a strike costs the same however much has ended there. What is
# left out shortens the times of all nodes alike, and only their ratios are compared.
ATTEMPTS_MAX = 1000
WHY_CHARACTERS_MAX = 200  # of the attempt's own words
COUNTED_MAX = 32  # strikes that the record of a quarantine names, the newest
WORDS_CHARACTERS_MAX = 300  # of what is wrong with a pool's track, in a decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """What an attempt's end is held against. device: the one of the node that the evidence names, in
    the pool of its machine; None: the node as a whole."""

    attempt: AttemptState
    pool: str
    node: str
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWork:
    """How long each node worked in the pool's attempts that ended of late. seconds: by node, or by
    device."""

    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """The time that all nodes worked together."""
        return sum(self.seconds.values(), start=0.0)


class NodeHealth:
    """Decides on nodes and devices by one policy's rule; make one for a tick. Safe for several threads.

    devices: of this machine; without them none of it is struck alone.
    """

    def __init__(
        self, tracks: Tracks, ledger: Ledger, rule: NodeRule, *, devices: DevicePool | None = None
    ) -> None:
        self._tracks = tracks
        self._devices = devices
        self._ledger = ledger
        self._rule = rule
        self._works: dict[str, PoolWork] = {}

    def is_due(self, state: RunState) -> bool:
        """Whether `look` has something to append."""
        blamed = self._blamed(state)
        if blamed is None:
            return False
        try:
            found = self._pools(blamed).find_pool(blamed.pool)
        except TrackBroken:
            return False  # `tracks fsck` tells of it, and no run waits for it
        if found is None or not found.has_struck(state.run_id, blamed.attempt.attempt_id):
            return True
        return self._due(found, blamed) is not None

    def look(self, state: RunState, *, by: str) -> None:
        """Strike the node that the newest attempt ended on, or the device of it that is to blame, and
        quarantine what is due. Idempotent.

        Nothing where it has not ended, ended for no fault of a node or because a person emptied its
        node, or nobody knows of which node.
        Raises StoreUnavailable, LedgerError and Contended: then it is done by the next call.
        """
        blamed = self._blamed(state)
        if blamed is None or not self.is_due(state):
            return
        found = self._pools(blamed).find_pool(blamed.pool)
        if found is None or not found.has_struck(state.run_id, blamed.attempt.attempt_id):
            self._strike(blamed, state, by)
        self._quarantine(blamed, by)

    def none_left(self, state: RunState, decision: Decision) -> Alert | None:
        """Return the alert for a retry that excludes every known node; None where one is left, or where
        the same text is recorded already."""
        if not isinstance(decision, Retry) or not decision.compute.excluded_nodes:
            return None
        alert = no_node_left(decision.compute, self._work(pool_of(decision.compute)).seconds.keys())
        if alert is None or any(known.body.text == alert.text for known in state.alerts):
            return None
        return alert

    def _blamed(self, state: RunState) -> Blamed | None:
        """Return what the newest attempt's end is held against; None where that is nothing known."""
        attempt = state.last_attempt
        if attempt is None or attempt.ended is None or attempt.reason not in self._rule.reasons:
            return None
        node = None if state.is_moved(attempt) else struck_node(attempt)
        if node is None:
            return None
        lease, device = attempt.held, attempt.ended.blamed_device
        here = None if self._devices is None else self._devices.here.pool
        if lease is not None and lease.pool == here and device in lease.devices:
            return Blamed(attempt=attempt, pool=lease.pool, node=node, device=device)
        return Blamed(attempt=attempt, pool=pool_of(attempt.opened.compute), node=node)

    def _pools(self, blamed: Blamed) -> Tracks:
        if blamed.device is None or self._devices is None:
            return self._tracks
        return self._devices.tracks

    def _due(self, state: PoolState, blamed: Blamed) -> DueQuarantine | None:
        now = self._tracks.now()
        if blamed.device is None:
            return due_quarantine(state, self._rule, now)
        return due_quarantine(state.by_device, self._rule, now, allowed_min=DEVICES_ALLOWED_MIN)

    def _strike(self, blamed: Blamed, state: RunState, by: str) -> None:
        attempt, pool = blamed.attempt, blamed.pool
        assert attempt.ended is not None
        assert attempt.ended_at is not None
        self._tracks.project(run_track(state.run_id))  # its own time counts too
        work = self._work_of(blamed)
        name = blamed.device or blamed.node
        struck = NodeStruck(
            pool=pool,
            node=blamed.node,
            device=blamed.device,
            run_id=state.run_id,
            attempt_id=attempt.attempt_id,
            reason=str(attempt.reason),
            struck_at=format_time(attempt.ended_at),
            exposure_s=round(work.seconds.get(name, 0.0), 3),
            pool_exposure_s=round(work.total_s, 3),
            pool_node_count=len(work.seconds.keys() | {name} | self._devices_there(blamed)),
            why=attempt.ended.root_message[:WHY_CHARACTERS_MAX],
            by=by,
        )
        draft = self._tracks.draft(Kind.NODE_STRUCK, struck)

        def choose(pool_state: PoolState | None) -> Draft | None:
            known = pool_state is not None and pool_state.has_struck(
                struck.run_id, struck.attempt_id
            )
            return None if known else draft

        self._pools(blamed).decide_pool(pool, choose)

    def _quarantine(self, blamed: Blamed, by: str) -> None:
        """Append what is due, at most as many as may be in quarantine together."""

        def choose(state: PoolState | None) -> Draft | None:
            due = self._due(state, blamed) if state else None
            if due is None:
                return None
            body = NodeQuarantined(
                pool=blamed.pool,
                node=due.node if blamed.device is None else blamed.node,
                device=None if blamed.device is None else due.node,
                until_at=format_time(due.until_at),
                by=by,
                why=due.why,
                counted_seqs=due.counted_seqs[-COUNTED_MAX:],
            )
            return self._tracks.draft(Kind.NODE_QUARANTINED, body)

        for _ in range(QUARANTINED_MAX):
            if self._pools(blamed).decide_pool(blamed.pool, choose) is None:
                return

    def _work_of(self, blamed: Blamed) -> PoolWork:
        now, window_s = self._tracks.now(), self._rule.window_s
        if blamed.device is not None:
            return read_device_work(self._ledger, blamed.node, now=now, window_s=window_s)
        work = read_work(self._ledger, blamed.pool, now=now, window_s=window_s)
        self._works[blamed.pool] = work
        return work

    def _devices_there(self, blamed: Blamed) -> set[str]:
        """Return the devices that the machine has now: one that has not worked yet is one of them."""
        if blamed.device is None or self._devices is None:
            return set()
        return {device.name for device in self._devices.look(frozenset()).devices}

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
    return _read(ledger, "nodes_json", "pool = :where", pool, now=now, window_s=window_s)


def read_device_work(ledger: Ledger, node: str, *, now: datetime, window_s: float) -> PoolWork:
    """Return the same of the devices that attempts were given on one machine."""
    given = "leased_devices_json is not null and nodes_json = :where"
    nodes = json.dumps([node], separators=(",", ":"))
    return _read(ledger, "leased_devices_json", given, nodes, now=now, window_s=window_s)


def _read(
    ledger: Ledger, names: str, given: str, where: str, *, now: datetime, window_s: float
) -> PoolWork:
    since = now - timedelta(seconds=window_s)
    rows = ledger.query(
        f"select {names}, placed_at, ended_at from training_attempts where {given} "
        "and ended_at > :since and placed_at is not null and termination_reason is not null "
        "order by ended_at desc limit :attempts_max",
        {"where": where, "since": format_time(since), "attempts_max": ATTEMPTS_MAX},
    )
    seconds: dict[str, float] = {}
    for row in rows:
        worked_s = (row["ended_at"] - max(row["placed_at"], since)).total_seconds()
        for name in parse_json(row[names]):
            seconds[name] = seconds.get(name, 0.0) + max(0.0, worked_s)
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
