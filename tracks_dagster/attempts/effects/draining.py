"""Empty a node: its runs save and continue elsewhere, and it gets no new attempts for a while.

The quarantine is recorded before the first run is asked, so that no retry comes back to the node. The
ends are planned: `node_drained`, free of debit, no interruption, and no strike.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.pool_nodes import check_length, check_node, check_pool, keep_off
from tracks_dagster.track.bodies import MOVE, StopRequested
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import LOCAL, run_track
from tracks_dagster.track.placement import nodes_of, pool_of
from tracks_dagster.track.records import Draft, Json, Kind, format_time
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.track.text.safe_text import check_words
from tracks_dagster.track.unforeseen import problem_of

DRAIN_S = 24 * 3600.0  # of the quarantine: a maintenance window
KNOWN_S = 30 * 86_400.0  # a node on which nothing has run for longer is not known any more
ATTEMPTS_MAX = 1000  # newest attempts on a node, from which its pools are known


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrain:
    """The result of a drain. pools: where the node is in quarantine now, until `until_at`.

    asked: runs that were asked to leave; before: those that had been asked already; unplaced: open
    attempts of these pools that have no place yet and may still get this one. problems: runs that could
    not be asked, and why.
    """

    node: str
    pools: tuple[str, ...]
    until_at: str
    asked: tuple[str, ...]
    before: tuple[str, ...]
    unplaced: tuple[str, ...]
    problems: tuple[str, ...] = ()


def pools_of_node(tracks: Tracks, ledger: Ledger, node: str) -> list[str]:
    """Return the pools in whose attempts `node` has worked lately, or whose records name it."""
    since = tracks.now() - timedelta(seconds=KNOWN_S)
    rows = ledger.query(
        "select pool, nodes_json from training_attempts where pool is not null and nodes_json like "
        ":pattern and opened_at > :since order by opened_at desc limit :attempts_max",
        {"pattern": f'%"{node}"%', "since": format_time(since), "attempts_max": ATTEMPTS_MAX},
    )
    found = {row["pool"] for row in rows if node in parse_json(row["nodes_json"])}
    rows = ledger.query(
        "select pool from node_strikes where node = :node and device is null "
        "union select pool from node_quarantines where node = :node and device is null",
        {"node": node},
    )
    return sorted(found | {row["pool"] for row in rows})


def drain_node(
    tracks: Tracks,
    ledger: Ledger,
    node: str,
    *,
    by: str,
    why: str,
    pool: str | None = None,
    for_s: float = DRAIN_S,
) -> NodeDrain:
    """Quarantine `node` and ask every run whose open attempt is placed there to leave it.

    pool: only there; None: in every pool that the node is known in. Repeated, it asks no run twice; a
    quarantine that lasts longer is not shortened.
    Raises UnknownRun when no pool knows the node, and InvalidInput, with nothing written.
    """
    check_words({"why": why, "by": by})
    check_node(node)
    check_length(for_s)
    if pool is not None:
        check_pool(tracks, ledger, pool)
    pools = [pool] if pool is not None else pools_of_node(tracks, ledger, node)
    if not pools:
        raise UnknownRun(
            f"Nothing has run on a node {node!r} in the last {KNOWN_S / 86_400:g} days; `tracks pool` "
            "lists the nodes. `--pool POOL` quarantines it there anyway."
        )
    _refuse_local(ledger, node, pools)
    ends = [keep_off(tracks, each, node, for_s=for_s, by=by, why=why) for each in pools]
    words = f"node {node} is emptied: {why}"
    found: dict[str, list[str]] = {"asked": [], "before": [], "unplaced": []}
    problems: list[str] = []
    for run_id in _candidates(ledger, node, pools):
        try:
            answer = _empty(tracks, run_id, node, pools, by=by, why=words)
        except Exception as error:  # noqa: BLE001 - the others leave anyway
            problems.append(f"{run_id}: {problem_of(error)}")
            continue
        if answer is not None:
            found[answer].append(run_id)
    return NodeDrain(
        node=node,
        pools=tuple(pools),
        until_at=format_time(min(ends)),
        asked=tuple(found["asked"]),
        before=tuple(found["before"]),
        unplaced=tuple(found["unplaced"]),
        problems=tuple(problems),
    )


def _refuse_local(ledger: Ledger, node: str, pools: list[str]) -> None:
    """Raise InvalidInput for this machine's own gangs: they have nowhere else to go."""
    rows = _open_attempts(ledger, pools)
    local = [r["run_id"] for r in rows if r["launcher"] == LOCAL and _names(r, node)]
    if local:
        raise InvalidInput(
            f"{', '.join(local[:5])} run on {node} by the local launcher, which has no other node; "
            "`tracks drain RUN` ends an attempt and keeps its run for later."
        )


def _candidates(ledger: Ledger, node: str, pools: list[str]) -> list[str]:
    """Return the runs with an open attempt that is placed on the node, or of which the ledger does not
    know a place."""
    rows = _open_attempts(ledger, pools)
    return [row["run_id"] for row in rows if row["placed_at"] is None or _names(row, node)]


def _open_attempts(ledger: Ledger, pools: list[str]) -> list[dict[str, Json]]:
    given = {f"pool_{index}": pool for index, pool in enumerate(pools)}
    return ledger.query(
        "select a.run_id, a.nodes_json, a.placed_at, r.launcher from training_attempts a "
        "join training_runs r on r.run_id = a.run_id and r.attempt_count = a.attempt_id "
        f"where a.termination_reason is null and a.pool in ({', '.join(f':{k}' for k in given)}) "
        "order by a.opened_at, a.run_id",
        given,
    )


def _names(row: dict[str, Json], node: str) -> bool:
    return node in parse_json(row["nodes_json"])


def _is_on(attempt: AttemptState, node: str) -> bool:
    return attempt.placed is not None and node in nodes_of(attempt.placed)


def _empty(
    tracks: Tracks, run_id: str, node: str, pools: list[str], *, by: str, why: str
) -> str | None:
    """Ask the run to leave the node; return which part of `NodeDrain` it belongs to, None: to none."""
    tracks.project(run_track(run_id))
    state = tracks.run(run_id)
    attempt = state.open_attempt
    if attempt is None or pool_of(attempt.opened.compute) not in pools:
        return None
    if attempt.placed is None:
        return "unplaced"
    if not _is_on(attempt, node):
        return None
    return "asked" if _ask(tracks, state, node, by=by, why=why) else "before"


def _ask(tracks: Tracks, state: RunState, node: str, *, by: str, why: str) -> bool:
    """Append the request to leave; False when the attempt has one, or is not there any more."""
    draft = tracks.draft(Kind.STOP_REQUESTED, StopRequested(by=by, why=why, mode=MOVE))

    def choose(now: RunState | None) -> Draft | None:
        attempt = now.open_attempt if now is not None else None
        if now is None or attempt is None or not _is_on(attempt, node):
            return None
        return None if now.stop_for(attempt) is not None else draft

    return tracks.decide_run(state.run_id, choose) is not None
