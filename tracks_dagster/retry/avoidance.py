"""Which nodes an attempt avoids: its run's own exclusions, and those on hold just then. Pure.

A run's own exclusions stay with it from attempt to attempt. A node on hold is avoided by the one
attempt that is opened meanwhile, and is there again for the next one once the hold is over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from tracks_dagster.holds.hold import Hold
from tracks_dagster.retry.decision import Retry
from tracks_dagster.track.bodies import Alert, AttemptOpened, ComputeRequest
from tracks_dagster.track.names import ALERT_NO_NODE_LEFT, LOCAL
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.records import canonical_json, format_time

AVOIDED_NODES_MAX = 48  # the newest quarantines; the rule makes 32 at most, persons the others
AVOIDED_BYTES_MAX = 4500  # a record is at most 16 KiB, and names each node twice
WHY_CHARACTERS_MAX = 60
NAMED_MAX = 5  # in a sentence

Opening = TypeVar("Opening", bound=Retry | AttemptOpened)


def own_compute(opened: AttemptOpened) -> ComputeRequest:
    """Return what an attempt asked for, without what it avoided only while it was in quarantine."""
    if not opened.avoided_nodes:
        return opened.compute
    own = (node for node in opened.compute.excluded_nodes if node not in opened.avoided_nodes)
    return replace(opened.compute, excluded_nodes=tuple(own))


def avoid(opening: Opening, holds: Sequence[Hold]) -> Opening:
    """Return `opening` with the nodes on hold excluded as well, and a sentence about them.

    opening: its compute with the run's own exclusions alone; holds: on nodes, of its pool and of
    sources, as many as a record can name. A local gang has one machine and stays on it.
    """
    compute = opening.compute
    new = [hold for hold in holds if hold.name not in compute.excluded_nodes]
    in_pool = [hold for hold in new if hold.until is not None]
    for_a_while = _as_many_as_fit(in_pool)
    sources = {
        hold.name: hold.why[:WHY_CHARACTERS_MAX]
        for hold in new
        if hold.until is None and hold.name not in for_a_while
    }
    from_sources = dict(list(sources.items())[: AVOIDED_NODES_MAX - len(for_a_while)])
    nodes = {**for_a_while, **from_sources}
    if compute.launcher == LOCAL or not nodes:
        return opening
    words = [opening.decision]
    if for_a_while:
        left_out = len(in_pool) - len(for_a_while)
        rest = f" {left_out} more are in quarantine than the record can name." if left_out else ""
        whys = _format_reasons(for_a_while, len(for_a_while))
        words.append(f"In quarantine in pool {pool_of(compute)}, and avoided: {whys}.{rest}")
    if from_sources:
        whys = _format_reasons(from_sources, len(sources))
        words.append(f"What ran on them is in quarantine, so avoided: {whys}.")
    return replace(
        opening,
        decision=" ".join(words),
        compute=replace(compute, excluded_nodes=(*compute.excluded_nodes, *nodes)),
        avoided_nodes=nodes,
    )


def no_node_left(compute: ComputeRequest, known_nodes: Collection[str]) -> Alert | None:
    """Return the alert for a pool of which every known node is excluded, or None.

    The attempt is opened anyway: there may be nodes on which nothing has run yet. Where there
    are none it ends as scheduling_timeout, whose budget of time bounds how often that is tried.
    """
    if not known_nodes or not set(known_nodes) <= set(compute.excluded_nodes):
        return None
    pool = pool_of(compute)
    text = (
        f"Every node that pool {pool} is known to have is excluded or in quarantine "
        f"({_format_nodes(sorted(known_nodes))}); the attempt waits for one that nothing has run "
        f"on yet. `tracks pool {pool}` shows why, "
        f'`tracks pool release {pool} NODE --why "…"` lets one back.'
    )
    return Alert(rule=ALERT_NO_NODE_LEFT, text=text, data={"pool": pool})


def _as_many_as_fit(holds: Sequence[Hold]) -> dict[str, str]:
    """Return node → reason, as many as a record can name."""
    found: dict[str, str] = {}
    size_bytes = 0
    for hold in holds[:AVOIDED_NODES_MAX]:
        assert hold.until is not None
        why = f"until {format_time(hold.until)[:16]}Z: {hold.why[:WHY_CHARACTERS_MAX]}"
        size_bytes += 2 * len(hold.name) + len(canonical_json(why))
        if found and size_bytes > AVOIDED_BYTES_MAX:
            break
        found[hold.name] = why
    return found


def _format_reasons(nodes: Mapping[str, str], count: int) -> str:
    named = [f"{node} ({why})" for node, why in nodes.items()][:NAMED_MAX]
    return "; ".join(named) + _more(count - len(named))


def _format_nodes(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:NAMED_MAX]) + _more(len(nodes) - NAMED_MAX)


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
