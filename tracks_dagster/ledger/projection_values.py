"""How single values become what a ledger's column holds, the same on every database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from tracks_dagster.ledger.ports import Row
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Json, canonical_json, parse_time


def row_of(**columns: Json | datetime) -> Row:
    """Return a row of these columns. NUL in a text becomes U+FFFD: Postgres cannot store it."""
    return {name: _storable(value) for name, value in columns.items()}


def json_text(value: Mapping[str, Json] | Sequence[Json]) -> str:
    """Return canonical JSON as text: equal values have equal text."""
    return canonical_json(value).decode()


def time_of(text: str | None) -> datetime | None:
    """Return the time that a body holds as text.

    Raises TrackBroken for text that is no time.
    """
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        raise TrackBroken(f"A body holds {text!r} where a time has to be.") from error


def _storable(value: Json | datetime) -> Json | datetime:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
