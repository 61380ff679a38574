"""What an attempt avoids is its own run's exclusions, and what is in quarantine just then."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from tests.pools import CLUSTER, HOUR_S, PoolHistory, clustered
from tracks_dagster.holds.hold import nodes_in_quarantine
from tracks_dagster.retry.avoidance import (
    AVOIDED_BYTES_MAX,
    AVOIDED_NODES_MAX,
    avoid,
    no_node_left,
    own_compute,
)
from tracks_dagster.retry.decide import remedy, tried_by
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.track.bodies import AttemptOpened, ComputeRequest
from tracks_dagster.track.reasons import TerminationReason as R
from tracks_dagster.track.records import canonical_json

OWN = replace(CLUSTER, excluded_nodes=("n-9",))
DECISION = "Open attempt 1."


def avoided(
    compute: ComputeRequest, pool: PoolHistory, at: datetime | None = None
) -> AttemptOpened:
    """Open an attempt on `compute` without the nodes of `pool` that are on hold."""
    opening = clustered(compute=compute).state.attempts[-1].opened
    return avoid(opening, nodes_in_quarantine(pool.state, at or pool.at))


def test_nodes_in_quarantine_stand_beside_the_runs_own_until_they_expire() -> None:
    pool = PoolHistory().quarantine("n-1", for_s=HOUR_S).quarantine("n-9")
    found = avoided(OWN, pool)
    assert found.compute.excluded_nodes == ("n-9", "n-1")
    assert found.avoided_nodes == {"n-1": "until 2026-01-31T03:00Z: it smells"}
    words = f"{DECISION} In quarantine in pool kubernetes/h100, and avoided: n-1 (until"
    assert found.decision.startswith(words)
    later = avoided(OWN, pool, pool.at + timedelta(hours=1))
    assert (later.compute, later.avoided_nodes, later.decision) == (OWN, {}, DECISION)
    assert avoided(OWN, pool.release("n-1")).compute == OWN


def test_a_local_gang_stays_on_its_machine() -> None:
    pool = PoolHistory("local/cpu").quarantine("n-1")
    assert avoided(ComputeRequest(), pool).compute.excluded_nodes == ()


def test_a_record_has_room_for_what_is_avoided() -> None:
    pool = PoolHistory()
    for number in range(200):
        pool.quarantine(f"a-node-with-a-long-name-{number:03d}.cluster.internal")
    found = avoided(CLUSTER, pool)
    assert 10 < len(found.avoided_nodes) <= AVOIDED_NODES_MAX
    characters = sum(2 * len(node) + len(why) for node, why in found.avoided_nodes.items())
    assert characters <= AVOIDED_BYTES_MAX
    assert "a-node-with-a-long-name-199.cluster.internal" in found.avoided_nodes  # the newest first
    assert f"{200 - len(found.avoided_nodes)} more are in quarantine" in found.decision


def test_a_record_has_room_for_words_of_four_bytes_a_character() -> None:
    pool = PoolHistory()
    for number in range(AVOIDED_NODES_MAX):
        pool.quarantine(f"n-{number}", why="\N{FIRE}" * 60)
    found = avoided(CLUSTER, pool)
    assert found.avoided_nodes
    assert len(canonical_json(dict(found.avoided_nodes))) <= AVOIDED_BYTES_MAX


def test_the_next_attempt_begins_without_what_was_avoided_and_keeps_its_own() -> None:
    avoided = {"n-1": "until then: it smells"}
    compute = replace(CLUSTER, excluded_nodes=("n-9", "n-1"))
    history = clustered().end("preempted", blamed_node="n-2")
    history.open(compute=compute, avoided_nodes=avoided).place().restore()
    history.end("node_failure", last_step=30, blamed_node="n-3")
    failed = history.state.attempts[1]
    assert own_compute(failed.opened).excluded_nodes == ("n-9",)
    rule = DEFAULT_POLICY.rule(R.NODE_FAILURE)
    remedied = remedy(history.state, failed, rule, DEFAULT_POLICY, history.at, None)
    assert remedied.tried.compute.excluded_nodes == ("n-9", "n-3")  # type: ignore[union-attr]
    assert tried_by(history.state, history.state.attempts[0]).compute == CLUSTER


def test_where_every_known_node_is_excluded_a_person_is_alerted() -> None:
    assert no_node_left(OWN, {"n-1", "n-9"}) is None
    assert no_node_left(OWN, set()) is None
    alert = no_node_left(OWN, {"n-9"})
    assert alert is not None
    assert "Every node that pool kubernetes/h100 is known to have" in alert.text
    assert "tracks pool release kubernetes/h100 NODE" in alert.text
