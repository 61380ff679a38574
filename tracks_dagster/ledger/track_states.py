"""A track's state and its rows of the ledger, by the track's name. Pure: writing is the ledger's work.

The records of a track may only concern what its name says: a track that claimed another's name would
overwrite that one's rows.

`ledger/facts` has what a row holds; here is which rows there are. A row is whole: an upsert by
primary key replaces what was there. No row is ever removed, because no record is. Given the state
that the ledger has taken in already, only rows that can differ from those it holds are returned;
applied in order, they leave what a projection from scratch would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tracks_dagster.ledger.facts.attempt import ATTEMPT, attempt_views
from tracks_dagster.ledger.facts.checkpoint import CHECKPOINT, EVAL, eval_view
from tracks_dagster.ledger.facts.fact import Fact, row
from tracks_dagster.ledger.facts.run import (
    MUTE,
    NOTE,
    PROMOTION,
    RUN,
    NoteView,
    PromotionView,
    run_view,
)
from tracks_dagster.ledger.facts.sources import (
    ATTEMPT_NODE,
    ATTEMPT_RESUME,
    CERTIFICATE,
    DATASET,
    NODE_QUARANTINE,
    NODE_STRIKE,
    PROJECT_VERSION,
    SNAPSHOT,
    SOURCE_QUARANTINE,
    node_views,
    resume_views,
    version_views,
)
from tracks_dagster.ledger.facts.study import STUDY, TRIAL, rung_views
from tracks_dagster.ledger.facts.tables import OF_EVERY_TRACK, TABLES, key_of
from tracks_dagster.ledger.facts.time import (
    ATTEMPT_TIME,
    READING,
    RUN_TIME,
    TimedAttempt,
    TimedReading,
    TimedRun,
)
from tracks_dagster.ledger.ports import Row
from tracks_dagster.ledger.texts import text_rows
from tracks_dagster.ledger.timeline import timeline
from tracks_dagster.track.errors import RecordNewer, TrackBroken
from tracks_dagster.track.names import (
    CODES,
    DATASETS,
    HISTORIES,
    MUTES_TRACK,
    POOLS,
    PROJECTS,
    QUARANTINES_TRACK,
    RUNS,
    STUDIES,
    VIEWS_TRACK,
    pool_named,
    pool_track,
)
from tracks_dagster.track.records import Record
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
from tracks_dagster.track.states.pool_state import PoolState, Quarantine, Strike
from tracks_dagster.track.states.project_state import ProjectState
from tracks_dagster.track.states.quarantine_state import QuarantineState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.states.view_state import ViewState
from tracks_dagster.track.unforeseen import as_broken

TrackState = (
    RunState
    | DatasetState
    | PoolState
    | QuarantineState
    | MuteState
    | CodeState
    | ProjectState
    | HistoryState
    | StudyState
    | ViewState
)

# The column that names the track.
_OWNERS = {
    CODES: "code_sha256",
    DATASETS: "dataset",
    HISTORIES: "history",
    POOLS: "pool",
    PROJECTS: "project",
    RUNS: "run_id",
    STUDIES: "study",
}


def apply(track: str, state: TrackState | None, record: Record) -> TrackState:
    """Return the state of `track` after one more record.

    Raises TrackBroken for one that cannot come next, RecordNewer in a track of an unknown kind.
    """
    with as_broken(f"Record {record.seq} ({record.kind}) of {track} cannot be taken in"):
        after, whose = _applied(track, state, record)
    if whose != track:
        raise TrackBroken(
            f"Record {record.seq} ({record.kind}) of {track} says that it is of {whose}."
        )
    return after


def _applied(track: str, state: TrackState | None, record: Record) -> tuple[TrackState, str]:
    """Return the state after the record, and the track that it is of."""
    if track.startswith(RUNS) and (state is None or isinstance(state, RunState)):
        run = run_fold.apply(state, record)
        return run, f"{RUNS}{run.run_id}"
    if track.startswith(DATASETS) and (state is None or isinstance(state, DatasetState)):
        dataset = dataset_state.apply(state, record)
        return dataset, f"{DATASETS}{dataset.declared.dataset}"
    if track.startswith(POOLS) and (state is None or isinstance(state, PoolState)):
        pool = pool_state.apply(state, record)
        return pool, pool_track(pool.pool)
    if track.startswith(CODES) and (state is None or isinstance(state, CodeState)):
        code = code_state.apply(state, record)
        return code, f"{CODES}{code.code_sha256}"
    if track.startswith(PROJECTS) and (state is None or isinstance(state, ProjectState)):
        project = project_state.apply(state, record)
        return project, f"{PROJECTS}{project.project}"
    if track.startswith(HISTORIES) and (state is None or isinstance(state, HistoryState)):
        history = history_state.apply(state, record)
        return history, f"{HISTORIES}{history.name}"
    if track.startswith(STUDIES) and (state is None or isinstance(state, StudyState)):
        study = study_state.apply(state, record)
        return study, f"{STUDIES}{study.declared.study}"
    if track == QUARANTINES_TRACK and (state is None or isinstance(state, QuarantineState)):
        return quarantine_state.apply(state, record), QUARANTINES_TRACK
    if track == MUTES_TRACK and (state is None or isinstance(state, MuteState)):
        return mute_state.apply(state, record), MUTES_TRACK
    if track == VIEWS_TRACK and (state is None or isinstance(state, ViewState)):
        return view_state.apply(state, record), VIEWS_TRACK
    raise RecordNewer(
        f"{track} is not the track of a run, a dataset, a pool, a code, a project, a history or a "
        "study, nor that of quarantines, mutes or views; this version knows these."
    )


def rows_of(
    track: str, after: TrackState, before: TrackState | None, records: Sequence[Record]
) -> Rows:
    """Return the rows that can differ from those of `before`; records: those between the two.

    Raises TrackBroken when none can be made.
    """
    with as_broken(f"No rows of the ledger can be made of {track}"):
        return {**_changed_rows(after, before), "texts": text_rows(track, records)}


def _changed_rows(after: TrackState, before: TrackState | None) -> Rows:
    if isinstance(after, RunState):
        return run_rows(after, before if isinstance(before, RunState) else None)
    if isinstance(after, PoolState):
        return pool_rows(after, before if isinstance(before, PoolState) else None)
    if isinstance(after, QuarantineState):
        return quarantine_rows(after, before if isinstance(before, QuarantineState) else None)
    if isinstance(after, MuteState):
        return mute_rows(after, before if isinstance(before, MuteState) else None)
    if isinstance(after, CodeState):
        return code_rows(after, before if isinstance(before, CodeState) else None)
    if isinstance(after, ProjectState):
        return project_rows(after, before if isinstance(before, ProjectState) else None)
    if isinstance(after, HistoryState | ViewState):
        return {}  # rows of a history are those of its runs; who reads views reads their track
    if isinstance(after, StudyState):
        return study_rows(after, before if isinstance(before, StudyState) else None)
    return dataset_rows(after, before if isinstance(before, DatasetState) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A table's rows that are of one track: those with `owner` in `column`; all where it is None.

    is_prefix: those whose value in it begins with `owner`.
    """

    table: str
    key: tuple[str, ...]
    column: str | None
    owner: str
    is_prefix: bool = False


