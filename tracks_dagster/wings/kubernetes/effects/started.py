"""What a launcher leaves in the store of a gang that it started."""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.attempts.pod_files import gang_prefix
from tracks_dagster.track.body_json import from_json, to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import canonical_json

_STARTED = "started.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a launcher leaves of a start. kind: of the object that was made; at: text time; server: the
    API server's address.

    It outlives the Job: while it is there, the attempt has had its gang.
    """

    kind: str
    nodes: int
    ranks_per_node: int
    at: str
    namespace: str = ""
    server: str = ""

    @property
    def ranks(self) -> int:
        """How many ranks the gang has."""
        return self.nodes * self.ranks_per_node


def started_key(ref: AttemptRef) -> str:
    """Return where the start left its mark."""
    return gang_prefix(ref) + _STARTED


def read_started(store: ObjectStore, ref: AttemptRef) -> Started | None:
    """Return what the start left; None where there was none, or nobody lived to write it."""
    data = store.get(started_key(ref), SMALL_BYTES_MAX)
    try:
        return None if data is None else from_json(Started, parse_json(data))
    except (ValueError, TrackBroken):
        return None


def put_started(store: ObjectStore, ref: AttemptRef, started: Started) -> None:
    """Remember the start, as long as the attempt is remembered."""
    store.create(started_key(ref), canonical_json(to_json(started)))
