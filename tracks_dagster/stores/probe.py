"""The start-up probe: does this store honour create-if-absent?

Everything stands on it: a store that lets two writers create one key lets two retries open, and some
servers that speak S3 ignore the condition without a word. Asking is the only way to know.
"""

from __future__ import annotations

import secrets

from tracks_dagster.track.errors import OutcomeUnknown, StoreUnavailable, StoreUnsuitable
from tracks_dagster.track.ports import ObjectStore

PROBE_PREFIX = "probe/"
PROBE_TRIES_MAX = 3  # probes whose reply was lost before the store counts as down


def probe_conditions(store: ObjectStore) -> None:
    """Create a random key twice, read it back and remove it.

    Raises StoreUnsuitable unless the first creation wins, the second is refused and the object is
    the first one's; StoreUnavailable when the replies were lost three times.
    """
    for _ in range(PROBE_TRIES_MAX):
        key = PROBE_PREFIX + secrets.token_hex(16)
        try:
            won = [store.create(key, data) for data in (b"first", b"second")]
        except OutcomeUnknown:
            store.delete(key)
            continue  # with a fresh key: this one may be taken by the lost creation
        found = store.get(key)
        store.delete(key)
        if won == [True, False] and found == b"first":
            return
        raise StoreUnsuitable(
            f"{store.url} does not honour conditional writes (If-None-Match: *): a key created "
            f"twice was won {won.count(True)} times and then held {found!r}. Two writers could "
            "overwrite each other there; use a store that honours them, such as AWS S3 or a folder."
        )
    raise StoreUnavailable(
        f"Cannot probe {store.url}: the reply to a conditional write was lost {PROBE_TRIES_MAX} "
        "times; try again when the store answers."
    )
