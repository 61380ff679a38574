"""The nodes of compute pools, for people: how they do, and what a person decides on one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.node_health import PoolWork, read_device_work, read_work
from tracks_dagster.retry.node_health import DEVICES_ALLOWED_MIN, NodeRule, healths
from tracks_dagster.stores.histories import Histories
from tracks_dagster.track.bodies import NodeQuarantined, NodeReleased
from tracks_dagster.track.errors import InvalidInput, LedgerError
from tracks_dagster.track.imported import newest_nodes, out_words
from tracks_dagster.track.names import IMPORTED, LOCAL
from tracks_dagster.track.records import Draft, Kind, Record, format_time
from tracks_dagster.track.states.pool_state import NodeState, PoolState, Quarantine
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.track.unforeseen import problem_of

POOLS_MAX = 200  # that a message names
QUARANTINE_S_MAX = 366 * 86_400.0
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """One node, or one device of a machine. strikes: those that count now; exposure_s: what it worked
    inside the policy's window; rate: strikes for an hour of work, None where it has not worked;
    expected: strikes at the rate of the pool's other nodes. quarantined_until, why, by: of the
    quarantine that holds, else None. note: what else there is to say.
    """

    node: str
    strikes: int
    reasons: tuple[str, ...]
    exposure_s: float
    rate: float | None
    expected: float | None
    quarantined_until: str | None
    why: str | None
    by: str | None
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLine:
    """One pool with its nodes: those in quarantine first, then those with the most strikes."""

    pool: str
    nodes: tuple[NodeLine, ...]


def pool_names(ledger: Ledger) -> list[str]:
    """Return the pools that an attempt was opened into or a record names, sorted."""
    rows = ledger.query(
        "select pool from training_attempts where pool is not null "
        "union select pool from node_strikes union select pool from node_quarantines "
        "union select pool from imported_nodes order by pool"
    )
    return [row["pool"] for row in rows]


def view_pools(
    tracks: Tracks, ledger: Ledger, rule: NodeRule, pools: Sequence[str]
) -> tuple[list[PoolLine], list[str]]:
    """Return each pool's nodes with their health, and what is wrong with pools that cannot be read."""
    lines: list[PoolLine] = []
    problems: list[str] = []
    for pool in pools:
        try:
            lines.append(view_pool(tracks, ledger, rule, pool))
        except LedgerError:
            raise
        except Exception as error:  # noqa: BLE001 - of that pool alone
            problems.append(f"{pool}: {problem_of(error)} `tracks fsck` says what to do.")
    return lines, problems


def check_pool(tracks: Tracks, ledger: Ledger, pool: str) -> str:
    """Return `pool` if anything is known of it; raises InvalidInput naming those that are."""
    if tracks.find_pool(pool) is None and pool not in (known := pool_names(ledger)):
        named = ", ".join(known[:POOLS_MAX]) or "none yet"
        raise InvalidInput(f"There is no pool {pool!r}; attempts have been opened into: {named}.")
    return pool


def view_pool(tracks: Tracks, ledger: Ledger, rule: NodeRule, pool: str) -> PoolLine:
    """Return how the nodes of `pool` stand now."""
    now = tracks.now()
    state = tracks.find_pool(pool)
    work = read_work(ledger, pool, now=now, window_s=rule.window_s)
    lines = [*_lines(state, work, rule, now)] if state is not None else []
    named = {line.node for line in lines}
    lines += [unstruck(node, s) for node, s in work.seconds.items() if node not in named]
    lines = [*_with_notes(lines, _imported_notes(tracks, pool))]
    if state is not None and state.devices:
        of_devices = read_device_work(ledger, _host(pool), now=now, window_s=rule.window_s)
        allowed_min = DEVICES_ALLOWED_MIN
        lines += _lines(state.by_device, of_devices, rule, now, allowed_min=allowed_min)
    ordered = sorted(lines, key=lambda n: (n.quarantined_until is None, -n.strikes, n.node))
    return PoolLine(pool=pool, nodes=tuple(ordered))


def _imported_notes(tracks: Tracks, pool: str) -> dict[str, str]:
    """Return what an imported list says last of each node of the pool; empty where it takes jobs."""
    kind, _, history = pool.partition("/")
    if kind != IMPORTED:
        return {}
    newest = newest_nodes(Histories(tracks.store).nodes(history))
    return {name: out_words(node) if node.out else "" for name, node in newest.items()}


def _with_notes(lines: Sequence[NodeLine], notes: Mapping[str, str]) -> Iterator[NodeLine]:
    named = {line.node for line in lines}
    for line in (*lines, *(unstruck(node) for node in notes if node not in named)):
        yield replace(line, note=line.note or notes.get(line.node) or None)


def _lines(
    state: PoolState, work: PoolWork, rule: NodeRule, now: datetime, *, allowed_min: int = 0
) -> Iterator[NodeLine]:
    for health in healths(state, rule, now, allowed_min=allowed_min):
        node = state.node(health.node)
        assert node is not None
        holding = node.quarantine_at(now)
        exposure_s = work.seconds.get(health.node, 0.0)
        yield NodeLine(
            node=health.node,
            strikes=len(health.strikes),
            reasons=tuple(strike.body.reason for strike in health.strikes),
            exposure_s=exposure_s,
            rate=len(health.strikes) * 3600.0 / exposure_s if exposure_s > 0 else None,
            expected=health.expected if health.expected != float("inf") else None,
            quarantined_until=format_time(holding.until_at) if holding else None,
            why=holding.body.why if holding else None,
            by=holding.body.by if holding else None,
            note=_note(node, holding, health.spared_by),
        )


