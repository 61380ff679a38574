"""Reads a run's track up to its first break, for explanations; shows records as they are stored.

A decision must not pass a break: it uses `Tracks`, which raises TrackBroken. An explanation describes
what is before the break. A track has no witness for its own last record; a ledger, where
there is one, remembers the sha256 of the last record that it took in.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.recovery.effects.fsck_tracks import (
    RESTORE,
    UPGRADE,
    Finding,
    FindingKind,
    check_cursor,
    read_track,
)
from tracks_dagster.review.explain.explanation import Break
from tracks_dagster.review.narrate import sentence
from tracks_dagster.track.addressed import damage_of
from tracks_dagster.track.errors import RecordNewer, TrackBroken, UnknownRun
from tracks_dagster.track.json_text import EVIDENCE_BYTES_MAX, parse_json
from tracks_dagster.track.names import run_track
from tracks_dagster.track.reasons import ReasonFamily, TerminationReason
from tracks_dagster.track.records import Json, Record, format_time
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.run_state import RunState

_SQL = Path(__file__).parents[1] / "sql"
COUNT_SQL, PICK_SQL = _SQL / "random_failed_count.sql", _SQL / "random_failed_pick.sql"
SEED_MAX = 2**32
AS_MEANT = tuple(r.value for r in TerminationReason if r.family is ReasonFamily.AS_MEANT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRead:
    """A run up to the break of its track. records: those that `state` is the fold of."""

    state: RunState
    records: Sequence[Record]
    broken: Break | None = None


def read_run(tracks: Tracks, run_id: str, *, witness: Ledger | None = None) -> RunRead:
    """Read the run's track now, up to the first broken record.

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
        found = list(check_cursor(name, records, cursor))
        at = min(cursor.seq, len(records)) if cursor is not None else 0
        broken, records = _first(found, at=at), records[:at] if found else records
    state, good, objection = _fold(records)
    broken = objection or broken
    if state is None:
        why = f"{broken.meaning} {broken.to_do}" if broken else ""
        raise TrackBroken(f"Nothing of {run_id} can be explained: {why}")
    return RunRead(state=state, records=good, broken=broken)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLine:
    """One record, with its sentence and its body as stored."""

    seq: int
    at: str
    kind: str
    attempt_id: int | None
    sentence: str
    body: Json

    @property
    def text(self) -> str:
        """The record in one line."""
        return f"record {self.seq} {self.at[:19]}Z {self.kind}: {self.sentence}"


def record_lines(
    tracks: Tracks, run_id: str, ledger: Ledger | None = None
) -> tuple[list[RecordLine], Break | None]:
    """Return every record before a break, and the break; raises as `read_run`."""
    read = read_run(tracks, run_id, witness=ledger)
    lines = [
        RecordLine(
            seq=record.seq,
            at=format_time(record.at),
            kind=record.kind.value,
            attempt_id=record.attempt_id,
            sentence=sentence(record),
            body=dict(record.body),
        )
        for record in read.records
    ]
    return lines, read.broken


def evidence_text(tracks: Tracks, run_id: str, attempt_id: int | None) -> tuple[str, str | None]:
    """Return the stored evidence of an attempt as indented JSON, and what is wrong with it.

    Raises UnknownRun where there is none.
    """
    state = read_run(tracks, run_id).state
    attempt = None if attempt_id is None else state.attempt(attempt_id)
    if attempt is None or attempt.ended is None:
        raise UnknownRun(
            f"{run_id} has no attempt {attempt_id} that has ended; `tracks explain {run_id}` lists "
            "those that there are."
        )
    data = tracks.store.get(attempt.ended.evidence_key, EVIDENCE_BYTES_MAX)
    if data is None:
        raise UnknownRun(f"The evidence {attempt.ended.evidence_key} is not in the store any more.")
    wrong = damage_of(data, attempt.ended.evidence_sha256)
    problem = None if wrong is None else f"The evidence was changed after the verdict: it {wrong}."
    try:
        return json.dumps(
            parse_json(data, bytes_max=EVIDENCE_BYTES_MAX), indent=2, ensure_ascii=False
        ), problem
    except ValueError:
        return data.decode("utf-8", errors="replace"), problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """The attempt that was picked, of how many, by which seed: the same seed picks it again."""

    run_id: str
    attempt_id: int
    count: int
    seed: int


def pick_failed(ledger: Ledger, *, now: datetime, last_s: float, seed: int) -> Picked | None:
    """Pick one attempt that failed in the last `last_s` seconds; None when none did, by two queries.

    Failed: ended for any reason outside the family "ended as meant". Raises LedgerError.
    """
    inside: dict[str, Json] = {
        "since": format_time(now - timedelta(seconds=last_s)),
        "until": format_time(now),
        **{f"meant_{index}": reason for index, reason in enumerate(AS_MEANT)},
    }
    (counted,) = ledger.query(_sql(COUNT_SQL), inside)
    count = int(counted["failed_count"])
    if count == 0:
        return None
    offset = random.Random(seed).randrange(count)
    found = ledger.query(_sql(PICK_SQL), {**inside, "skipped": offset})
    if not found:  # another process refilled the ledger meanwhile
        return None
    row = found[0]
    return Picked(run_id=row["run_id"], attempt_id=row["attempt_id"], count=count, seed=seed)


def _sql(path: Path) -> str:
    """Return a statement with the reasons that are not a failure in their places."""
    names = ", ".join(f":meant_{index}" for index in range(len(AS_MEANT)))
    return path.read_text(encoding="utf-8").replace(":meant", names)
