"""Brings what the tracks say into the ledger. The ledger decides nothing and can be lost.

Each projection moves one track's cursor by compare-and-set in the transaction that writes its rows,
so any number of processes may project the same track at once: one wins, the others look again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta

from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.effects.histories import imported_rows
from tracks_dagster.ledger.effects.ticks import UPKEEP_S_MAX, Seconds, Tick
from tracks_dagster.ledger.ports import Cursor, Ledger
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.stores.histories import Histories
from tracks_dagster.track.errors import (
    LedgerAhead,
    LedgerError,
    ObjectLost,
    RowRefused,
    StoreError,
    TrackBroken,
    TracksError,
)
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.map_in_order import map_in_order
from tracks_dagster.track.names import (
    ALERTS,
    CODES,
    DATASETS,
    HISTORIES,
    LINEAGE,
    POOLS,
    PROJECTS,
    RUNS,
    STUDIES,
    VIEWS,
)
from tracks_dagster.track.ports import ObjectStore, local_path
from tracks_dagster.track.records import Record, sha256_hex
from tracks_dagster.track.states.history_state import HistoryState
from tracks_dagster.track.track import log_key, read_records
from tracks_dagster.track.unforeseen import problem_of

TRIES_MAX = 64  # cursors lost in a row to other projectors; each loss is another's progress
STATES_CACHED_MAX = 1024  # states kept in memory by one process; then it starts over
AT_ONCE = 8  # tracks that are projected at the same time where each waits for a far store
SCAN_EVERY = timedelta(days=1)  # finds tracks that no process of ours has projected
BROKEN_NAMED_MAX = 5  # broken tracks that one message of a scan names

PROGRESS_S = 10.0  # between two lines that say how far a rebuilding is

# Of tracks, in the order of their keys.
KINDS = (ALERTS, CODES, DATASETS, HISTORIES, LINEAGE, POOLS, PROJECTS, RUNS, STUDIES, VIEWS)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reindexed:
    """How many tracks the store holds, and what the ledger could not be made of, a sentence each."""

    track_count: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _New:
    """What a track tells beyond what the ledger has taken in.

    before: the state that the ledger holds, None: nothing. records: those after it, each allowed by
    the state before it. problem: what stopped the reading before the track's end.
    """

    before: TrackState | None
    after: TrackState | None
    records: Sequence[Record]
    problem: TrackBroken | None


class Projector:
    """Projects the tracks of `store` into `ledger`. Safe from several threads and processes."""

    def __init__(self, store: ObjectStore, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._histories = Histories(store)
        self._states: dict[str, TrackState] = {}  # by track, as the ledger had it when last seen

    def project(self, track: str) -> None:
        """Bring a track's new records into the ledger. Idempotent.

        Raises TrackBroken at a record that this version or the database cannot take in; the records
        before it are projected. Raises LedgerAhead when the ledger holds another history.
        """
        for _ in range(TRIES_MAX):
            if self._try_project(track):
                return
        raise _too_contended(track)

    def scan(self) -> int:
        """Project every track of the store; return how many there are.

        A track that the ledger holds to its end costs three reads, however long it is.
        Raises TrackBroken at the end when some could not be taken in whole; all others are.
        """
        count, broken = self._bring_in_all()
        if broken:
            named = " ".join(list(broken.values())[:BROKEN_NAMED_MAX])
            raise TrackBroken(
                f"{len(broken)} of {count} tracks could not be projected whole; the others were. "
                f"{named}"
            )
        return count

    def scan_part(self, after: str | None, *, seconds: Seconds = time.monotonic) -> Tick[None]:
        """Project, for a few seconds, the tracks that follow `after`; at least one.

        One that cannot be taken in is a problem, waits for a person and is met again by the next scan.
        At a store that cannot be reached the part ends, and the next one begins there. What is taken
        in already costs three reads a track.
        """
        began_s, reached, is_done = seconds(), after, False
        problems: list[str] = []
        try:
            for track in filter(self._begins, self._names(after)):
                if reached != after and seconds() - began_s >= UPKEEP_S_MAX:
                    break
                try:
                    self._bring_in(track)
                except StoreError:
                    raise
                except Exception as error:  # noqa: BLE001 - one track's, whatever it is
                    problems.append(f"{track}: {problem_of(error)}")
                reached = track
            else:
                is_done = True
        except StoreError as error:
            problems.append(str(error))
        cut_at = None if is_done else reached
        return Tick(cut_at=cut_at, is_done=is_done, problems=tuple(problems))

    def reindex(self, *, forgets_lost: bool = False, only_outdated: bool = False) -> Reindexed:
        """Make a new ledger of the tracks beside the old one, and replace that when it is whole.

        Readers find the old one until then, also where this is killed. What the ledger remembers of
        records that cannot be read any more is taken over, and is a problem; forgets_lost: it is not.
        only_outdated: nothing is done where another process has brought it up to date.

        Raises LedgerError, with the old one as it was, when the database fails, another process takes
        too long to rebuild it, or an older version's rows of lost records fit the new tables no more.
        """
        with self._ledger.beside(only_outdated=only_outdated) as fresh:
            if fresh is None:
                return Reindexed(track_count=0, problems=())
            builder = Projector(self._store, fresh)
            count, problems = builder._bring_in_all(tell_progress=True)
            if not forgets_lost:
                problems |= self._carry_over(builder, fresh, problems)
        # What others appended and projected meanwhile went into the old one.
        _, missed = self._bring_in_all()
        return Reindexed(track_count=count, problems=tuple((missed | problems).values()))

    def _bring_in_all(self, *, tell_progress: bool = False) -> tuple[int, dict[str, str]]:
        """Project every track of the store; return how many there are, and what is wrong by track."""
        progress = _Progress(self._store) if tell_progress else None
        problems: dict[str, str] = {}
        count = 0
        with closing(self._brought_in()) as tracks:
            for track, problem in tracks:
                count += 1
                if problem is not None:
                    problems[track] = problem
                if progress is not None:
                    progress.tell(count)
        return count, problems

    def _brought_in(self) -> Generator[tuple[str, str | None], None, None]:
        """Project every track of the store, several at once where it is far; yield each with what is
        wrong with it."""
        if local_path(self._store.url) is not None:
            yield from filter(None, map(self._try_bring_in, self._names()))
            return
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="projector") as threads:
            tracks = map_in_order(threads, self._try_bring_in, self._names(), at_once=2 * AT_ONCE)
            yield from filter(None, tracks)

    def _try_bring_in(self, track: str) -> tuple[str, str | None] | None:
        """Project a track; return it and what is wrong with it; None: the store has no such track."""
        if not self._begins(track):
            return None
        try:
            self._bring_in(track)
        except (TrackBroken, LedgerAhead) as error:
            return track, f"{track}: {error}"
        except TracksError:
            raise
        except Exception as error:  # noqa: BLE001 - one track's, whatever it is
            return track, f"{track}: {problem_of(error)}"
        return track, None

    def _carry_over(
        self, builder: Projector, fresh: Ledger, problems: Mapping[str, str]
    ) -> dict[str, str]:
        """Take over what the ledger remembers of tracks that tell less by now; return it by track."""
        carried = {}
        for row in self._ledger.query(
            "select track, seq, sha256 from track_cursors order by track"
        ):
            track, cursor = row["track"], Cursor(seq=row["seq"], sha256=row["sha256"])
            if builder._holds(track, cursor):
                continue
            why = problems.get(track)  # one that cannot be read is not asked for again
            if why is None:
                is_lost = self._store.get(log_key(track, 0), RECORD_BYTES_MAX) is None
                why = f"{track}: {'the store has no such track.' if is_lost else _OTHER}"
            carried[track] = f"{why} {_STAYS}"
            try:
                fresh.forget(track)
                fresh.apply(
                    track, expected=None, advanced=cursor, rows=self._ledger.remembered(track)
                )
            except RowRefused as error:
                raise LedgerError(
                    f"Cannot rebuild the ledger: {carried[track]} An older version wrote that, "
                    f"and it does not fit the new tables ({error}). Nothing was changed."
                ) from error
        return carried

    def _holds(self, track: str, cursor: Cursor) -> bool:
        """Whether the ledger has taken in the record of the track that `cursor` names."""
        for _ in range(2):
            reached = self._ledger.cursor(track)
            if reached == cursor:
                return True
            if reached is not None and reached.seq > cursor.seq:
                record = self._store.get(log_key(track, cursor.seq), RECORD_BYTES_MAX)
                return record is not None and sha256_hex(record) == cursor.sha256
            with suppress(TrackBroken, LedgerAhead):
                self.project(track)  # appended, and projected elsewhere, since it was looked at
        return False

    def _bring_in(self, track: str) -> None:
        if not self._holds_the_end(track):
            self.project(track)

    def _holds_the_end(self, track: str) -> bool:
        """Whether the ledger has taken in the last record that the store holds of the track."""
        cursor = self._ledger.cursor(track)
        if cursor is None:
            return False
        last = self._store.get(log_key(track, cursor.seq), RECORD_BYTES_MAX)
        if last is None or sha256_hex(last) != cursor.sha256:
            return False
        return self._store.get(log_key(track, cursor.seq + 1), RECORD_BYTES_MAX) is None

    def _try_project(self, track: str) -> bool:
        """Take in what is new since the cursor; False when another projector moved it meanwhile."""
        cursor = self._ledger.cursor(track)
        new = self._read(track, cursor)
        if not self._take_in(track, cursor, new):
            return False
        if new.after is not None:
            self._remember(track, new.after)
        if new.problem is not None:
            raise new.problem
        return True

    def _take_in(self, track: str, cursor: Cursor | None, new: _New) -> bool:
        """Write the rows of new records, of those before the first one that is refused if one is.

        False when another was faster. Raises TrackBroken naming the record that is refused.
        """
        if not new.records:
            return True
        try:
            return self._write(track, cursor, new)
        except RowRefused as error:
            if len(new.records) == 1:
                raise _refused(track, new.records[0], error) from error
        half = len(new.records) // 2
        first = _fold(track, new.before, new.records[:half])
        if not self._take_in(track, cursor, first):
            return False
        rest = _fold(track, first.after, new.records[half:])
        return self._take_in(track, _cursor_at(new.records[half - 1]), rest)

    def _write(self, track: str, cursor: Cursor | None, new: _New) -> bool:
        """Write the rows of new records in one transaction; False when another was faster.

        Raises RowRefused, with nothing written.
        """
        replaced: Collection[str] = ()
        try:
            assert new.after is not None, "there are records"
            rows = track_states.rows_of(track, new.after, new.before, new.records)
            if isinstance(new.after, HistoryState):
                of_runs = imported_rows(self._histories, new.after, new.records)
                rows, replaced = {**rows, **of_runs.rows}, of_runs.replaced
        except (TrackBroken, ObjectLost) as error:
            raise RowRefused(str(error)) from error
        advanced = _cursor_at(new.records[-1])
        return self._ledger.apply(
            track, expected=cursor, advanced=advanced, rows=rows, replaced_runs=replaced
        )

    def _read(self, track: str, cursor: Cursor | None) -> _New:
        """Return what the track tells beyond `cursor`; raises LedgerAhead when it tells less."""
        state = self._states.get(track)
        if state is None or cursor is None or state.head.seq > cursor.seq:
            state = None  # the ledger was cleared, or this process never saw the track
        before = state if cursor and state and state.head.seq == cursor.seq else None
        problem: TrackBroken | None = None
        records: list[Record] = []
        try:
            for record in read_records(self._store, track, after=state.head if state else None):
                state = track_states.apply(track, state, record)
                if cursor is not None and record.seq == cursor.seq:
                    before = state
                if cursor is None or record.seq > cursor.seq:
                    records.append(record)
        except TrackBroken as error:
            problem = error
        if cursor is not None and (before is None or before.head.sha256 != cursor.sha256):
            raise _other_history(track, cursor, state) from problem
        return _New(before=before, after=state, records=records, problem=problem)

    def _remember(self, track: str, state: TrackState) -> None:
        if len(self._states) >= STATES_CACHED_MAX:
            self._states.clear()
        self._states[track] = state

    def _names(self, after: str | None = None) -> Iterator[str]:
        """Yield what may be a track in the order of the keys, or what follows `after` of it."""
        for prefix in KINDS:
            for name in self._store.folders(prefix):
                if after is None or f"{prefix}{name}/" > f"{after}/":
                    yield prefix + name

    def _begins(self, track: str) -> bool:
        """Whether the track has a first record, also one that cannot be read: that is its problem."""
        try:
            return self._store.get(log_key(track, 0), RECORD_BYTES_MAX) is not None
        except TracksError:
            raise
        except Exception:  # noqa: BLE001 - who reads the track says it
            return True


class _Progress:
    """Says now and then how far a rebuilding is, and how long it will take."""

    def __init__(self, store: ObjectStore) -> None:
        self._of = sum(1 for prefix in KINDS for _ in store.folders(prefix))
        self._began_s = self._logged_s = time.monotonic()

    def tell(self, count: int) -> None:
        """Say that so many tracks are in, if nothing was said for a while."""
        now_s = time.monotonic()
        if now_s - self._logged_s < PROGRESS_S:
            return
        self._logged_s = now_s
        left_s = (now_s - self._began_s) / count * max(self._of - count, 0)
        _log.warning(
            "Rebuilding the ledger: %d of %d tracks; about %d min left.",
            count,
            self._of,
            round(left_s / 60),
        )


def _fold(track: str, before: TrackState | None, records: Sequence[Record]) -> _New:
    """Return `records`, which the state before them allows, as new ones."""
    after = before
    for record in records:
        after = track_states.apply(track, after, record)
    return _New(before=before, after=after, records=records, problem=None)


def _cursor_at(record: Record) -> Cursor:
    return Cursor(seq=record.seq, sha256=record.sha256)


def _refused(track: str, record: Record, error: RowRefused) -> TrackBroken:
    return TrackBroken(
        f"Record {record.seq} ({record.kind}) of {track} cannot be taken into the ledger: {error} What "
        f"stands before it was. `tracks explain` and `tracks report` read the track itself."
    )


def _too_contended(track: str) -> LedgerError:
    return LedgerError(
        f"Cannot project {track}: other projectors were faster {TRIES_MAX} times in a row. "
        "Nothing is lost; the next append or `tracks reindex` brings the ledger up to date."
    )


_OTHER = "The store does not hold the record that the ledger took in last."
_STAYS = (
    "What the ledger remembers of it stays as it is: put the records back, or let go of them with "
    "`tracks reindex --forget-lost`."
)


def _other_history(track: str, cursor: Cursor, state: TrackState | None) -> LedgerAhead:
    found = "none that can be read" if state is None else f"records up to {state.head.seq}"
    return LedgerAhead(
        f"Cannot project {track}: the ledger has taken in record {cursor.seq} with sha256 "
        f"{cursor.sha256[:12]}…, the store holds {found}, and not that one. The ledger is of another "
        "store, or records were edited or lost: `tracks fsck` tells which. Put lost records back, "
        "or let go of what the store does not hold with `tracks reindex --forget-lost`."
    )
