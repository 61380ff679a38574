"""Whether a track has lost a record: what lies behind the gap can be listed, and is not read.

Who appends asks it once, before the first append: a record in the gap would be another past than the
one that lies behind it, and what was lost could not be put back.
"""

from __future__ import annotations

import re

from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.ports import ObjectStore


def last_seq(store: ObjectStore, name: str) -> int:
    """Return the greatest seq that a list of the track shows, -1 without one: what lies behind a gap
    too. A list may lag, so nothing is appended by it."""
    prefix = f"{name}/log/"
    found = (_LOG_NAME.fullmatch(key.removeprefix(prefix)) for key in store.list(prefix))
    return max((int(match[1]) for match in found if match), default=-1)


def lost_record(name: str, seq: int, last: int) -> TrackBroken:
    """Return what is raised instead of an append into the gap, where records up to `last` are there."""
    return TrackBroken(
        f"{name} has lost its record {seq}: records up to {last} lie in the store, so it was there. "
        "Nothing was written. Put the lost record back from a backup or the bucket's versions; `tracks "
        "fsck` tells what else is missing, `tracks explain` what is known without it."
    )


_LOG_NAME = re.compile(r"([0-9]{12})\.json")
