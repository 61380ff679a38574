"""The tables that a compute pool's track is projected into."""

from __future__ import annotations

from sqlalchemy import BigInteger, Double, Table, Text

from tracks_dagster.ledger.effects.database.column_types import UtcTime
from tracks_dagster.ledger.effects.database.columns import key, may, metadata, must

node_strikes = Table(
    "node_strikes",
    metadata,
    key("pool", Text),
    key("seq", BigInteger),
    must("node", Text),
    must("run_id", Text),
    must("attempt_id", BigInteger),
    must("reason", Text),
    must("why", Text),
    must("decided_by", Text),
    must("exposure_s", Double),  # of the node, inside the policy's window
    must("pool_exposure_s", Double),
    must("pool_node_count", BigInteger),
    must("struck_at", UtcTime),  # when the attempt ended
)

node_quarantines = Table(  # of a node the newest row counts: it replaces one that holds
    "node_quarantines",
    metadata,
    key("pool", Text),
    key("seq", BigInteger),
    must("node", Text),
    must("decided_by", Text),
    must("why", Text),
    must("strike_count", BigInteger),  # that a rule counted; 0: a person decided
    must("quarantined_at", UtcTime),
    must("until_at", UtcTime),
    may("released_at", UtcTime),
    may("released_by", Text),
    may("released_why", Text),
)
