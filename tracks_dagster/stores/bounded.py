"""Read an object that ranks, pods or older programs write, within the size that its writing has.

A larger one is not ours. It is named in the log, once, and passed over: who looks at many goes on
with the others. Records, and what is named by its sha256, have readers of their own.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from tracks_dagster.track.ports import ObjectStore

NAMED_MAX = 1024  # objects that a process remembers to have named

_log = logging.getLogger(__name__)


def read_bounded(store: ObjectStore, key: str, bytes_max: int) -> bytes | None:
    """Return the object's bytes; None where there is none, and where it has more than `bytes_max`."""
    data = store.get(key, bytes_max)
    if data is None or len(data) <= bytes_max:
        return data
    _name(key, bytes_max)
    return None


@lru_cache(maxsize=NAMED_MAX)
def _name(key: str, bytes_max: int) -> None:
    _log.warning(
        "%s is passed over: it has more than the %d bytes that are written there. Find out who "
        "wrote it, and delete it.",
        key,
        bytes_max,
    )
