"""Shows imported runs as runs: a store whose keys include the tracks that follow from its histories.

The one place that keeps imported runs from being acted upon: anyone who reads finds their records and
evidence, anyone who writes is refused, be it a decider, a launcher, an alert, a note or a person. See
`track.imported`.
"""

from __future__ import annotations

import gzip
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Protocol

from tracks_dagster.stores.journals import journal_prefix, segment_key
from tracks_dagster.track import imported
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.imported import ImportedAttempt, ImportedNode
from tracks_dagster.track.names import RUNS, AttemptRef, history_track, run_track
from tracks_dagster.track.ports import LEFTOVER_AGE_S, Leftovers, ObjectStore
from tracks_dagster.track.records import Record
from tracks_dagster.track.states import history_state
from tracks_dagster.track.states.history_state import HistoryState
from tracks_dagster.track.track import (
    history_chunk_key,
    history_curves_key,
    history_nodes_key,
    log_key,
    read_records,
)

CHUNKS_CACHED_MAX = 2  # some ten MB each, unpacked
NAMES_CACHED_MAX = 500  # of chunks: which runs they have, 0.3 MB each
RUNS_CACHED_MAX = 256

# The objects of a run by key: their bytes, or the key of packed ones that many readers do not need.
Objects = Mapping[str, bytes | str]
ByRun = Mapping[str, list[ImportedAttempt]]


