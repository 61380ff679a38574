"""The words of records: the rows that `tracks search` looks in, and what a search asks for. Pure.

One row for each record with words in it, made of that record alone. Evidence is not in records, and
not here: reading every evidence object would make a reindex many times slower.

A word is a run of letters and digits, in lower case; everything between two words is a gap, so
`CUDA_ERROR` is the words `cuda error`. The databases index these words and split nothing themselves.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.ledger.facts.fact import Absence, Fact, Type, row
from tracks_dagster.ledger.ports import Row
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import RUNS
from tracks_dagster.track.records import Json, Kind, Record

TEXT_CHARACTERS_MAX = 4000  # of one record; the root of a failure comes first
WORD_CHARACTERS_MAX = 64  # longer words are cut, in texts and in questions: indexes bound an entry
PHRASES_MAX = 32  # of one question
EXCERPT_CHARACTERS = 240  # of a text, around the first word that was asked for
_GAPS = re.compile(r"[\W_]+")
_TERMS = re.compile(r'"([^"]*)"?|(\S+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class TextView:
    """The words of one record, and what they concern."""

    track: str
    seq: int
    kind: str
    run_id: str | None
    attempt_id: int | None
    author: str
    text: str
    words: str
    said_at: datetime


OF_NO_RUN: Absence[TextView] = Absence(
    "of_no_run", "it concerns no run", lambda v: v.run_id is None
)
OF_NO_ATTEMPT: Absence[TextView] = Absence(
    "of_no_attempt", "it concerns no single attempt", lambda v: v.attempt_id is None
)

# A table, to be read by the line:
# fmt: off
TEXT: tuple[Fact[TextView], ...] = (
    Fact("track", Type.TEXT, lambda v: v.track, "of the record", is_key=True),
    Fact("seq", Type.INTEGER, lambda v: v.seq, "of the record", is_key=True),
    Fact("kind", Type.TEXT, lambda v: v.kind, "of the record"),
    Fact("run_id", Type.TEXT, lambda v: v.run_id, "the training run", absent=(OF_NO_RUN,)),
    Fact("attempt_id", Type.INTEGER, lambda v: v.attempt_id, "the attempt",
         absent=(OF_NO_ATTEMPT,)),
    Fact("author", Type.TEXT, lambda v: v.author,
         "a person, a sensor or a rule; empty where the record names none"),
    Fact("text", Type.TEXT, lambda v: v.text, "its words"),
    Fact("words", Type.TEXT, lambda v: v.words,
         "of the text, as they are searched: lower case, a space between"),
    Fact("said_at", Type.TIME, lambda v: v.said_at, "recorded"),
)
# fmt: on


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
    """Return the row of one record; None where it has no words."""
    described = _describe(record)
    if not described:
        return None
    body = record.body
    run_id = track.removeprefix(RUNS) if track.startswith(RUNS) else body.get("run_id")
    attempt_id = record.attempt_id if record.attempt_id is not None else body.get("attempt_id")
    text = described[:TEXT_CHARACTERS_MAX]
    view = TextView(
        track=track,
        seq=record.seq,
        kind=record.kind.value,
        run_id=run_id if isinstance(run_id, str) else None,
        attempt_id=attempt_id if isinstance(attempt_id, int) else None,
        author=next(
            (body[name] for name in _AUTHORS if name in body and _is_words(body[name])), ""
        ),
        text=text,
        words=" ".join(words_of(text)),
        said_at=record.at,
    )
    return row(TEXT, view)


def _describe(record: Record) -> str:
    """Return all words of a record, a line each; a reason's name comes before its words."""
    if record.kind in _ROUTINE:
        return ""
    body = record.body
    parts = [part for name in _WORDS if name in body for part in _parts(body[name])]
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
    changed = f"{change.get('key')} {change.get('before')} → {change.get('after')}"
    return f"{changed}: {change['why']}" if _is_words(change.get("why")) else changed


def _is_words(value: Json) -> bool:
    return isinstance(value, str) and bool(value.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All phrases must occur in a text. A phrase: words side by side, one space between."""

    phrases: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Every word that must occur, once each, in the order asked."""
        return tuple(dict.fromkeys(word for phrase in self.phrases for word in phrase.split(" ")))

    def is_met_by(self, text: str) -> bool:
        """Whether every phrase occurs in `text`: what the ledger's indexes answer."""
        padded = f" {' '.join(words_of(text))} "
        return all(f" {phrase} " in padded for phrase in self.phrases)


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of `text` in order, as they are indexed."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return tuple(word[:WORD_CHARACTERS_MAX] for word in _GAPS.split(folded) if word)


def parse_question(text: str) -> Question:
    """Return what `text` asks for: words that must all occur, "words in quotes" side by side.

    `a_b` and `a-b` are phrases too. Raises InvalidInput where there is no word in it, or too many.
    """
    terms = (quoted or bare for quoted, bare in _TERMS.findall(text))
    phrases = tuple(dict.fromkeys(" ".join(words) for term in terms if (words := words_of(term))))
    if not phrases:
        raise InvalidInput(
            f'{text!r} holds no word to search for; write words, which must all occur, or a "phrase '
            'in quotes", for example: tracks search \'nccl "timed out"\'.'
        )
    if len(phrases) > PHRASES_MAX:
        raise InvalidInput(
            f"{len(phrases)} words are too many; at most {PHRASES_MAX} are searched."
        )
    return Question(phrases=phrases)


def excerpt(text: str, question: Question, *, characters: int = EXCERPT_CHARACTERS) -> str:
    """Return `text` on one line, cut to about `characters` around the first word of the question."""
    line = " ".join(text.split())
    if len(line) <= characters:
        return line
    folded = line.casefold()
    found = [at for word in question.words if (at := folded.find(word)) >= 0]
    first = min(found, default=0)
    start = max(0, min(first - characters // 4, len(line) - characters))
    cut = line[start : start + characters]
    return f"{'…' if start else ''}{cut}{'…' if start + characters < len(line) else ''}"
