"""The ledger's tables. Every column is a function of records: no surrogate ids, no ingest times.

People query these names, so a column keeps its meaning. Columns that end in `_json` hold JSON as
text, `_at` a time in UTC, `_s` or `_seconds` a duration, `_bytes` a size.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Table, Text

from tracks_dagster.ledger.effects.database import (
    accounting_tables,
    dataset_tables,
    lineage_tables,
    pool_tables,
    run_tables,
    text_tables,
)
from tracks_dagster.ledger.effects.database.columns import key, metadata, must

__all__ = [
    "accounting_tables",
    "dataset_tables",
    "lineage_tables",
    "metadata",
    "pool_tables",
    "run_tables",
    "text_tables",
    "track_cursors",
]

track_cursors = Table(
    "track_cursors",
    metadata,
    key("track", Text),
    must("seq", BigInteger),
    must("sha256", Text),
)
