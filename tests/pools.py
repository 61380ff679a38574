"""A compute pool's track for tests: one record a call, and gangs in a cluster that lost a node.

pool = PoolHistory("k8s/h100").strike("n-1").strike("n-1").quarantine("n-1")
pool.state; pool.write_to(store)
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Self

from tests.bodies import BEGIN
from tests.deciders import settled_run
from tests.histories import Grown, History
from tracks_dagster.ledger.effects.deciding import Settled
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.node_health import NodeHealth
from tracks_dagster.track.bodies import (
    Alert,
    ComputeRequest,
    DevicesLeased,
    LeaseConfirmed,
    LeaseReleased,
    NodeQuarantined,
    NodeReleased,
    NodeStruck,
    RankPlace,
)
from tracks_dagster.track.names import pool_track
from tracks_dagster.track.records import Kind, format_time
from tracks_dagster.track.states import pool_state
from tracks_dagster.track.states.pool_state import PoolState

POOL = "kubernetes/h100"
CLUSTER = ComputeRequest(launcher="kubernetes", device_class="h100", ranks=2)
HOUR_S = 3600.0


class PoolHistory(Grown):
    """A pool's track. Every method appends one record and returns the history."""

    def __init__(self, pool: str = POOL, *, begin: datetime = BEGIN) -> None:
        super().__init__(pool_track(pool), begin=begin)
        self.pool = pool
        self._state: PoolState | None = None

    @property
    def state(self) -> PoolState:
        """The state after the last record."""
        assert self._state is not None, "a record comes first"
        return self._state

    def strike(self, node: str, **changes: Any) -> Self:
        """`node_struck` of an attempt of its own: ten nodes that worked 10 h each."""
        fields: dict[str, Any] = {
            "pool": self.pool,
            "node": node,
            "run_id": f"run-{len(self.records)}",
            "attempt_id": 1,
            "reason": "gpu_hardware",
            "struck_at": format_time(self.at),
            "exposure_s": 10 * HOUR_S,
            "pool_exposure_s": 100 * HOUR_S,
            "pool_node_count": 10,
            "why": "Xid 79",
            "by": "tests",
        }
        return self.add(Kind.NODE_STRUCK, NodeStruck(**fields | changes))

    def quarantine(
        self,
        node: str,
        *,
        for_s: float = 24 * HOUR_S,
        seqs: tuple[int, ...] = (),
        why: str = "it smells",
    ) -> Self:
        """`node_quarantined`: by a person, or by the strikes of these records."""
        body = NodeQuarantined(
            pool=self.pool,
            node=node,
            until_at=format_time(self.at + timedelta(seconds=for_s)),
            by="ann",
            why=why,
            counted_seqs=seqs,
        )
        return self.add(Kind.NODE_QUARANTINED, body)

    def release(self, node: str) -> Self:
        """`node_released`."""
        body = NodeReleased(pool=self.pool, node=node, by="ann", why="a new cable")
        return self.add(Kind.NODE_RELEASED, body)

    def lease(self, key: str, *devices: str, **changes: Any) -> Self:
        """`devices_leased` to an attempt, or an attempt at an eval, alone; `changes`: its fields."""
        fields: dict[str, Any] = {
            "pool": self.pool,
            "key": key,
            "run_id": key.partition("/")[0],
            "devices": devices,
            "store": "memory://fake",
            "why": "it is first",
            "by": "launch_attempts",
        }
        return self.add(Kind.DEVICES_LEASED, DevicesLeased(**fields | changes))

    def confirm(self, lease_seq: int, dagster_run_id: str = "dagster-1") -> Self:
        """`lease_confirmed`."""
        body = LeaseConfirmed(pool=self.pool, lease_seq=lease_seq, dagster_run_id=dagster_run_id)
        return self.add(Kind.LEASE_CONFIRMED, body)

    def free(self, lease_seq: int) -> Self:
        """`lease_released`."""
        body = LeaseReleased(pool=self.pool, lease_seq=lease_seq, by="ann", why="its home is gone")
        return self.add(Kind.LEASE_RELEASED, body)

    def alert(self) -> Self:
        """`alert`."""
        return self.add(Kind.ALERT, Alert(rule="tests", text="look"))

    def _fold(self, record: Any) -> None:
        self._state = pool_state.apply(self._state, record)


def on_nodes(*nodes: str) -> tuple[RankPlace, ...]:
    """Return one rank on each node."""
    return tuple(
        RankPlace(
            rank=rank,
            node=node,
            pid=7,
            pid_started=1.0,
            boot_id=f"boot-{node}",
            device=f"GPU-{rank}",
            accelerator="h100",
            pod=f"pod-{rank}",
        )
        for rank, node in enumerate(nodes)
    )


def clustered(
    run_id: str = "r-1",
    *,
    begin: datetime = BEGIN,
    nodes: str = "n-1 n-2",
    compute: ComputeRequest = CLUSTER,
) -> History:
    """Return a run in the cluster whose first attempt has been placed on these nodes."""
    places = on_nodes(*nodes.split())
    history = History(run_id, begin=begin).declare(compute=compute).open().supervise()
    return history.place(ranks=places, world_size=len(places)).restore().commit(20)


def settled(tracks: Tracks, ledger: Ledger, run_id: str = "r-1") -> Settled:
    """Decide what follows on the run, nodes included, as a sensor of every reason would."""
    return settled_run(
        tracks,
        run_id,
        reasons=None,
        decided_by="tests",
        policy=DEFAULT_POLICY,
        nodes=NodeHealth(tracks, ledger, DEFAULT_POLICY.nodes),
    )
