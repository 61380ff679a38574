"""What is checked when a store is opened: its format, and that it honours create-if-absent.

`format.json` at the root says which version of the layout the store has, and which store it is. It is
created once and never changed. A store that a newer version wrote is refused before anything is
written to it.

Everything rests on create-if-absent: a store that lets two writers create one key lets two retries
open, and some servers that speak S3 ignore the condition without a word. Asking is the only way to
know.
"""

from __future__ import annotations

import secrets
import uuid
from contextlib import suppress

from tracks_dagster.track.errors import (
    OutcomeUnknown,
    StoreMissing,
    StoreUnavailable,
    StoreUnsuitable,
)
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json

FORMAT_KEY = "format.json"
FORMAT = 1
MAKE_TRIES_MAX = 4  # lost replies before the store counts as down
PROBE_PREFIX = "probe/"
PROBE_TRIES_MAX = 3  # probes whose reply was lost before the store counts as down


def check_format(store: ObjectStore, *, must_exist: bool) -> bool:
    """Return whether the store has been made, by this version; raises StoreUnsuitable for another's.

    must_exist: a store that was never made is refused as well, as StoreMissing.
    """
    data = store.get(FORMAT_KEY, SMALL_BYTES_MAX)
    if data is None:
        if must_exist:
            raise StoreMissing(
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
        return parse_json(data)["format"]
    except (ValueError, KeyError, TypeError):
        return data[:40].decode("utf-8", "replace")


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