def unstruck(node: str, exposure_s: float = 0.0) -> NodeLine:
    """Return a node of which nothing but its work is known."""
    return NodeLine(
        node=node,
        strikes=0,
        reasons=(),
        exposure_s=exposure_s,
        rate=0.0 if exposure_s > 0 else None,
        expected=None,
        quarantined_until=None,
        why=None,
        by=None,
        note=None,
    )


def _note(node: NodeState, holding: Quarantine | None, spared_by: str | None) -> str | None:
    if spared_by is not None:
        return f"due for a quarantine, but {spared_by}"
    if holding is not None or not node.quarantines:
        return None
    newest = node.quarantines[-1]
    if newest.release is not None:
        release = newest.release
        return f"released by {release.body.by} at {format_time(release.at)}: {release.body.why}"
    return f"its quarantine ended at {format_time(newest.until_at)}"


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
    _, draft = _quarantine(tracks, pool, node, for_s=for_s, by=by, why=why)
    record = tracks.decide_pool(pool, lambda state: draft)
    assert record is not None
    return record


def quarantine_device(
    tracks: Tracks, pool: str, device: str, *, for_s: float, by: str, why: str
) -> Record:
    """Give a device of the machine whose pool this is to nobody for `for_s` seconds.

    What runs on it continues. Raises InvalidInput.
    """
    check_words({"why": why, "by": by})
    until_at = tracks.now() + timedelta(seconds=check_length(for_s))
    body = NodeQuarantined(
        pool=pool, node=_host(pool), device=device, until_at=format_time(until_at), by=by, why=why
    )
    draft = tracks.draft(Kind.NODE_QUARANTINED, body)
    record = tracks.decide_pool(pool, lambda state: draft)
    assert record is not None
    return record


def release_device(tracks: Tracks, pool: str, device: str, *, by: str, why: str) -> Record | None:
    """End the quarantine of a device and forgive its strikes; None when there is neither. Idempotent.

    Raises InvalidInput when no record of the pool blames it.
    """
    check_words({"why": why, "by": by})
    body = NodeReleased(pool=pool, node=_host(pool), device=device, by=by, why=why)
    draft = tracks.draft(Kind.NODE_RELEASED, body)

    def choose(state: PoolState | None) -> Draft | None:
        of_devices = None if state is None else state.by_device
        return draft if _can_be_released(of_devices, pool, device, tracks.now()) else None

    return tracks.decide_pool(pool, choose)


def _host(pool: str) -> str:
    """Return the machine whose pool this is: local/HOST."""
    return pool.partition("/")[2]


def keep_off(tracks: Tracks, pool: str, node: str, *, for_s: float, by: str, why: str) -> datetime:
    """Let no attempt be opened onto `node` for at least `for_s` seconds; return until when.

    As `quarantine_node`, but a quarantine that lasts longer stays as it is.
    """
    until_at, draft = _quarantine(tracks, pool, node, for_s=for_s, by=by, why=why)

    def choose(state: PoolState | None) -> Draft | None:
        before = _until(state, node, tracks.now())
        return draft if before is None or before < until_at else None

    if tracks.decide_pool(pool, choose) is not None:
        return until_at
    return _until(tracks.find_pool(pool), node, tracks.now()) or until_at


def _until(state: PoolState | None, node: str, now: datetime) -> datetime | None:
    found = state.node(node) if state is not None else None
    holding = found.quarantine_at(now) if found is not None else None
    return holding.until_at if holding is not None else None


def _quarantine(
    tracks: Tracks, pool: str, node: str, *, for_s: float, by: str, why: str
) -> tuple[datetime, Draft]:
    """Return the end of the quarantine, and its record."""
    check_words({"why": why, "by": by})
    check_node(node)
    check_length(for_s)
    if pool.startswith(f"{LOCAL}/"):
        raise InvalidInput(
            f"Pool {pool} is of the local launcher: a gang there has one machine and stays on it. "
            "`tracks drain RUN` ends an attempt and keeps its run for later. Single devices of this "
            "machine are named in its own pool, local/HOST (`tracks pool devices`)."
        )
    until_at = tracks.now() + timedelta(seconds=for_s)
    body = NodeQuarantined(pool=pool, node=node, until_at=format_time(until_at), by=by, why=why)
    return until_at, tracks.draft(Kind.NODE_QUARANTINED, body)


def release_node(tracks: Tracks, pool: str, node: str, *, by: str, why: str) -> Record | None:
    """End the quarantine of `node` and forgive its strikes; None when there is neither. Idempotent.

    Raises InvalidInput when no record of the pool names the node.
    """
    check_words({"why": why, "by": by})
    draft = tracks.draft(Kind.NODE_RELEASED, NodeReleased(pool=pool, node=node, by=by, why=why))

    def choose(state: PoolState | None) -> Draft | None:
        return draft if _can_be_released(state, pool, node, tracks.now()) else None

    return tracks.decide_pool(pool, choose)


def _can_be_released(state: PoolState | None, pool: str, node: str, now: datetime) -> bool:
    found = state.node(node) if state is not None else None
    if found is None:
        named = ", ".join(each.node for each in state.nodes) if state is not None else "none"
        raise InvalidInput(
            f"No record of pool {pool} names a node or device {node!r}, so there is nothing to "
            f"release; records name: {named}."
        )
    return bool(found.standing) or found.quarantine_at(now) is not None
