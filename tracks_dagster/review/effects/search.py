"""Full-text search of records by the ledger, and on demand of the stored evidence.

Evidence (the tails of logs, last words, the kernel's lines) is not in records, so the ledger does not
have it. It is read from the store, of the newest ended attempts first, a bounded number of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.texts import Question, excerpt
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.errors import ObjectLost
from tracks_dagster.track.json_text import EVIDENCE_BYTES_MAX, parse_json
from tracks_dagster.track.names import POOLS, RUNS, attempt_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, format_time

HITS_MAX = 1000  # of one answer
EVIDENCE_READ_MAX = 200  # objects that one deep search reads, at most 64 KiB of log a rank each
EVIDENCE = "evidence"  # the kind of a hit that is not a record


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Where to search. since: nothing older; run_id, attempt_id: None for all; limit: of hits."""

    since: datetime | None = None
    run_id: str | None = None
    attempt_id: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A text that matches. seq: of the record, None for evidence, which has none.

    where: the track, or the evidence's key; excerpt: the text around the first word, on one line;
    more: the command that shows the rest.
    """

    at: str
    where: str
    seq: int | None
    kind: str
    run_id: str | None
    attempt_id: int | None
    author: str
    excerpt: str
    more: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search gave, the newest first. is_cut: there may be more than the limit.

    evidence_read, evidence_left: attempts whose evidence was read, and those beyond the bound; both
    None where it was not asked for. unread: evidence that is missing or no JSON.
    """

    hits: tuple[Hit, ...]
    is_cut: bool
    evidence_read: int | None = None
    evidence_left: int | None = None
    unread: tuple[str, ...] = ()


def find_runs(ledger: Ledger, text: str, *, runs_max: int) -> list[dict[str, Json]]:
    """Return runs whose id, name, tags or declaration holds the text: first those that are called so,
    then the newest."""
    words = text.lower()
    for sign in "!%_":
        words = words.replace(sign, f"!{sign}")
    sql = Path(__file__).with_name("sql").joinpath("find_runs.sql").read_text(encoding="utf-8")
    return ledger.query(sql, {"exact": text.lower(), "pattern": f"%{words}%", "runs_max": runs_max})


def search(ledger: Ledger, question: Question, scope: Scope) -> Found:
    """Return the records whose text matches `question`."""
    rows = ledger.search(
        question.phrases,
        since=scope.since,
        run_id=scope.run_id,
        attempt_id=scope.attempt_id,
        limit=scope.limit + 1,
    )
    hits = tuple(_hit(row, question) for row in rows[: scope.limit])
    return Found(hits=hits, is_cut=len(rows) > scope.limit)


def search_deep(ledger: Ledger, store: ObjectStore, question: Question, scope: Scope) -> Found:
    """Search as `search`, and the stored evidence of ended attempts too."""
    found = search(ledger, question, scope)
    rows = ledger.query(*_ended_attempts(scope))
    hits, unread = list(found.hits), []
    for row in rows[:EVIDENCE_READ_MAX]:
        texts = _texts_in(store, row["evidence_key"])
        if texts is None:
            unread.append(row["evidence_key"])
        elif question.is_met_by("\n".join(texts)):
            hits.append(_evidence_hit(row, _most_telling(texts, question), question))
    hits.sort(key=lambda hit: hit.at, reverse=True)
    return Found(
        hits=tuple(hits[: scope.limit]),
        is_cut=found.is_cut or len(hits) > scope.limit,
        evidence_read=min(len(rows), EVIDENCE_READ_MAX) - len(unread),
        evidence_left=_left(ledger, scope) if len(rows) > EVIDENCE_READ_MAX else 0,
        unread=tuple(unread),
    )


_ENDED = (
    "from training_attempts where evidence_key is not null "
    "and (:since = '' or ended_at >= :since_at) and (:run_id = '' or run_id = :run_id) "
    "and (:attempt_id = 0 or attempt_id = :attempt_id)"
)


def _ended_attempts(scope: Scope) -> tuple[str, dict[str, Json]]:
    sql = (
        f"select run_id, attempt_id, ended_at, closed_by, evidence_key {_ENDED} "
        "order by ended_at desc, run_id, attempt_id desc limit :evidence_max"
    )
    return sql, {**_scoped(scope), "evidence_max": EVIDENCE_READ_MAX + 1}


def _left(ledger: Ledger, scope: Scope) -> int:
    [row] = ledger.query(f"select count(*) as attempts {_ENDED}", _scoped(scope))
    return int(row["attempts"]) - EVIDENCE_READ_MAX


def _scoped(scope: Scope) -> dict[str, Json]:
    since = "" if scope.since is None else format_time(scope.since)
    return {
        "since": since,
        "since_at": since or "0001-01-01T00:00:00.000000Z",
        "run_id": scope.run_id or "",
        "attempt_id": scope.attempt_id or 0,
    }


def _hit(row: dict[str, Json], question: Question) -> Hit:
    return Hit(
        at=format_time(row["said_at"]),
        where=row["track"],
        seq=row["seq"],
        kind=row["kind"],
        run_id=row["run_id"],
        attempt_id=row["attempt_id"],
        author=row["author"],
        excerpt=excerpt(row["text"], question),
        more=_more(row["track"], row["run_id"], row["attempt_id"], row["seq"]),
    )


def _more(track: str, run_id: str | None, attempt_id: int | None, seq: int) -> str:
    if track.startswith(RUNS) and run_id is not None:
        named = run_id if attempt_id is None else attempt_key(run_id, attempt_id)
        return f"tracks explain {named}"
    if track.startswith(POOLS):
        return "tracks pool"
    return f"tracks sql \"select text from texts where track = '{track}' and seq = {seq}\""


def _evidence_hit(row: dict[str, Json], text: str, question: Question) -> Hit:
    return Hit(
        at=format_time(row["ended_at"]),
        where=row["evidence_key"],
        seq=None,
        kind=EVIDENCE,
        run_id=row["run_id"],
        attempt_id=row["attempt_id"],
        author=row["closed_by"] or "",
        excerpt=excerpt(text, question),
        more=f"tracks explain {attempt_key(row['run_id'], row['attempt_id'])}",
    )


def _most_telling(texts: list[str], question: Question) -> str:
    """Return the text in which most of the question occurs, the longest of several."""
    alone = [Question(phrases=(phrase,)) for phrase in question.phrases]
    return max(texts, key=lambda text: (sum(q.is_met_by(text) for q in alone), len(text)))


def _texts_in(store: ObjectStore, key: str) -> list[str] | None:
    """Return every text of stored evidence, in order; None where it is missing, changed or no JSON."""
    try:
        data = read_addressed(store, key, bytes_max=EVIDENCE_BYTES_MAX)
        return list(_strings(parse_json(data, bytes_max=EVIDENCE_BYTES_MAX)))
    except (ObjectLost, ValueError):
        return None


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)
