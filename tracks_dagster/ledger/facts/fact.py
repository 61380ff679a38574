"""A fact: one entry of a table, from which everything that shows it follows.

From the tables of this folder follow the ledger's columns, `explain --json`, what Dagster's UI shows,
the completeness of a receipt, and the reference of columns in docs/ledger.md. A new fact is a field
of a record's body and one entry here. Prose is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any, Generic, TypeVar

from tracks_dagster.ledger.ports import Row
from tracks_dagster.track.records import Json, canonical_json, format_time

COUNTED_FROM = (
    9  # the first PROJECTION (ledger/effects/database/schema.py); migrations counted to 8
)

# What facts are known of: a view of an attempt, for example.
Subject = TypeVar("Subject", contravariant=True)


class Type(StrEnum):
    """What a value is. The second part is stored as JSON, in a column that ends in `_json`."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"
    TRUTH = "boolean"
    TIME = "time"

    NAMES = "names"  # a list of short texts
    LINES = "lines"  # a list of sentences
    ROWS = "rows"  # a list of mappings with the same keys
    MAPPING = "mapping"

    @property
    def is_json(self) -> bool:
        """Whether it is more than one value."""
        return self in (Type.NAMES, Type.LINES, Type.ROWS, Type.MAPPING)


@dataclass(frozen=True, slots=True)
class Absence(Generic[Subject]):
    """Why a fact may rightly be unknown. name: in JSON; holds: whether that is so of a subject."""

    name: str
    sentence: str
    holds: Callable[[Subject], bool]


@dataclass(frozen=True, slots=True, eq=False)  # so that a table of them is looked up by identity
class Fact(Generic[Subject]):
    """One thing that may be known of a subject.

    name: of its column, and its key in JSON. of: computes it; None where it is not known.
    meaning: what it is, with its unit where the name has none.
    absent: why it may be unknown, the first that holds counts; a column without is never null.
    instead: what is there while it is unknown, in words; the column is never null then.
    is_known: asked instead of both where more than the value decides.
    group: of `explain --json`; json: its path there where that is not `group.name`.
    has_column: False for what SQL does not show.
    ui: its name in Dagster's UI, `group/name`; empty where the UI does not show it.
    diff: its name in `tracks diff`, `part/name`; empty where that does not compare it.
    label: its name as a field of the receipt, whose completeness is judged; empty for what is not.
    since: the PROJECTION in which it first was; COUNTED_FROM also for what is older.
    """

    name: str
    type: Type
    of: Callable[[Subject], Any]
    meaning: str
    _: KW_ONLY
    absent: tuple[Absence[Subject], ...] = ()
    instead: str = ""
    is_known: Callable[[Subject], bool] | None = None
    is_key: bool = False
    has_column: bool = True
    group: str = ""
    json: str = ""
    ui: str = ""
    diff: str = ""
    label: str = ""
    since: int = COUNTED_FROM

    @property
    def column(self) -> str:
        """The name of its column."""
        return f"{self.name}_json" if self.type.is_json else self.name

    @property
    def is_nullable(self) -> bool:
        """Whether its column may be null."""
        return bool(self.absent) and not self.instead

    @property
    def json_path(self) -> str:
        """Where `explain --json` has it, with dots."""
        return self.json or ".".join(filter(None, (self.group, self.name)))

    def absence(self, subject: Subject) -> Absence[Any] | None:
        """Return why it is unknown; None where it is known, or nobody knows why it is not."""
        return next((each for each in self.absent if each.holds(subject)), None)

    def is_recorded(self, subject: Subject) -> bool:
        """Return whether it is known of this subject."""
        if self.is_known is not None:
            return self.is_known(subject)
        if self.instead:
            return self.absence(subject) is None
        return self.of(subject) is not None


def row(facts: tuple[Fact[Subject], ...], subject: Subject) -> Row:
    """Return the row of a table whose columns are these facts, the same on every database."""
    return {
        column: read(subject) if store is None else store(read(subject))
        for column, read, store in _columns(facts)
    }


@cache
def _columns(
    facts: tuple[Fact[Any], ...],
) -> list[tuple[str, Callable[[Any], Any], Callable[[Any], Json | datetime] | None]]:
    """Return each column with what reads its value, and what stores it where it is not stored as it is.

    Made once, asked for every row."""
    return [(each.column, each.of, _store_of(each.type)) for each in facts if each.has_column]


def _store_of(type_: Type) -> Callable[[Any], Json | datetime] | None:
    if type_.is_json:
        return _stored_json
    return _stored if type_ is Type.TEXT else None


def _stored_json(value: Any) -> Json:
    """Return canonical JSON as text: equal values have equal text."""
    return None if value is None else canonical_json(value).decode()


def _stored(value: Json | datetime) -> Json | datetime:
    """Return the value as a column holds it. NUL becomes U+FFFD: Postgres cannot store it."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def nested(facts: Sequence[Fact[Subject]], subject: Subject) -> dict[str, Json]:
    """Return the facts as `explain --json` has them, in groups."""
    found: dict[str, Json] = {}
    for each in facts:
        *groups, name = each.json_path.split(".")
        inner = found
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = as_json(each.of(subject))
    return found


def shown(facts: Sequence[Fact[Subject]], subject: Subject) -> dict[str, Json]:
    """Return what Dagster's UI shows of these facts, as JSON."""
    known = (each for each in facts if each.ui and each.is_recorded(subject))
    return {each.ui: as_json(each.of(subject)) for each in known}


def compared(facts: Sequence[Fact[Subject]], subject: Subject, part: str) -> dict[str, Json]:
    """Return what `tracks diff` compares of these facts in one of its parts; an empty list is None."""
    found = ((each.diff.partition("/"), as_json(each.of(subject))) for each in facts)
    return {name: None if value == [] else value for (of, _, name), value in found if of == part}


def as_json(value: Any) -> Json:
    """Return a fact's value as JSON."""
    if isinstance(value, datetime):
        return format_time(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
