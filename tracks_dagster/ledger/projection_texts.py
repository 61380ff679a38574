"""From the records of a track to the rows that are searched: what people and machines said in words.

One row for each record that says something, made of that record alone. Evidence is not in records,
and not here: reading every evidence object would make a reindex many times slower.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracks_dagster.ledger.facts.fact import row
from tracks_dagster.ledger.facts.text import TEXT, TextView
from tracks_dagster.ledger.ports import Row
from tracks_dagster.ledger.searching import words_of
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.track.track import RUNS

TEXT_CHARACTERS_MAX = 4000  # of one record; the root of a failure stands at the beginning

# Where a body of any kind holds words, in the order in which they read best.
_WORDS = (
    *("intent", "description", "decision", "text", "why", "root_message", "message"),
    *("fallback_why", "lines", "what_to_do"),
)
_AUTHORS = ("by", "decided_by", "closed_by", "owner", "rule")

# What machines say all the time, the same words about every checkpoint.
_ROUTINE = frozenset(
    {
        Kind.CHECKPOINT_COMMITTED,
        Kind.CHECKPOINT_VERIFIED,
        Kind.CHECKPOINT_SUPERSEDED,
        Kind.CHECKPOINT_DELETED,
    }
)


def text_rows(track: str, records: Iterable[Record]) -> list[Row]:
    """Return the rows of `texts` that `records` of `track` give, in order."""
    return [row for record in records if (row := text_row(track, record)) is not None]


def text_row(track: str, record: Record) -> Row | None:
    """Return the row of one record; None where it says nothing in words."""
    said = _said(record)
    if not said:
        return None
    body = record.body
    run_id = track.removeprefix(RUNS) if track.startswith(RUNS) else body.get("run_id")
    attempt_id = record.attempt_id if record.attempt_id is not None else body.get("attempt_id")
    text = said[:TEXT_CHARACTERS_MAX]
    view = TextView(
        track=track,
        seq=record.seq,
        kind=record.kind.value,
        run_id=run_id if isinstance(run_id, str) else None,
        attempt_id=attempt_id if isinstance(attempt_id, int) else None,
        author=next((body[name] for name in _AUTHORS if _is_words(body.get(name))), ""),
        text=text,
        words=" ".join(words_of(text)),
        said_at=record.at,
    )
    return row(TEXT, view)


def _said(record: Record) -> str:
    """Return everything that a record says, a line each; a reason's name comes before its words."""
    if record.kind in _ROUTINE:
        return ""
    body = record.body
    parts = [part for name in _WORDS for part in _parts(body.get(name))]
    changes = body.get("remediation")
    if isinstance(changes, list):
        parts += [_change(each) for each in changes if isinstance(each, dict)]
    reason = body.get("reason")
    if parts and _is_words(reason):
        parts[0] = f"{reason}: {parts[0]}"
    return "\n".join(dict.fromkeys(parts))


def _parts(value: Json) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [each.strip() for each in values if _is_words(each)]


def _change(change: dict[str, Json]) -> str:
    """Return one change of the config in words: `lr 0.003 → 0.001: halve it`."""
    told = f"{change.get('key')} {change.get('before')} → {change.get('after')}"
    return f"{told}: {change['why']}" if _is_words(change.get("why")) else told


def _is_words(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())
