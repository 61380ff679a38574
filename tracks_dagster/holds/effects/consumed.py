"""Which samples an attempt used, by the ledger and as of a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from tracks_dagster.holds.lineage import Consumed, skipped_samples
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.records import Json, format_time

ALWAYS = datetime(9999, 1, 1, tzinfo=UTC)  # later than any record

Row = Mapping[str, Json]


def consumed_by(
    ledger: Ledger, run_id: str, attempt_id: int, *, as_of: datetime | None = None
) -> Consumed | None:
    """Return which samples an attempt used, as of a time; None where it used none."""
    until = as_of or ALWAYS
    rows = ledger.query(
        "select a.config_json, a.cursor_from, a.cursor_to, a.closed_at, a.last_step, "
        "coalesce(a.resumed_from_step, 0) as resumed_step, max(c.cursor) as newest_cursor, "
        "max(c.step) as newest_step from training_attempts a left join checkpoints c "
        "on c.run_id = a.run_id and c.attempt_id = a.attempt_id and c.committed_at <= :as_of "
        "where a.run_id = :run_id and a.attempt_id = :attempt_id group by a.config_json, "
        "a.cursor_from, a.cursor_to, a.closed_at, a.last_step, a.resumed_from_step",
        {"run_id": run_id, "attempt_id": attempt_id, "as_of": format_time(until)},
    )
    return newest_consumed(rows[0], until) if rows else None


def newest_consumed(row: Row, until: datetime) -> Consumed | None:
    """Return what an attempt used by then: by its end, or by its newest commit while it was open."""
    cursors, is_at_least = [row["newest_cursor"]], True
    worked = row["newest_step"] is not None and row["newest_step"] > row["resumed_step"]
    if row["closed_at"] is not None and row["closed_at"] <= until:
        cursors.append(row["cursor_to"])
        is_at_least = row["cursor_to"] is None and row["last_step"] != row["newest_step"]
        has_moved = (row["cursor_to"] or 0) > (row["cursor_from"] or 0)
        worked = worked or row["last_step"] is not None or has_moved
    told = [cursor for cursor in cursors if cursor is not None]
    if not worked:
        return None
    used = consumed_between(row, row["cursor_from"], max(told, default=None))
    return replace(used, is_at_least=is_at_least)


def consumed_between(row: Row, begin: int | None, end: int | None) -> Consumed:
    """Return the samples between two cursors, without what the config of `row` skips."""
    config = json.loads(row["config_json"])
    return Consumed(cursor_from=begin, cursor_to=end, skipped=skipped_samples(config, begin, end))
