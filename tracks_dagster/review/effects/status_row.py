"""How a run stands by the ledger alone, where that is as good as its track: beside many long runs, to
read every record of each would take most of a minute.

It is as good when the ledger holds the track to its end and nobody has to be waited for: the run is
over, waits for a person, or a gang works. All others are read from their tracks.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracks_dagster.stores.journals import JournalTail, read_tail
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, sha256_hex
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.track import log_key, run_track


def is_enough(store: ObjectStore, row: Mapping[str, Json]) -> bool:
    """Whether `row`, of `status_newest.sql`, says all that the run's track would say."""
    is_led = row["state"] != RunLifecycle.RUNNING or has_a_gang(row)
    return is_led and _is_at_the_end(store, row)


def journal_end(store: ObjectStore, row: Mapping[str, Json]) -> JournalTail:
    """Return the newest step that the newest launch shipped, and when its newest line was written."""
    if row["launch_id"] is None:
        return JournalTail()
    return read_tail(store, row["run_id"], row["attempt_count"], row["launch_id"], steps_max=1)


def has_a_gang(row: Mapping[str, Json]) -> bool:
    """Whether the newest attempt is open and supervised, so that no sensor has to act."""
    return (
        row["attempt_count"] > 0
        and row["termination_reason"] is None
        and row["dagster_run_id"] is not None
    )


def _is_at_the_end(store: ObjectStore, row: Mapping[str, Json]) -> bool:
    """Whether the last record that was taken in is the store's last one of the track."""
    track, seq = run_track(row["run_id"]), row["head_seq"]
    if seq is None:
        return False  # a migration asked for the whole track anew
    last = store.get(log_key(track, seq))
    if last is None or sha256_hex(last) != row["head_sha256"]:
        return False
    return store.get(log_key(track, seq + 1)) is None