class Histories:
    """Reads what was imported, run by run. Safe for several threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = Lock()
        self._states: dict[str, HistoryState] = {}
        self._chunks: OrderedDict[str, ByRun] = OrderedDict()
        self._names: OrderedDict[str, frozenset[int]] = OrderedDict()  # hashes of run ids

    def state(self, name: str) -> HistoryState | None:
        """Return what was imported of a history; None where there is none of that name."""
        state = self._states.get(name)
        head: Record | None = None if state is None else state.head
        state = history_state.fold(
            read_records(self._store, history_track(name), after=head), state
        )
        if state is not None:
            self._states[name] = state
        return state

    def chunk(self, name: str, sha256: str) -> ByRun:
        """Return the attempts of a chunk by run; raises ObjectLost and TrackBroken."""
        with self._lock:
            if sha256 in self._chunks:
                self._chunks.move_to_end(sha256)
                return self._chunks[sha256]
        data = read_addressed(self._store, history_chunk_key(name, sha256), sha256)
        found: dict[str, list[ImportedAttempt]] = {}
        for each in imported.unpack(data):
            found.setdefault(each.run_id, []).append(each)
        with self._lock:
            self._chunks[sha256] = found
            while len(self._chunks) > CHUNKS_CACHED_MAX:
                self._chunks.popitem(last=False)
            self._names[sha256] = frozenset(map(hash, found))
            while len(self._names) > NAMES_CACHED_MAX:
                self._names.popitem(last=False)
        return found

    def of_chunk(self, name: str, sha256: str, run_id: str) -> Sequence[ImportedAttempt]:
        """Return the attempts of a run in a chunk, which is not unpacked again to find none."""
        names = self._names.get(sha256)
        if names is not None and hash(run_id) not in names:
            return ()
        return self.chunk(name, sha256).get(run_id, ())

    def nodes(self, name: str, sha256s: Iterable[str] | None = None) -> list[ImportedNode]:
        """Return what a history says of its nodes, in the order of its lists, or of those lists alone.

        Raises ObjectLost and TrackBroken.
        """
        if sha256s is None:
            state = self.state(name)
            sha256s = () if state is None else (each.nodes_sha256 for each in state.nodes)
        return [
            node
            for sha256 in sha256s
            for node in imported.unpack_nodes(
                read_addressed(self._store, history_nodes_key(name, sha256), sha256)
            )
        ]

    def run(self, run_id: str) -> list[ImportedAttempt]:
        """Return the attempts of an imported run, in order; none where it is not such a run."""
        name = imported.history_of(run_id)
        state = None if name is None else self.state(name)
        if name is None or state is None:
            return []
        return imported.in_order(
            each
            for chunk in state.with_runs(run_id, run_id)
            for each in self.of_chunk(name, chunk.chunk_sha256, run_id)
        )


class _Below(ObjectStore, Leftovers, Protocol):
    """What it stands on."""


class HistoryStore:
    """Implements `ports.ObjectStore` and `Leftovers` on another, as the head of this module says.

    Costs one more read where an object is asked for that is not there, of a run with a dot in its name.
    """

    def __init__(self, below: _Below) -> None:
        self.below = below
        self._histories = Histories(below)
        self._runs: OrderedDict[tuple[str, str], Objects] = OrderedDict()

    @property
    def url(self) -> str:
        return self.below.url

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        found = self.below.get(key, bytes_max)
        if found is None:
            found = self._derived(key)
        return found

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        data = self._derived(key)
        if data is None:
            return self.below.read_into(key, buffer)
        fitting = min(len(data), len(buffer))
        buffer[:fitting] = data[:fitting]
        return len(data)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        self._check(key)
        return self.below.create(key, data)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._check(key)
        self.below.put(key, data)

    def list(self, prefix: str) -> Iterator[str]:
        derived = [key for key in self._objects(prefix) if key.startswith(prefix)]
        return (
            iter(sorted({*derived, *self.below.list(prefix)}))
            if derived
            else self.below.list(prefix)
        )

    def folders(self, prefix: str) -> Iterator[str]:
        return self.below.folders(
            prefix
        )  # histories are listed, not their runs: there may be a million

    def delete(self, key: str) -> None:
        self._check(key)
        self.below.delete(key)

    def sweep(self, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
        return self.below.sweep(older_than_s=older_than_s)

    def _check(self, key: str) -> None:
        """Raise InvalidInput for a key of an imported run."""
        if self._objects(key):
            run_id = _run_of(key)
            raise InvalidInput(
                f"{run_id} was imported from {imported.history_of(run_id or '')}: it is what that "
                "history says, and nothing of ours is added to it. It cannot be retried, stopped or "
                f"noted here; `tracks explain {run_id}` shows what is known."
            )

    def _derived(self, key: str) -> bytes | None:
        found = self._objects(key).get(key)
        if not isinstance(found, str):
            return found
        return gzip.decompress(read_addressed(self.below, found))

    def _objects(self, key: str) -> Objects:
        """Return the records, evidence and journals of the run that `key` is of, if it was imported."""
        run_id = _run_of(key)
        name = None if run_id is None else imported.history_of(run_id)
        state = None if name is None else self._histories.state(name)
        if run_id is None or state is None:
            return {}
        known = (state.head.sha256, run_id)
        if known in self._runs:
            return self._runs[known]
        attempts = self._histories.run(run_id)
        found: dict[str, bytes | str] = {}
        if attempts:
            records = imported.records_of(attempts)
            found = {log_key(run_track(run_id), seq): data for seq, data in enumerate(records)}
            found |= imported.evidence_of(attempts)
            found |= dict(_journals(name or "", run_id, attempts))
        self._runs[known] = found
        while len(self._runs) > RUNS_CACHED_MAX:
            self._runs.popitem(last=False)
        return found


def _journals(
    name: str, run_id: str, attempts: Sequence[ImportedAttempt]
) -> Iterator[tuple[str, str]]:
    """Yield the key of each segment of a journal, as of a launch of ours, and that of its bytes."""
    for number, each in enumerate(attempts, 1):
        prefix = journal_prefix(AttemptRef(run_id, number), each.launch_id, 0)
        for offset, sha256 in each.curves.items():
            yield segment_key(prefix, int(offset)), history_curves_key(name, sha256)


def _run_of(key: str) -> str | None:
    if not key.startswith(RUNS):
        return None
    return key.removeprefix(RUNS).partition("/")[0]