def owned_rows(track: str) -> Iterator[Owned]:
    """Yield which rows of the ledger are the track's."""
    for kind, tables in TABLES.items():
        if track == kind or (kind.endswith("/") and track.startswith(kind)):
            name = pool_named(track) if kind == POOLS else track.removeprefix(kind)
            for table, facts in tables.items():
                yield Owned(table=table, key=key_of(facts), column=_OWNERS.get(kind), owner=name)
    if track.startswith(HISTORIES):
        for table, facts in TABLES[RUNS].items():
            name = f"{track.removeprefix(HISTORIES)}."
            yield Owned(table=table, key=key_of(facts), column="run_id", owner=name, is_prefix=True)
    for table, facts in OF_EVERY_TRACK.items():
        yield Owned(table=table, key=key_of(facts), column="track", owner=track)


# --- the rows of each kind of track ---------------------------------------------------------------


T = TypeVar("T")
State = TypeVar("State")

Rows = Mapping[str, Sequence[Row]]


def run_rows(state: RunState, before: RunState | None = None) -> Rows:
    """Return the rows of a run's track; `before` is an earlier state of it, already taken in."""
    run_id = state.run_id
    moved = _new(lambda each: each.attempts, state, before)
    notes = [
        *(NoteView(run_id=run_id, note=each) for each in _new(lambda s: s.notes, state, before)),
        *(NoteView(run_id=run_id, note=each) for each in _new(lambda s: s.alerts, state, before)),
    ]
    promotions = (
        PromotionView(run_id=run_id, body=each.body, seq=each.seq, at=each.at)
        for each in _new(lambda s: s.promotions, state, before)
    )
    evals = (eval_view(state, each) for each in _new(lambda s: s.evals, state, before))
    return {
        "training_runs": [row(RUN, run_view(state))],
        "training_attempts": _rows(ATTEMPT, _new(attempt_views, state, before)),
        **accounting_rows(state, before),
        "attempt_nodes": _rows(ATTEMPT_NODE, (v for a in moved for v in node_views(run_id, a))),
        "attempt_resumes": _rows(
            ATTEMPT_RESUME, (v for a in moved for v in resume_views(run_id, a))
        ),
        "checkpoints": _rows(CHECKPOINT, _new(lambda s: s.checkpoints, state, before)),
        "evals": _rows(EVAL, evals),
        "promotions": _rows(PROMOTION, promotions),
        "notes": _rows(NOTE, notes),
    }


