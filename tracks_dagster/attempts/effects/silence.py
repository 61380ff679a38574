"""Since when nothing was heard of an open attempt: then nobody knows from the record that it lives.

For people only: what is done about a gang is decided by who looks at its processes.
"""

from __future__ import annotations

from datetime import datetime

from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.run_state import AttemptState

SILENT_S_MIN = 600  # from which on one should look whether the attempt still lives


def heard_at(attempt: AttemptState, last_line_at: datetime | None) -> datetime | None:
    """Return when an attempt was heard of last; None before its ranks have come together.

    last_line_at: of its journal's newest line, None where it has none.
    """
    return last_line_at or attempt.restored_at or attempt.placed_at


def silence(run_id: str, heard: datetime | None, now: datetime) -> str | None:
    """Say that nothing was heard of the run's attempt for long, and what tells more; None if it was."""
    silent_s = (now - heard).total_seconds() if heard is not None else 0.0
    if heard is None or silent_s < SILENT_S_MIN:
        return None
    return (
        f"But nothing was heard of it for {silent_s / 60:.0f} min, since "
        f"{format_time(heard)[:19]}Z: `tracks triage {run_id}` tells whether it lives."
    )
