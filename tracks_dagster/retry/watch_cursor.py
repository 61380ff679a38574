"""What the watcher remembers from one tick to the next, as the text that Dagster keeps for it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchCursor:
    """…ed_at: when that part was done last; None: never. …_after: the run, or for a scan the track, at
    which that part of the last tick was cut; None: it came to its end."""

    scanned_at: str | None = None
    revisited_at: str | None = None
    swept_at: str | None = None
    pruned_at: str | None = None
    close_after: str | None = None
    settle_after: str | None = None
    scan_after: str | None = None
    revisit_after: str | None = None

    def text(self) -> str:
        """Return what `read_cursor` reads."""
        return json.dumps(asdict(self))


def read_cursor(text: str | None) -> WatchCursor:
    """Return what stands there; what cannot be read remembers nothing, and all is done once more."""
    try:
        return WatchCursor(**json.loads(text or "{}"))
    except (ValueError, TypeError):
        return WatchCursor()
