"""What an explanation rests on, to be looked up: every record of a run, and an attempt's evidence."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tracks_dagster.attempts.effects.kept_logs import CHANGED
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.effects.explain.reading import Break, read_run
from tracks_dagster.review.effects.narrate import sentence
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.records import Json, format_time, sha256_hex


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
    """Return every record that holds, and where they stop holding; raises as `read_run`."""
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
    data = tracks.store.get(attempt.ended.evidence_key)
    if data is None:
        raise UnknownRun(f"The evidence {attempt.ended.evidence_key} is not in the store any more.")
    problem = None if sha256_hex(data) == attempt.ended.evidence_sha256 else CHANGED
    try:
        return json.dumps(json.loads(data), indent=2, ensure_ascii=False), problem
    except ValueError:
        return data.decode("utf-8", errors="replace"), problem
