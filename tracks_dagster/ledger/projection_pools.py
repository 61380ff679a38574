"""From the state of a compute pool's track to the ledger's rows. Pure, as `projection`."""

from __future__ import annotations

from tracks_dagster.ledger.ports import Row
from tracks_dagster.ledger.projection import Rows
from tracks_dagster.ledger.projection_values import row_of
from tracks_dagster.track.states.pool_state import PoolState, Quarantine, Strike


def pool_rows(state: PoolState, before: PoolState | None = None) -> Rows:
    """Return the rows of a pool's track; `before` is an earlier state of it, already taken in."""
    strikes, quarantines = _strikes(state), _quarantines(state)
    known_strikes = set(_strikes(before)) if before else set()
    known = set(_quarantines(before)) if before else set()
    return {
        "node_strikes": [_strike_row(each) for each in strikes if each not in known_strikes],
        "node_quarantines": [_quarantine_row(each) for each in quarantines if each not in known],
    }


def _strikes(state: PoolState) -> list[Strike]:
    found = [strike for node in state.nodes for strike in node.strikes]
    return sorted(found, key=lambda strike: strike.seq)


def _quarantines(state: PoolState) -> list[Quarantine]:
    found = [quarantine for node in state.nodes for quarantine in node.quarantines]
    return sorted(found, key=lambda quarantine: quarantine.seq)


def _strike_row(strike: Strike) -> Row:
    body = strike.body
    return row_of(
        pool=body.pool,
        seq=strike.seq,
        node=body.node,
        run_id=body.run_id,
        attempt_id=body.attempt_id,
        reason=body.reason,
        why=body.why,
        decided_by=body.by,
        exposure_s=body.exposure_s,
        pool_exposure_s=body.pool_exposure_s,
        pool_node_count=body.pool_node_count,
        struck_at=strike.struck_at,
    )


def _quarantine_row(quarantine: Quarantine) -> Row:
    body, release = quarantine.body, quarantine.release
    return row_of(
        pool=body.pool,
        seq=quarantine.seq,
        node=body.node,
        decided_by=body.by,
        why=body.why,
        strike_count=len(body.counted_seqs),
        quarantined_at=quarantine.at,
        until_at=quarantine.until_at,
        released_at=release.at if release else None,
        released_by=release.body.by if release else None,
        released_why=release.body.why if release else None,
    )
