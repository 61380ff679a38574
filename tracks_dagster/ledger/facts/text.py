"""What may be known of a record that says something in words: what `tracks search` looks in."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tracks_dagster.ledger.facts.fact import Absence, Fact, Type


@dataclass(frozen=True, slots=True, kw_only=True)
class TextView:
    """The words of one record, and whom they concern."""

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
    Fact("text", Type.TEXT, lambda v: v.text, "what it says"),
    Fact("words", Type.TEXT, lambda v: v.words,
         "of the text, as they are searched: lower case, a space between"),
    Fact("said_at", Type.TIME, lambda v: v.said_at, "recorded"),
)
# fmt: on
