"""What the daemon leaves for people: its last tick, the sensors that are on, launches in vain.

Objects under `daemon/` that each tick overwrites. Nothing is decided by them: the tracks are the truth,
and a reading command can ask Dagster nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import InvalidInput, TrackBroken
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.names import LAUNCH_ATTEMPTS, RUN_EVALS
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json, format_time, parse_time
from tracks_dagster.track.text.units import about

if TYPE_CHECKING:
    from tracks_dagster.attempts.launch import PendingLaunch

HEARTBEAT_KEY = "daemon/heartbeat.json"
# The watcher ticks every few seconds, at most every 40 where its parts take all their time.
HEARTBEAT_AGE_S_MAX = 50.0
LAUNCH_S_USUAL = 30.0  # from a request until a supervisor's first record, on a machine at work
LAUNCHES_MAX = 200  # in one object
DISTRIBUTION = "tracks-dagster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What the daemon left last. sensors: name → whether it is switched on.

    launches: that are asked for and have not led to anything yet. version: of the package; None of
    older versions.
    """

    at: datetime
    sensors: Mapping[str, bool]
    launches: Sequence[PendingLaunch] = field(default=())
    version: str | None = None

    def ticks(self, now: datetime) -> bool:
        """Whether the watcher ticked just now."""
        return (now - self.at).total_seconds() <= HEARTBEAT_AGE_S_MAX


def write_heartbeat(store: ObjectStore, now: datetime, sensors: Mapping[str, bool]) -> None:
    """Overwrite when the daemon ticked, and which sensors are on."""
    from importlib.metadata import version

    value = {"at": format_time(now), "sensors": dict(sensors), "version": version(DISTRIBUTION)}
    store.put(HEARTBEAT_KEY, canonical_json(value))


def write_launches(store: ObjectStore, sensor: str, launches: Sequence[PendingLaunch]) -> None:
    """Overwrite which launches of `sensor` have led to nothing yet, where that changed.

    Most ticks have none."""
    data = canonical_json([to_json(each) for each in launches[:LAUNCHES_MAX]])
    if (store.get(_launches_key(sensor), len(data)) or b"[]") != data:
        store.put(_launches_key(sensor), data)


def read_launches(store: ObjectStore, sensor: str) -> Sequence[PendingLaunch]:
    """Return what the sensor's last tick wrote; nothing where that cannot be read."""
    from tracks_dagster.attempts.launch import PendingLaunch

    try:
        return [
            from_json(PendingLaunch, each) for each in _read(store, _launches_key(sensor)) or ()
        ]
    except (ValueError, KeyError, TypeError):
        return ()


def read_heartbeat(store: ObjectStore) -> Heartbeat | None:
    """Return what the daemon left last, or None when there is nothing that can be read."""
    stored = _read(store, HEARTBEAT_KEY)
    try:
        at, sensors = parse_time(stored["at"]), dict(stored["sensors"])
    except (ValueError, KeyError, TypeError):
        return None  # a broken one is as good as none
    launches = [each for name in (LAUNCH_ATTEMPTS, RUN_EVALS) for each in _launches(store, name)]
    return Heartbeat(at=at, sensors=sensors, launches=launches, version=stored.get("version"))


def _launches(store: ObjectStore, sensor: str) -> Iterator[PendingLaunch]:
    """Yield the launches that a sensor left, as far as they can be read."""
    stored = _read(store, _launches_key(sensor))
    if not stored or not isinstance(stored, list):
        return
    from tracks_dagster.attempts.launch import PendingLaunch  # slow to load, and seldom needed

    for each in stored:
        with suppress(TrackBroken, ValueError):
            launch = from_json(PendingLaunch, each)
            for text in filter(None, (launch.asked_at, launch.next_at)):
                parse_time(text)
            yield launch


def describe_age(heartbeat: Heartbeat | None, now: datetime) -> str | None:
    """Describe that no daemon ticks; None while one does."""
    if heartbeat is None:
        return "no daemon has looked at this store yet; start one with `tracks up`"
    if heartbeat.ticks(now):
        return None
    age = about((now - heartbeat.at).total_seconds())
    return (
        f"no daemon has ticked since {format_time(heartbeat.at)[:19]}Z ({age} ago): either none runs, "
        "and `tracks up` starts one, or its code server does not answer or has no share of the machine"
    )


def check_daemon_reads(heartbeat: Heartbeat | None, own: str, now: datetime) -> None:
    """Raise InvalidInput where the daemon that ticks is of an older release than `own`, the version of
    what is about to write: a release reads what earlier ones wrote, and no more."""
    if heartbeat is None or not heartbeat.ticks(now):
        return
    daemon, ours = _release(heartbeat.version), _release(own)
    if daemon and ours and daemon < ours:
        raise InvalidInput(
            f"The daemon of this store is of version {heartbeat.version}, and this is {own}: it may "
            "not read what this one records. Update the daemon first (end `tracks up`, install, start "
            f"it again), or use version {heartbeat.version} here. Nothing was written."
        )


def _release(text: str | None) -> tuple[int, ...]:
    """Return what of a version says which records it reads: (0, 2) of "0.2.1.dev3"; () where nothing
    does."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return () if found is None else tuple(map(int, found.groups()))


def describe_launch(launch: PendingLaunch, now: datetime) -> str | None:
    """Describe a launch that does not come; None where it is not late yet."""
    if launch.waits:
        return launch.why
    asked_s = (
        None if launch.asked_at is None else (now - parse_time(launch.asked_at)).total_seconds()
    )
    why = f": {launch.why}" if launch.why else ""
    if not launch.failed_count:
        if asked_s is None or asked_s < LAUNCH_S_USUAL:
            return None
        return f"its launch was asked for {about(asked_s)} ago and has not begun{why}"
    count = launch.failed_count
    failed = f"{count} launch{'es' if count > 1 else ''} failed{why}"
    if asked_s is not None:
        return f"{failed}; the next one was asked for {about(asked_s)} ago"
    if launch.next_at is not None:
        late_s = (now - parse_time(launch.next_at)).total_seconds()
        if late_s > 0:
            return f"{failed}; the next one has been due for {about(late_s)}"
        return f"{failed}; the next one is asked for at {launch.next_at[:19]}Z"
    return f"{failed}; another one is asked for once a person has deleted these in Dagster's UI"


def _launches_key(sensor: str) -> str:
    return f"daemon/launches/{sensor}.json"


def _read(store: ObjectStore, key: str) -> Json:
    data = store.get(key, SMALL_BYTES_MAX)
    try:
        return None if data is None else parse_json(data)
    except ValueError:
        return None
