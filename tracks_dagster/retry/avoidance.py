"""Which nodes an attempt avoids: its run's own exclusions, and what is in quarantine just then. Pure.

A run's own exclusions stay with it from attempt to attempt. A node in quarantine is avoided by the one
attempt that is opened meanwhile, and is there again for the next one once it is released or expired.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from tracks_dagster.track.bodies import Alert, AttemptOpened, ComputeRequest
from tracks_dagster.track.names import ALERT_NO_NODE_LEFT, LOCAL
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.records import canonical_json, format_time
from tracks_dagster.track.states.pool_state import PoolState, Quarantine

AVOIDED_NODES_MAX = 48  # the newest quarantines; the rule makes 32 at most, persons the others
AVOIDED_BYTES_MAX = 4500  # a record is at most 16 KiB, and names each node twice
WHY_CHARACTERS_MAX = 60
NAMED_MAX = 5  # in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoidance:
    """What an attempt asks for, and what it avoids. words: a sentence for its decision, or empty."""

    compute: ComputeRequest
    nodes: Mapping[str, str] = field(default_factory=dict)
    words: str = ""


def own_compute(opened: AttemptOpened) -> ComputeRequest:
    """Return what an attempt asked for, without what it avoided only while it was in quarantine."""
    if not opened.avoided_nodes:
        return opened.compute
    own = (node for node in opened.compute.excluded_nodes if node not in opened.avoided_nodes)
    return replace(opened.compute, excluded_nodes=tuple(own))


def avoid(compute: ComputeRequest, state: PoolState | None, now: datetime) -> Avoidance:
    """Return `compute` with the nodes that are in quarantine at `now` excluded as well.

    compute: with the run's own exclusions alone; state: of its pool. A local gang has one machine and
    stays on it.
    """
    if state is None or compute.launcher == LOCAL:
        return Avoidance(compute=compute)
    standing = [q for q in state.quarantined_at(now) if q.body.node not in compute.excluded_nodes]
    nodes = _fitting(standing)
    if not nodes:
        return Avoidance(compute=compute)
    return Avoidance(
        compute=replace(compute, excluded_nodes=(*compute.excluded_nodes, *nodes)),
        nodes=nodes,
        words=_words(state.pool, nodes, len(standing) - len(nodes)),
    )


def avoid_sources(avoidance: Avoidance, held: Mapping[str, str]) -> Avoidance:
    """Return `avoidance` with the nodes excluded too that persons hold for sources of bad work.

    held: node → why. As many as a record can name beside those of the pool. A local gang has one
    machine and stays on it.
    """
    compute = avoidance.compute
    if compute.launcher == LOCAL:
        return avoidance
    room = AVOIDED_NODES_MAX - len(avoidance.nodes)
    new = {
        node: why[:WHY_CHARACTERS_MAX]
        for node, why in sorted(held.items())
        if node not in compute.excluded_nodes
    }
    nodes = dict(list(new.items())[:room])
    if not nodes:
        return avoidance
    told = "; ".join(f"{node} ({why})" for node, why in list(nodes.items())[:NAMED_MAX])
    more = f" and {len(new) - NAMED_MAX} more" if len(new) > NAMED_MAX else ""
    return Avoidance(
        compute=replace(compute, excluded_nodes=(*compute.excluded_nodes, *nodes)),
        nodes={**avoidance.nodes, **nodes},
        words=f"{avoidance.words} What ran on them is in quarantine, so avoided: {told}{more}.".strip(),
    )


def no_node_left(compute: ComputeRequest, known_nodes: Collection[str]) -> Alert | None:
    """Return what to tell a person when every node that the pool is known to have is excluded.

    The attempt is opened all the same: there may be nodes on which nothing has run yet. Where there
    are none it ends as scheduling_timeout, whose budget of time bounds how often that is tried.
    """
    if not known_nodes or not set(known_nodes) <= set(compute.excluded_nodes):
        return None
    pool = pool_of(compute)
    text = (
        f"Every node that pool {pool} is known to have is excluded or in quarantine "
        f"({_listed(sorted(known_nodes))}); the attempt waits for one that nothing has run on yet. "
        f'`tracks pool {pool}` says why, `tracks pool release {pool} NODE --why "…"` lets one back.'
    )
    return Alert(rule=ALERT_NO_NODE_LEFT, text=text, data={"pool": pool})


def _fitting(quarantines: list[Quarantine]) -> dict[str, str]:
    """Return node → reason, as many as a record can name."""
    found: dict[str, str] = {}
    size_bytes = 0
    for quarantine in quarantines[:AVOIDED_NODES_MAX]:
        body = quarantine.body
        why = f"until {format_time(quarantine.until_at)[:16]}Z: {body.why[:WHY_CHARACTERS_MAX]}"
        size_bytes += 2 * len(body.node) + len(canonical_json(why))
        if found and size_bytes > AVOIDED_BYTES_MAX:
            break
        found[body.node] = why
    return found


def _words(pool: str, nodes: Mapping[str, str], left_out: int) -> str:
    named = [f"{node} ({why})" for node, why in list(nodes.items())[:NAMED_MAX]]
    more = len(nodes) - len(named)
    told = "; ".join(named) + (f" and {more} more" if more > 0 else "")
    rest = f" {left_out} more are in quarantine than the record can name." if left_out else ""
    return f"In quarantine in pool {pool}, and avoided: {told}.{rest}"


def _listed(nodes: list[str]) -> str:
    more = len(nodes) - NAMED_MAX
    return ", ".join(nodes[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
