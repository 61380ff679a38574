"""What Dagster's event log knows of assets that rest on data versions of ours: a snapshot's id, the
sha256 of a promoted checkpoint's manifest. Dagster records of each step which events it read."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dagster import AssetKey, AssetRecordsFilter, DagsterInstance
from dagster import EventLogRecord as Event

from tracks_dagster.track.records import format_time

INPUT_VERSION = "dagster/input_data_version/"  # tags of a materialization
INPUT_EVENT = "dagster/input_event_pointer/"
KEYS_MAX = 2000  # assets of one Dagster that are looked at
EVENTS_MAX = 1000  # materializations of each, the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A materialization that rests on what was asked for. asset, read: keys as Dagster writes them,
    of what was made and of what it read for it; at: when, in UTC."""

    asset: str
    partition: str | None
    dagster_run_id: str
    read: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """uses: by time; dagster: whose event log was read; is_cut: it has more than was looked at."""

    uses: tuple[Use, ...]
    dagster: str
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """What an asset's newest materialization rests on. at: when, in UTC; reads: asset and data version
    of everything upstream that Dagster knows, the nearest first."""

    asset: str
    dagster_run_id: str
    at: str
    reads: tuple[tuple[str, str], ...]


def origins_of(folder: Path, asset: str) -> Origins | None:
    """Return what that asset rests on in the Dagster whose DAGSTER_HOME is `folder`; None where it was
    never materialized there. Raises what its storage raises."""
    with DagsterInstance.from_config(str(folder)) as instance:
        return origins_in(instance, asset)


def origins_in(instance: DagsterInstance, asset: str) -> Origins | None:
    """As `origins_of`, of an instance that is open; EVENTS_MAX materializations are looked at."""
    newest = instance.fetch_materializations(AssetKey.from_user_string(asset), limit=1).records
    if not newest:
        return None
    waiting, seen, reads = deque(newest), set[int](), dict[tuple[str, str], None]()
    while waiting and len(seen) < EVENTS_MAX:
        event = waiting.popleft()
        if event.storage_id in seen:
            continue
        seen.add(event.storage_id)
        for tag, value in _tags(event).items():
            if tag.startswith(INPUT_VERSION):
                reads[tag.removeprefix(INPUT_VERSION), value] = None
            elif tag.startswith(INPUT_EVENT) and value.isdecimal():
                read = AssetKey.from_user_string(tag.removeprefix(INPUT_EVENT))
                which = AssetRecordsFilter(asset_key=read, storage_ids=[int(value)])
                waiting.extend(instance.fetch_materializations(which, limit=1).records)
    found = _use(newest[0], "")
    return Origins(
        asset=found.asset, dagster_run_id=found.dagster_run_id, at=found.at, reads=tuple(reads)
    )


def uses_of(folder: Path, versions: Collection[str]) -> Uses:
    """Return the materializations that rest on these data versions, however far downstream, in the
    Dagster whose DAGSTER_HOME is `folder`. Raises what its storage raises."""
    with DagsterInstance.from_config(str(folder)) as instance:
        return uses_in(instance, versions, str(folder))


def uses_in(instance: DagsterInstance, versions: Collection[str], name: str) -> Uses:
    """As `uses_of`, of an instance that is open. name: how it is called."""
    keys = list(instance.get_asset_keys())
    events: list[Event] = []
    is_cut = len(keys) > KEYS_MAX
    for key in keys[:KEYS_MAX]:
        found = instance.fetch_materializations(key, limit=EVENTS_MAX)
        events += found.records
        is_cut = is_cut or found.has_more
    uses = sorted(_uses(events, versions), key=lambda use: (use.at, use.asset))
    return Uses(uses=tuple(uses), dagster=name, is_cut=is_cut)


def _uses(events: list[Event], versions: Collection[str]) -> Iterator[Use]:
    """Yield once each event that read one of these versions, and each that read such an event."""
    readers: dict[str, list[tuple[Event, str]]] = {}  # by the storage id that was read
    waiting: deque[tuple[Event, str]] = deque()
    for event in events:
        tags = _tags(event)
        for tag, value in tags.items():
            if tag.startswith(INPUT_EVENT):
                readers.setdefault(value, []).append((event, tag.removeprefix(INPUT_EVENT)))
            elif tag.startswith(INPUT_VERSION) and value in versions:
                waiting.append((event, tag.removeprefix(INPUT_VERSION)))
    seen = set()
    while waiting:
        event, read = waiting.popleft()
        if event.storage_id not in seen:
            seen.add(event.storage_id)
            waiting.extend(readers.get(str(event.storage_id), ()))
            yield _use(event, read)


def _tags(event: Event) -> Mapping[str, str]:
    made = event.asset_materialization
    return {} if made is None else made.tags or {}


def _use(event: Event, read: str) -> Use:
    made = event.asset_materialization
    return Use(
        asset=made.asset_key.to_user_string() if made is not None else "",
        partition=made.partition if made is not None else None,
        dagster_run_id=event.run_id,
        read=read,
        at=format_time(datetime.fromtimestamp(event.timestamp, UTC)),
    )
