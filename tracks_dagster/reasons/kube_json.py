"""Reads the Kubernetes API's JSON, of which no field is relied on: another shape is an empty one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from tracks_dagster.track.records import Json, format_time, parse_time


def mapping(value: Json) -> Mapping[str, Json]:
    """Return an object as it is, anything else as an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Json) -> list[Mapping[str, Json]]:
    """Return the objects of a list; an empty list for anything else."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def text(value: Json) -> str:
    """Return a value as text, nothing as an empty one."""
    return "" if value is None else str(value)


def time_text(value: Json) -> str | None:
    """Return Kubernetes' time in the form of our records; None for anything that is not a time."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    return format_time(at if at.tzinfo else at.replace(tzinfo=UTC))


def time_of(value: Json) -> datetime | None:
    """Return Kubernetes' time; None for anything that is not a time."""
    at = time_text(value)
    return None if at is None else parse_time(at)


def version_order(version: str) -> tuple[int, str]:
    """Return what sorts resource versions as they came: numbers without leading zeros."""
    return len(version), version
