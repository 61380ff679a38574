"""A track's state and its rows of the ledger, by the track's name.

The records of a track may only concern what its name says: a track that claimed another's name would
overwrite that one's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracks_dagster.ledger.facts.tables import OF_EVERY_TRACK, TABLES, key_of
from tracks_dagster.ledger.projection import (
    Rows,
    code_rows,
    dataset_rows,
    mute_rows,
    pool_rows,
    quarantine_rows,
    run_rows,
)
from tracks_dagster.ledger.texts import text_rows
from tracks_dagster.track.errors import RecordNewer, TrackBroken
from tracks_dagster.track.records import Record
from tracks_dagster.track.states import (
    code_state,
    dataset_state,
    mute_state,
    pool_state,
    quarantine_state,
    run_fold,
)
from tracks_dagster.track.states.code_state import CodeState
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.mute_state import MuteState
from tracks_dagster.track.states.pool_state import PoolState
from tracks_dagster.track.states.quarantine_state import QuarantineState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import (
    CODES,
    DATASETS,
    MUTES_TRACK,
    POOLS,
    QUARANTINES_TRACK,
    RUNS,
    pool_named,
    pool_track,
)

TrackState = RunState | DatasetState | PoolState | QuarantineState | MuteState | CodeState

# The column that names the track.
_OWNERS = {CODES: "code_sha256", DATASETS: "dataset", POOLS: "pool", RUNS: "run_id"}


def apply(track: str, state: TrackState | None, record: Record) -> TrackState:
    """Return the state of `track` after one more record.

    Raises TrackBroken for one that cannot come next, RecordNewer in a track of an unknown kind.
    """
    try:
        after, whose = _applied(track, state, record)
    except UNFORESEEN as error:
        raise TrackBroken(
            f"Record {record.seq} ({record.kind}) of {track} cannot be taken in, for a reason that "
            f"nobody foresaw ({type(error).__name__}: {error}); tell its authors."
        ) from error
    if whose != track:
        raise TrackBroken(
            f"Record {record.seq} ({record.kind}) of {track} says that it is of {whose}."
        )
    return after


# What the code of a fold or a projection raises at a value that nobody thought of.
UNFORESEEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


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
    if track == QUARANTINES_TRACK and (state is None or isinstance(state, QuarantineState)):
        return quarantine_state.apply(state, record), QUARANTINES_TRACK
    if track == MUTES_TRACK and (state is None or isinstance(state, MuteState)):
        return mute_state.apply(state, record), MUTES_TRACK
    raise RecordNewer(
        f"{track} is no track of a run, a dataset, a pool or a code, nor that of quarantines or mutes; "
        "this version knows these."
    )


def rows_of(
    track: str, after: TrackState, before: TrackState | None, records: Sequence[Record]
) -> Rows:
    """Return the rows that can differ from those of `before`; records: those between the two.

    Raises TrackBroken when none can be made.
    """
    try:
        return {**_rows(after, before), "texts": text_rows(track, records)}
    except UNFORESEEN as error:
        raise TrackBroken(
            f"No rows of the ledger can be made of {track}, for a reason that nobody foresaw "
            f"({type(error).__name__}: {error}); tell its authors."
        ) from error


def _rows(after: TrackState, before: TrackState | None) -> Rows:
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
    return dataset_rows(after, before if isinstance(before, DatasetState) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A table's rows that are of one track: those with `owner` in `column`; all where it is None."""

    table: str
    key: tuple[str, ...]
    column: str | None
    owner: str


def owned_rows(track: str) -> Iterator[Owned]:
    """Yield which rows of the ledger are the track's."""
    for kind, tables in TABLES.items():
        if track == kind or (kind.endswith("/") and track.startswith(kind)):
            name = pool_named(track) if kind == POOLS else track.removeprefix(kind)
            for table, facts in tables.items():
                yield Owned(table=table, key=key_of(facts), column=_OWNERS.get(kind), owner=name)
    for table, facts in OF_EVERY_TRACK.items():
        yield Owned(table=table, key=key_of(facts), column="track", owner=track)
