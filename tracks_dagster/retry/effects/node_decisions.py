"""What a person decides on a node of a compute pool: its quarantine, and its release."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import NodeQuarantined, NodeReleased
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import LOCAL
from tracks_dagster.track.records import Draft, Kind, Record, format_time
from tracks_dagster.track.states.pool_state import PoolState
from tracks_dagster.track.text.safe_text import check_words

QUARANTINE_S_MAX = 366 * 86_400.0
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")


def check_node(node: str) -> str:
    """Return `node` if it can name a machine; raises InvalidInput."""
    if not _NODE.fullmatch(node):
        raise InvalidInput(
            f"{node!r} cannot name a node: use up to 253 letters, digits and . _ : - as in gpu-17."
        )
    return node


def check_length(for_s: float) -> float:
    """Return the seconds that a quarantine may last; raises InvalidInput."""
    if not 0 < for_s <= QUARANTINE_S_MAX:
        raise InvalidInput(
            f"A quarantine lasts more than 0 s and at most a year, not {for_s:g} s; write for "
            "example --for 24h. It can be repeated, and a release ends it."
        )
    return for_s


def quarantine_node(
    tracks: Tracks, pool: str, node: str, *, for_s: float, by: str, why: str
) -> Record:
    """Let no attempt be opened onto `node` for `for_s` seconds; replaces a quarantine that holds.

    Attempts that run there go on. Raises InvalidInput.
    """
    until_at = tracks.now() + timedelta(seconds=for_s)
    draft = _quarantine(tracks, pool, node, until_at=until_at, for_s=for_s, by=by, why=why)
    record = tracks.decide_pool(pool, lambda state: draft)
    assert record is not None
    return record


def keep_off(tracks: Tracks, pool: str, node: str, *, for_s: float, by: str, why: str) -> datetime:
    """Let no attempt be opened onto `node` for at least `for_s` seconds; return until when.

    As `quarantine_node`, but a quarantine that lasts longer stays as it is.
    """
    until_at = tracks.now() + timedelta(seconds=for_s)
    draft = _quarantine(tracks, pool, node, until_at=until_at, for_s=for_s, by=by, why=why)

    def choose(state: PoolState | None) -> Draft | None:
        held_until = _held_until(state, node, tracks.now())
        return draft if held_until is None or held_until < until_at else None

    if tracks.decide_pool(pool, choose) is not None:
        return until_at
    return _held_until(tracks.find_pool(pool), node, tracks.now()) or until_at


def _held_until(state: PoolState | None, node: str, now: datetime) -> datetime | None:
    found = state.node(node) if state is not None else None
    holding = found.quarantine_at(now) if found is not None else None
    return holding.until_at if holding is not None else None


def _quarantine(
    tracks: Tracks, pool: str, node: str, *, until_at: datetime, for_s: float, by: str, why: str
) -> Draft:
    check_words({"why": why, "by": by})
    check_node(node)
    check_length(for_s)
    if pool.startswith(f"{LOCAL}/"):
        raise InvalidInput(
            f"Pool {pool} is of the local launcher: a gang there has one machine and stays on it. "
            "`tracks drain RUN` ends an attempt and keeps its run for later."
        )
    body = NodeQuarantined(pool=pool, node=node, until_at=format_time(until_at), by=by, why=why)
    return tracks.draft(Kind.NODE_QUARANTINED, body)


def release_node(tracks: Tracks, pool: str, node: str, *, by: str, why: str) -> Record | None:
    """End the quarantine of `node` and forgive its strikes; None when there is neither. Idempotent.

    Raises InvalidInput when no record of the pool names the node.
    """
    check_words({"why": why, "by": by})
    draft = tracks.draft(Kind.NODE_RELEASED, NodeReleased(pool=pool, node=node, by=by, why=why))

    def choose(state: PoolState | None) -> Draft | None:
        return draft if _holds_anything(state, pool, node, tracks.now()) else None

    return tracks.decide_pool(pool, choose)


def _holds_anything(state: PoolState | None, pool: str, node: str, now: datetime) -> bool:
    found = state.node(node) if state is not None else None
    if found is None:
        named = ", ".join(each.node for each in state.nodes) if state is not None else "none"
        raise InvalidInput(
            f"No record of pool {pool} names a node {node!r}, so there is nothing to release; "
            f"records name: {named}."
        )
    return bool(found.standing) or found.quarantine_at(now) is not None
