"""Brings what the tracks say into the ledger. The ledger decides nothing and can be lost.

Each projection moves one track's cursor by compare-and-set in the transaction that writes its rows,
so any number of processes may project the same track at once: one wins, the others look again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tracks_dagster.core import dataset_state, pool_state, quarantine_state, run_fold
from tracks_dagster.core.dataset_state import DatasetState
from tracks_dagster.core.errors import LedgerError, StoreError, TrackBroken
from tracks_dagster.core.pool_state import PoolState
from tracks_dagster.core.ports import Cursor, Ledger, ObjectStore, Row
from tracks_dagster.core.projection import Rows, dataset_rows, run_rows
from tracks_dagster.core.projection_lineage import quarantine_rows
from tracks_dagster.core.projection_pools import pool_rows
from tracks_dagster.core.projection_texts import text_rows
from tracks_dagster.core.quarantine_state import QuarantineState
from tracks_dagster.core.records import Record, sha256_hex
from tracks_dagster.core.run_state import RunState
from tracks_dagster.core.track import POOLS, QUARANTINES_TRACK, log_key, read_records

TRIES_MAX = 64  # cursors lost in a row to other projectors; each loss is another's progress
STATES_CACHED_MAX = 1024  # states kept in memory by one process; then it begins anew
BROKEN_NAMED_MAX = 5  # broken tracks that one message of a scan names

RUNS = "runs/"
DATASETS = "datasets/"
LINEAGE = "lineage/"

TrackState = RunState | DatasetState | PoolState | QuarantineState


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPart:
    """How far a part of a scan came. reached: the last track that was looked at, None: none was.

    is_last: there is none after it. problems: what could not be taken in, in words.
    """

    reached: str | None
    is_last: bool
    problems: tuple[str, ...] = ()


class Projector:
    """Projects the tracks of `store` into `ledger`. Safe from several threads and processes."""

    def __init__(self, store: ObjectStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._states: dict[str, TrackState] = {}  # by track, as the ledger had it when last seen

    def project(self, track: str) -> None:
        """Bring a track's new records into the ledger. Idempotent.

        Raises TrackBroken at a record that this version cannot take in; the records before it are
        projected. Raises LedgerError when the ledger holds another history than the store.
        """
        for _ in range(TRIES_MAX):
            if self._try_project(track):
                return
        raise LedgerError(
            f"Cannot project {track}: other projectors were faster {TRIES_MAX} times in a row. "
            "Nothing is lost; the next append or `tracks reindex` brings the ledger up to date."
        )

    def scan(self) -> int:
        """Project every track of the store; return how many there are.

        A track that the ledger holds to its end costs three reads, however long it is.
        Raises TrackBroken at the end when some could not be taken in whole; all others are.
        """
        broken: list[str] = []
        count = 0
        for track in self._track_names():
            count += 1
            try:
                self._bring_in(track)
            except TrackBroken as error:
                broken.append(f"{track}: {error}")
        if broken:
            named = " ".join(broken[:BROKEN_NAMED_MAX])
            raise TrackBroken(
                f"{len(broken)} of {count} tracks could not be projected whole; the others were. "
                f"{named}"
            )
        return count

    def scan_part(self, *, after: str | None, has_time: Callable[[], bool]) -> ScanPart:
        """Project the tracks that follow `after`, until `has_time` says no; at least one.

        One that cannot be taken in is told and passed over; at a store that cannot be reached the part
        ends, and the next one begins there. What is taken in already costs three reads a track.
        """
        reached = after
        problems: list[str] = []
        try:
            for track in self._track_names(after):
                if reached != after and not has_time():
                    return ScanPart(reached=reached, is_last=False, problems=tuple(problems))
                try:
                    self._bring_in(track)
                except (TrackBroken, LedgerError) as error:
                    problems.append(f"{track}: {error}")
                reached = track
        except StoreError as error:
            problems.append(str(error))
            return ScanPart(reached=reached, is_last=False, problems=tuple(problems))
        return ScanPart(reached=reached, is_last=True, problems=tuple(problems))

    def reindex(self) -> int:
        """Remove all rows and rebuild them from the tracks; return how many tracks there are."""
        with self._ledger.kept_open() as ledger:
            ledger.clear()
            return Projector(self._store, ledger).scan()

    def _bring_in(self, track: str) -> None:
        if not self._holds_the_end(track):
            self.project(track)

    def _holds_the_end(self, track: str) -> bool:
        """Whether the ledger has taken in the last record that the store holds of the track."""
        cursor = self._ledger.cursor(track)
        if cursor is None:
            return False
        last = self._store.get(log_key(track, cursor.seq))
        if last is None or sha256_hex(last) != cursor.sha256:
            return False
        return self._store.get(log_key(track, cursor.seq + 1)) is None

    def _try_project(self, track: str) -> bool:
        """Take in what is new since the cursor; False when another projector moved it meanwhile."""
        cursor = self._ledger.cursor(track)
        before, after, said, problem = self._read(track, cursor)
        if before is not after and after is not None:
            advanced = Cursor(seq=after.head.seq, sha256=after.head.sha256)
            rows = {**_rows(after, before), "texts": said}
            if not self._ledger.apply(track, expected=cursor, advanced=advanced, rows=rows):
                return False
        if after is not None:
            self._remember(track, after)
        if problem is not None:
            raise problem
        return True

    def _read(
        self, track: str, cursor: Cursor | None
    ) -> tuple[TrackState | None, TrackState | None, list[Row], TrackBroken | None]:
        """Return the state at the cursor, the newest, what the records between them say in words, and
        what stopped the reading before the end."""
        state = self._states.get(track)
        if state is None or cursor is None or state.head.seq > cursor.seq:
            state = None  # the ledger was cleared, or this process never saw the track
        before = state if cursor and state and state.head.seq == cursor.seq else None
        problem: TrackBroken | None = None
        said: list[Row] = []
        try:
            for record in read_records(self._store, track, after=state.head if state else None):
                state = _apply(track, state, record)
                if cursor is not None and record.seq == cursor.seq:
                    before = state
                if cursor is None or record.seq > cursor.seq:
                    said += text_rows(track, [record])
        except TrackBroken as error:
            problem = error
        if cursor is not None and (before is None or before.head.sha256 != cursor.sha256):
            raise _other_history(track, cursor, state) from problem
        return before, state, said, problem

    def _remember(self, track: str, state: TrackState) -> None:
        if len(self._states) >= STATES_CACHED_MAX:
            self._states.clear()
        self._states[track] = state

    def _track_names(self, after: str | None = None) -> Iterator[str]:
        """Yield the tracks in the order of their keys, or those that follow `after`."""
        for prefix in (DATASETS, LINEAGE, POOLS, RUNS):
            for name in self._store.folders(prefix):
                if after is not None and f"{prefix}{name}/" <= f"{after}/":
                    continue
                if self._store.get(log_key(prefix + name, 0)) is not None:
                    yield prefix + name


def _apply(track: str, state: TrackState | None, record: Record) -> TrackState:
    if track.startswith(RUNS) and (state is None or isinstance(state, RunState)):
        return run_fold.apply(state, record)
    if track.startswith(DATASETS) and (state is None or isinstance(state, DatasetState)):
        return dataset_state.apply(state, record)
    if track.startswith(POOLS) and (state is None or isinstance(state, PoolState)):
        return pool_state.apply(state, record)
    if track == QUARANTINES_TRACK and (state is None or isinstance(state, QuarantineState)):
        return quarantine_state.apply(state, record)
    raise TrackBroken(
        f"{track} is neither a run's, a dataset's nor a pool's track, nor that of quarantines; this "
        "version knows these."
    )


def _rows(after: TrackState, before: TrackState | None) -> Rows:
    if isinstance(after, RunState):
        return run_rows(after, before if isinstance(before, RunState) else None)
    if isinstance(after, PoolState):
        return pool_rows(after, before if isinstance(before, PoolState) else None)
    if isinstance(after, QuarantineState):
        return quarantine_rows(after, before if isinstance(before, QuarantineState) else None)
    return dataset_rows(after, before if isinstance(before, DatasetState) else None)


def _other_history(track: str, cursor: Cursor, state: TrackState | None) -> LedgerError:
    found = "none that can be read" if state is None else f"records up to {state.head.seq}"
    return LedgerError(
        f"Cannot project {track}: the ledger has taken in record {cursor.seq} with sha256 "
        f"{cursor.sha256[:12]}…, the store holds {found}, and not that one. The ledger is of another "
        "store, or records were edited or lost: `tracks fsck` tells which. Put lost records back "
        "before `tracks reindex`, which forgets what the store does not hold."
    )
