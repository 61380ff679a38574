"""Read a run's track as far as it holds, and say where and why it stops.

Whoever decides must not go on past a break: they use `Tracks`, which raises TrackBroken. Whoever
explains tells what stands before it. A track has no witness for its own last record; a ledger, where
there is one, remembers the sha256 of the last record that it took in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.recovery.effects.fsck.findings import Finding, FindingKind
from tracks_dagster.recovery.effects.fsck.tracks import RESTORE, UPGRADE, check_cursor, read_track
from tracks_dagster.track.errors import RecordNewer, TrackBroken
from tracks_dagster.track.records import Record
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import run_track


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a track stops holding. seq: of the first record that cannot be believed.

    is_newer: it can be believed, and only a newer version can read it.
    """

    seq: int
    meaning: str
    to_do: str
    is_newer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRead:
    """A run as far as its track holds. records: those that `state` is the fold of."""

    state: RunState
    records: Sequence[Record]
    broken: Break | None = None


def read_run(tracks: Tracks, run_id: str, *, witness: Ledger | None = None) -> RunRead:
    """Return the run as its track tells it now, up to the first record that does not hold.

    witness: what may know of records that were there. Raises UnknownRun, and TrackBroken where not
    even the first record can be read.
    """
    name = run_track(run_id)
    cursor = witness.cursor(name) if witness is not None else None  # before the track, which grows
    records, findings = read_track(tracks.store, name, cursor)
    if not records and not findings:
        tracks.run(run_id)  # raises UnknownRun with the nearest names
    broken = _first(findings, at=len(records))
    if broken is None:
        told = list(check_cursor(name, records, cursor))
        at = min(cursor.seq, len(records)) if cursor is not None else 0
        broken, records = _first(told, at=at), records[:at] if told else records
    state, held, objection = _fold(records)
    broken = objection or broken
    if state is None:
        why = f"{broken.meaning} {broken.to_do}" if broken else ""
        raise TrackBroken(f"Nothing of {run_id} can be explained: {why}")
    return RunRead(state=state, records=held, broken=broken)


def _first(findings: Sequence[Finding], *, at: int) -> Break | None:
    if not findings:
        return None
    first = findings[0]
    is_newer = first.kind is FindingKind.RECORD_NEWER
    return Break(seq=at, meaning=first.meaning, to_do=first.to_do, is_newer=is_newer)


def _fold(records: Sequence[Record]) -> tuple[RunState | None, Sequence[Record], Break | None]:
    """Fold as far as the rules of a run allow; return the state, its records and the objection."""
    state: RunState | None = None
    for record in records:
        try:
            state = run_fold.apply(state, record)
        except RecordNewer as error:
            to_do = f"{UPGRADE}."
            broken = Break(seq=record.seq, meaning=str(error), to_do=to_do, is_newer=True)
            return state, records[: record.seq], broken
        except TrackBroken as error:
            broken = Break(
                seq=record.seq,
                meaning=f"{error} A writer broke the rules, or the record was edited.",
                to_do=f"{RESTORE}; do not retry the run before this is understood.",
            )
            return state, records[: record.seq], broken
    return state, records, None
