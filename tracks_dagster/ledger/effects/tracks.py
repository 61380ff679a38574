"""Every track of one store, and the rule that anyone who appends also projects.

An appended record counts, whatever becomes of the ledger: a failure to project it is a warning, not the
append's failure.

Everything that acts reads and writes tracks through here. Records never change, so a track
once read is kept in memory and only its new records are fetched; one process's cache can be stale
but never wrong, and an append on a stale state loses its place and decides again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from tracks_dagster.track.bodies import RunDeclared
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.declared_fields import WORDS
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.names import (
    MUTES_TRACK,
    QUARANTINES_TRACK,
    RUNS,
    STUDIES,
    VIEWS_TRACK,
    code_track,
    dataset_track,
    history_track,
    pool_track,
    project_track,
    run_track,
    study_track,
)
from tracks_dagster.track.ports import Clock, NewUid, ObjectStore
from tracks_dagster.track.records import Draft, Kind, Record, sha256_hex
from tracks_dagster.track.states import (
    code_state,
    dataset_state,
    history_state,
    mute_state,
    pool_state,
    project_state,
    quarantine_state,
    run_fold,
    study_state,
    view_state,
)
from tracks_dagster.track.states.code_state import CodeState
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.history_state import HistoryState
from tracks_dagster.track.states.mute_state import MuteState
from tracks_dagster.track.states.pool_state import PoolState
from tracks_dagster.track.states.project_state import ProjectState
from tracks_dagster.track.states.quarantine_state import QuarantineState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.states.view_state import ViewState
from tracks_dagster.track.text.nearest import instead, no_run
from tracks_dagster.track.text.redact import Redact, redact, redact_words
from tracks_dagster.track.track import Track, log_key
from tracks_dagster.track.unforeseen import as_broken, problem_of

_log = logging.getLogger(__name__)

TRACKS_CACHED_MAX = 1024  # tracks kept in memory by one process; the oldest used goes first

S = TypeVar("S")
Project = Callable[[str], None]  # brings one track's new records into the ledger


class Tracks:
    """Reads, folds and appends; calls `project` with the track's name after each append.

    Safe for several threads, which do not wait for each other: sensors tick in threads of one process,
    and a tick looks at several runs at once.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        now: Clock,
        new_uid: NewUid,
        project: Project,
        clean: Redact = redact,
    ) -> None:
        self.store = store
        self.clean = clean
        self.now = now
        self.new_uid = new_uid
        self._project = project
        self._lock = threading.Lock()  # of the table of tracks; nothing is read or written under it
        self._tracks: dict[tuple[str, int], Track] = {}  # by name, and the seq of the first record
        self._run_states: dict[str, RunState] = {}
        self._pool_states: dict[tuple[str, int], PoolState] = {}
        self._study_states: dict[str, StudyState] = {}

    def draft(self, kind: Kind, body: object, *, attempt_id: int | None = None) -> Draft:
        """Return a draft with a fresh uid, its words cleaned of secrets.

        body: one of the dataclasses of `track.bodies`.
        """
        cleaned = redact_words(to_json(body), WORDS, self.clean)
        return Draft(uid=self.new_uid(), kind=kind, body=cleaned, attempt_id=attempt_id)

    def find_run(self, run_id: str) -> RunState | None:
        """Return the run's state now, or None when there is no such run."""
        track = self._track(run_track(run_id))
        return self._folded(track.name, track.refresh())

    def run(self, run_id: str) -> RunState:
        """Return the run's state now; raises UnknownRun."""
        state = self.find_run(run_id)
        if state is None:
            raise UnknownRun(no_run(run_id, self.store.folders(RUNS)))
        return state

    def records(self, track_name: str) -> list[Record]:
        """Return every record of a track as of now."""
        return list(self._track(track_name).refresh())

    def decide_run(
        self, run_id: str, choose: Callable[[RunState | None], Draft | None]
    ) -> Record | None:
        """Append the decision that `choose` makes of the run's state; None when there is none.

        `choose` may be called several times and must be pure. Raises InvalidDecision when it makes
        one that the state does not allow.
        """
        name = run_track(run_id)

        def chosen(records: list[Record]) -> Draft | None:
            state = self._folded(name, records)
            draft = choose(state)
            return None if draft is None else run_fold.check(state, draft)

        return self._projected(name, self._track(name).decide(chosen))

    def append_to(self, state: RunState, draft: Draft) -> RunState | None:
        """Append a decision that was made on `state`; return the state with it at its head.

        None, with nothing written, when another record came first: then read and decide again.
        It is not projected: anyone who appends several in a row projects once, after the last. Raises
        InvalidDecision when `state` does not allow it, and RecordTooLarge.
        """
        name = run_track(state.run_id)
        run_fold.check(state, draft)
        record = self._track(name).append_after(state.head, draft)
        if record is None:
            return None
        state = run_fold.apply(state, record)
        self._run_states[name] = state
        return state

    def declare_run(self, declared: RunDeclared) -> Record | None:
        """Append `run_declared`; None when the run exists already."""
        draft = self.draft(Kind.RUN_DECLARED, declared)
        return self.decide_run(declared.run_id, lambda state: draft if state is None else None)

    def note_run(self, run_id: str, draft: Draft) -> Record:
        """Append a note, an alert or the end of an eval; raises UnknownRun."""
        self.run(run_id)
        record = self._track(run_track(run_id)).note(draft)
        self._take_in(record, run_track(run_id))
        return record

    def find_dataset(self, name: str) -> DatasetState | None:
        """Return the dataset's state now, or None."""
        track = self._track(dataset_track(name))
        return _whole(dataset_state.fold, track.name, track.refresh())

    def decide_dataset(
        self, name: str, choose: Callable[[DatasetState | None], Draft | None]
    ) -> Record | None:
        """Append the decision that `choose` makes of the dataset's state; None when none."""
        track = self._track(dataset_track(name))
        record = track.decide(
            lambda records: choose(_whole(dataset_state.fold, track.name, records))
        )
        return self._projected(track.name, record)

    def find_pool(self, pool: str, *, first: int = 0) -> PoolState | None:
        """Return the state of the pool's track now; None where it has no record.

        first: the seq of a lease: nothing before it is read, and the state has what followed alone.
        """
        track = self._track(pool_track(pool), first)
        return self._folded_pool(track.name, track.refresh(), first)

    def decide_pool(
        self, pool: str, choose: Callable[[PoolState | None], Draft | None], *, first: int = 0
    ) -> Record | None:
        """Append the decision that `choose` makes of the pool's state; None when there is none.

        As of `decide_run`, and first as of `find_pool`. The first decision makes the track.
        """
        track = self._track(pool_track(pool), first)

        def chosen(records: list[Record]) -> Draft | None:
            state = self._folded_pool(track.name, records, first)
            draft = choose(state)
            return None if draft is None else pool_state.check(state, pool, draft)

        return self._projected(track.name, track.decide(chosen))

    def find_quarantines(self) -> QuarantineState | None:
        """Return what persons have put in quarantine as a source; None where nothing ever was."""
        track = self._track(QUARANTINES_TRACK)
        return _whole(quarantine_state.fold, track.name, track.refresh())

    def decide_quarantines(
        self, choose: Callable[[QuarantineState | None], Draft | None]
    ) -> Record | None:
        """Append the decision that `choose` makes of that state; None when there is none."""
        track = self._track(QUARANTINES_TRACK)
        record = track.decide(
            lambda records: choose(_whole(quarantine_state.fold, track.name, records))
        )
        return self._projected(track.name, record)

    def find_code(self, code_sha256: str) -> CodeState | None:
        """Return what that code was certified by; None where it never was."""
        track = self._track(code_track(code_sha256))
        return _whole(code_state.fold, track.name, track.refresh())

    def note_code(self, code_sha256: str, draft: Draft) -> Record:
        """Append a certificate of that code; the first one makes the track."""
        track = self._track(code_track(code_sha256))
        record = track.note(draft)
        self._take_in(record, track.name)
        return record

    def find_project(self, name: str) -> ProjectState | None:
        """Return the stored versions of a project; None where it was never stored."""
        track = self._track(project_track(name))
        return _whole(project_state.fold, track.name, track.refresh())

    def decide_project(
        self, name: str, choose: Callable[[ProjectState | None], Draft | None]
    ) -> Record | None:
        """Append the decision that `choose` makes of the project's state; None when there is none."""
        track = self._track(project_track(name))
        record = track.decide(
            lambda records: choose(_whole(project_state.fold, track.name, records))
        )
        return self._projected(track.name, record)

    def decide_history(
        self, name: str, choose: Callable[[HistoryState | None], Draft | None]
    ) -> Record | None:
        """Append what `choose` makes of what was imported of a history; None when there is nothing.

        Not projected: anyone who imports appends many in a row.
        """
        track = self._track(history_track(name))
        return track.decide(lambda records: choose(_whole(history_state.fold, track.name, records)))

    def find_mutes(self) -> MuteState | None:
        """Return which alerts persons want sent to nobody; None where nobody ever did."""
        track = self._track(MUTES_TRACK)
        return _whole(mute_state.fold, track.name, track.refresh())

    def decide_mutes(self, choose: Callable[[MuteState | None], Draft | None]) -> Record | None:
        """Append the decision that `choose` makes of that state; None when there is none."""
        track = self._track(MUTES_TRACK)
        record = track.decide(lambda records: choose(_whole(mute_state.fold, track.name, records)))
        return self._projected(track.name, record)

    def find_views(self) -> ViewState | None:
        """Return the saved views of the table of runs; None where nobody ever saved one."""
        track = self._track(VIEWS_TRACK)
        return _whole(view_state.fold, track.name, track.refresh())

    def decide_views(self, choose: Callable[[ViewState | None], Draft | None]) -> Record | None:
        """Append the decision that `choose` makes of that state; None when there is none."""
        track = self._track(VIEWS_TRACK)
        record = track.decide(lambda records: choose(_whole(view_state.fold, track.name, records)))
        return self._projected(track.name, record)

    def find_study(self, name: str) -> StudyState | None:
        """Return the study's state now; None where there is no such study."""
        track = self._track(study_track(name))
        return self._folded_study(track.name, track.refresh())

    def study(self, name: str) -> StudyState:
        """Return the study's state now; raises UnknownRun."""
        state = self.find_study(name)
        if state is None:
            raise UnknownRun(
                f"There is no study {name!r}; "
                f"{instead(name, self.store.folders(STUDIES), '`tracks studies` lists them.')}"
            )
        return state

    def decide_study(
        self, name: str, choose: Callable[[StudyState | None], Draft | None]
    ) -> Record | None:
        """Append the decision that `choose` makes of the study's state; None when there is none."""
        track = self._track(study_track(name))

        def chosen(records: list[Record]) -> Draft | None:
            state = self._folded_study(track.name, records)
            draft = choose(state)
            return None if draft is None else study_state.check(state, draft)

        return self._projected(track.name, track.decide(chosen))

    def append_to_study(self, state: StudyState, draft: Draft) -> StudyState | None:
        """Append a decision that was made on `state`; as `append_to` of a run."""
        name = study_track(state.declared.study)
        study_state.check(state, draft)
        record = self._track(name).append_after(state.head, draft)
        if record is None:
            return None
        state = study_state.apply(state, record)
        self._study_states[name] = state
        return state

    def project(self, track_name: str) -> None:
        """Bring a track's new records into the ledger (what ranks append reaches it this way)."""
        self._project(track_name)

    def _projected(self, track_name: str, record: Record | None) -> Record | None:
        if record is not None:
            self._take_in(record, track_name)
        return record

    def _take_in(self, record: Record, track_name: str) -> None:
        """Project the track of a record that was appended; what the ledger refuses is a warning."""
        try:
            self._project(track_name)
        except Exception as error:  # noqa: BLE001 - whatever it is, the record is written
            _log.warning(
                "Record %d of %s is written, and the ledger does not show it yet: %s",
                record.seq,
                track_name,
                problem_of(error),
            )

    def _track(self, name: str, first: int = 0) -> Track:
        with self._lock:
            track = self._tracks.pop((name, first), None)
            if track is not None and self._is_other(track):
                track = None
                self._run_states.pop(name, None)
            track = track or Track(self.store, name, now=self.now, first=first)
            self._tracks[name, first] = track
            if len(self._tracks) > TRACKS_CACHED_MAX:
                oldest = next(iter(self._tracks))
                del self._tracks[oldest]
                self._run_states.pop(oldest[0], None)
                self._pool_states.pop(oldest, None)
                self._study_states.pop(oldest[0], None)
            return track

    def _is_other(self, track: Track) -> bool:
        """Whether the track of an imported run has other records by now than those that were read.

        It follows from all that its history says, so an import may change it, as nothing else does.
        """
        known = track.known
        if not known or not track.name.startswith(RUNS) or "." not in track.name:
            return False  # no run of a history, which all have a dot
        data = self.store.get(log_key(track.name, known[-1].seq), RECORD_BYTES_MAX)
        return data is not None and sha256_hex(data) != known[-1].sha256

    def _folded(self, name: str, records: list[Record]) -> RunState | None:
        """Return the state after exactly `records`, from what was folded before."""
        state = self._run_states.get(name)
        if state is not None and state.head.seq >= len(records):
            state = None  # another thread has read and folded more than these
        known = state.head.seq + 1 if state is not None else 0
        with as_broken(f"{name} cannot be folded"):
            state = run_fold.fold(records[known:], state)
        if state is not None:
            self._run_states[name] = state
        return state

    def _folded_pool(self, name: str, records: list[Record], first: int) -> PoolState | None:
        """Return the state after exactly `records`, from what was folded before."""
        state = self._pool_states.get((name, first))
        if state is not None and state.head.seq >= first + len(records):
            state = None
        known = state.head.seq + 1 - first if state is not None else 0
        with as_broken(f"{name} cannot be folded"):
            state = pool_state.fold(records[known:], state)
        if state is not None:
            self._pool_states[name, first] = state
        return state

    def _folded_study(self, name: str, records: list[Record]) -> StudyState | None:
        """Return the state after exactly `records`, from what was folded before."""
        state = self._study_states.get(name)
        if state is not None and state.head.seq >= len(records):
            state = None
        known = state.head.seq + 1 if state is not None else 0
        with as_broken(f"{name} cannot be folded"):
            state = study_state.fold(records[known:], state)
        if state is not None:
            self._study_states[name] = state
        return state


def _whole(
    fold: Callable[[Iterable[Record]], S | None], name: str, records: Iterable[Record]
) -> S | None:
    """Return the state after all records of a track; raises TrackBroken whatever goes wrong."""
    with as_broken(f"{name} cannot be folded"):
        return fold(records)
