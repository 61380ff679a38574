"""Taints follow the pools' tracks: quarantine, release and the end by the clock."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta

from tests.fakes import FakeClock, FakeObjectStore
from tests.pools import POOL, PoolHistory
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.pool_nodes import release_node
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.names import pool_track
from tracks_dagster.track.track import log_key
from tracks_dagster.wings.kubernetes.effects.cluster_upkeep import keep_taints


@dataclass
class FakeTaints:
    """Nodes of a cluster; `asked` holds what each call wanted."""

    taints_nodes: bool = True
    problem: GangError | None = None
    asked: list[frozenset[str]] = field(default_factory=list)

    def taint(self, nodes: AbstractSet[str]) -> Sequence[str]:
        if self.problem is not None:
            raise self.problem
        self.asked.append(frozenset(nodes))
        return ("something changed",)


def stored(store: FakeObjectStore, ledger: Ledger, clock: FakeClock, *pools: PoolHistory) -> None:
    for pool in pools:
        pool.write_to(store)
        clock.at = max(clock.at, pool.at)
    Projector(store, ledger).scan()


def test_the_nodes_in_quarantine_of_all_pools_have_it_until_it_ends(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    others = PoolHistory("kubernetes/a100").quarantine("n-9")
    stored(store, ledger, clock, PoolHistory().quarantine("n-1").quarantine("n-2"), others)
    cluster = FakeTaints()
    assert keep_taints(tracks, ledger, cluster) == ("something changed",)
    release_node(tracks, POOL, "n-1", by="ann", why="a new board")
    keep_taints(tracks, ledger, cluster)
    clock.advance(timedelta(days=365).total_seconds())
    keep_taints(tracks, ledger, cluster)
    assert cluster.asked == [{"n-1", "n-2", "n-9"}, {"n-2", "n-9"}, frozenset()]


def test_a_cluster_that_asks_for_no_taints_is_not_asked(tracks: Tracks, ledger: Ledger) -> None:
    cluster = FakeTaints(taints_nodes=False)
    assert keep_taints(tracks, ledger, cluster) == ()
    assert cluster.asked == []


def test_a_pool_whose_track_cannot_be_read_leaves_all_taints_as_they_are(
    tracks: Tracks, store: FakeObjectStore, ledger: Ledger, clock: FakeClock
) -> None:
    stored(store, ledger, clock, PoolHistory().quarantine("n-1"))
    store.objects[log_key(pool_track(POOL), 0)] = b"torn"
    cluster = FakeTaints()
    (result,) = keep_taints(Tracks(store, now=clock, new_uid=str, project=str), ledger, cluster)
    assert result.startswith("the nodes' taints were left as they are:")
    assert cluster.asked == []


def test_a_cluster_that_refuses_is_reported_and_keeps_nothing_else_from_its_work(
    tracks: Tracks, ledger: Ledger
) -> None:
    refused = FakeTaints(problem=GangError("Cannot change the taints of node n-1: no right."))
    assert keep_taints(tracks, ledger, refused) == (
        "the nodes' taints were left as they are: Cannot change the taints of node n-1: no right.",
    )
