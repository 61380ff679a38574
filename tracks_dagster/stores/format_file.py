"""`format.json` at a store's root: which version of the layout it has, and which store it is.

It is created once and never changed. A store that a newer version wrote is refused before anything
is written to it.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress

from tracks_dagster.track.errors import OutcomeUnknown, StoreUnavailable, StoreUnsuitable
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json

FORMAT_KEY = "format.json"
FORMAT = 1
MAKE_TRIES_MAX = 4  # lost replies before the store counts as down


def check_format(store: ObjectStore, *, must_exist: bool) -> bool:
    """Tell whether the store has been made, by this version; raises StoreUnsuitable for another's.

    must_exist: a store that was never made is refused as well.
    """
    data = store.get(FORMAT_KEY)
    if data is None:
        if must_exist:
            raise StoreUnsuitable(
                f"{store.url} holds no store ({FORMAT_KEY} is missing); check the address, or make "
                "one with `tracks up` or `tracks run`."
            )
        return False
    found = _format_of(data)
    if found != FORMAT:
        raise StoreUnsuitable(
            f"{store.url} has format {found!r} and this version of tracks-dagster writes format "
            f"{FORMAT}; install a version that knows it, or name another store."
        )
    return True


def make_format(store: ObjectStore) -> None:
    """Create `format.json` with a fresh store id; of several makers at once, one wins."""
    data = canonical_json({"format": FORMAT, "store_id": uuid.uuid4().hex})
    for _ in range(MAKE_TRIES_MAX):
        with suppress(OutcomeUnknown):  # the check reads it back
            store.create(FORMAT_KEY, data)
        if check_format(store, must_exist=False):
            return
    raise StoreUnavailable(
        f"Cannot make a store at {store.url}: {FORMAT_KEY} was written {MAKE_TRIES_MAX} times and "
        "cannot be read back; try again."
    )


def _format_of(data: bytes) -> object:
    try:
        return json.loads(data)["format"]
    except (ValueError, KeyError, TypeError):
        return data[:40].decode("utf-8", "replace")
