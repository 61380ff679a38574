"""Who holds an alias, by the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracks_dagster.ledger.ports import Ledger


def find_holder(ledger: Ledger, alias: str) -> Mapping[str, Any] | None:
    """Return the newest promotion to `alias` over all runs; None when nobody holds it."""
    rows = ledger.query(
        "select run_id, manifest_sha256, decided_by, decided_at from promotions "
        "where alias = :alias and promoted order by decided_at desc, run_id, seq desc limit 1",
        {"alias": alias},
    )
    return rows[0] if rows else None