def accounting_rows(state: RunState, before: RunState | None = None) -> Rows:
    """Return the narrow rows that a run's time is accounted from; `before`: as of `run_rows`."""
    time = timeline(state)
    known = None if before is None else timeline(before)
    runs = [row(RUN_TIME, TimedRun(declared=state.declared, time=time))]
    if known is not None and before is not None:
        old = row(RUN_TIME, TimedRun(declared=before.declared, time=known))
        runs = [each for each in runs if each != old]
    attempts = _new(lambda each: each.attempts, time, known)
    readings = time.readings[len(known.readings) if known else 0 :]
    return {
        "run_facts": runs,
        "attempt_facts": _rows(
            ATTEMPT_TIME, (TimedAttempt(run_id=time.run_id, time=each) for each in attempts)
        ),
        "attempt_readings": _rows(
            READING, (TimedReading(run_id=time.run_id, reading=each) for each in readings)
        ),
    }


def dataset_rows(state: DatasetState, before: DatasetState | None = None) -> Rows:
    """Return the rows of a dataset's track; `before` is an earlier state of it, taken in already."""
    return {
        "datasets": [row(DATASET, state)],
        "snapshots": _rows(SNAPSHOT, _new(lambda each: each.snapshots, state, before)),
    }


def pool_rows(state: PoolState, before: PoolState | None = None) -> Rows:
    """Return the rows of a pool's track; `before` is an earlier state of it, already taken in."""
    return {
        "node_strikes": _rows(NODE_STRIKE, _new(_strikes, state, before)),
        "node_quarantines": _rows(NODE_QUARANTINE, _new(_quarantines, state, before)),
    }


def quarantine_rows(state: QuarantineState, before: QuarantineState | None = None) -> Rows:
    """Return the rows of the track of quarantines; `before` is an earlier state, taken in already."""
    return {
        "source_quarantines": _rows(
            SOURCE_QUARANTINE, _new(lambda each: each.quarantines, state, before)
        )
    }


def code_rows(state: CodeState, before: CodeState | None = None) -> Rows:
    """Return the rows of a code's track; `before` is an earlier state, taken in already."""
    return {"certificates": _rows(CERTIFICATE, _new(lambda each: each.certificates, state, before))}


def project_rows(state: ProjectState, before: ProjectState | None = None) -> Rows:
    """Return the rows of a project's track; `before` is an earlier state, taken in already."""
    return {"project_versions": _rows(PROJECT_VERSION, _new(version_views, state, before))}


def study_rows(state: StudyState, before: StudyState | None = None) -> Rows:
    """Return the rows of a study's track; `before` is an earlier state, taken in already."""
    known = () if before is None else before.trials
    moved = [t for t in state.trials if t.number >= len(known) or t is not known[t.number]]
    return {
        "studies": [row(STUDY, state)],
        "trials": _rows(TRIAL, rung_views(replace(state, trials=tuple(moved)))),
    }


def mute_rows(state: MuteState, before: MuteState | None = None) -> Rows:
    """Return the rows of the track of mutes; `before` is an earlier state, taken in already."""
    return {"mutes": _rows(MUTE, _new(lambda each: each.mutes, state, before))}


def _strikes(state: PoolState) -> list[Strike]:
    found = [strike for node in (*state.nodes, *state.devices) for strike in node.strikes]
    return sorted(found, key=lambda strike: strike.seq)


def _quarantines(state: PoolState) -> list[Quarantine]:
    found = [
        quarantine for node in (*state.nodes, *state.devices) for quarantine in node.quarantines
    ]
    return sorted(found, key=lambda quarantine: quarantine.seq)


def _rows(facts: tuple[Fact[T], ...], subjects: Iterable[T]) -> list[Row]:
    return [row(facts, each) for each in subjects]


def _new(items: Callable[[State], Sequence[T]], now: State, before: State | None) -> list[T]:
    """Return the items that are new or differ; those of both states grow at the end only."""
    found, known = items(now), items(before) if before is not None else ()
    grown = list(found[len(known) :])
    return [new for new, old in zip(found, known, strict=False) if new != old] + grown
