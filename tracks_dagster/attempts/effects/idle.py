"""Look at this machine's devices now and then, and keep what nobody held, an object a day.

For people only: nothing is decided by it. Two daemons that look at once may lose one look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import date, datetime, timedelta

from tracks_dagster.attempts.idle import SEE_EVERY_S, IdleDay, next_day, tallied
from tracks_dagster.attempts.machine import Devices
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json

DAYS = "daemon/devices/"
SEE_EVERY = timedelta(seconds=SEE_EVERY_S)
DAYS_MAX = 10_000  # of all machines, that one account reads


def see(
    store: ObjectStore, found: Devices, leased: Collection[str], *, node: str, now: datetime
) -> IdleDay | None:
    """Add a look at the machine's devices to its day, and return that; None without devices."""
    if not found.gpus:
        return None
    key = _key(node, now)
    day = _read(store, key) or _begun(store, node, now)
    seen = tallied(day, found, leased, now)
    store.put(key, canonical_json(to_json(seen)))
    return seen


def _begun(store: ObjectStore, node: str, now: datetime) -> IdleDay:
    """Return the day as it begins."""
    before, today = _read(store, _key(node, now - timedelta(days=1))), f"{now:%Y-%m-%d}"
    return IdleDay(day=today, node=node) if before is None else next_day(before, today)


def _key(node: str, at: datetime) -> str:
    return f"{DAYS}{node}/{at:%Y-%m-%d}.json"


def read_days(store: ObjectStore, *, since: date | None, until: date) -> Iterator[IdleDay]:
    """Yield the days from `since` to `until`, whole, of all machines, as far as they can be read."""
    for number, key in enumerate(store.list(DAYS)):
        name = key.rpartition("/")[2].removesuffix(".json")
        if number >= DAYS_MAX:
            return
        if (since is None or name >= since.isoformat()) and name <= until.isoformat():
            day = _read(store, key)
            if day is not None:
                yield day


def _read(store: ObjectStore, key: str) -> IdleDay | None:
    data = store.get(key, SMALL_BYTES_MAX)
    try:
        return None if data is None else from_json(IdleDay, parse_json(data))
    except (ValueError, TrackBroken):
        return None
