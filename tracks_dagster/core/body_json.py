"""Between a record's body and its JSON: the only way from one to the other.

A field that a newer version added is ignored when read; a field that is missing and has no default is
a TrackBroken. Works for any frozen dataclass of JSON scalars, mappings, tuples and dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from tracks_dagster.core.errors import TrackBroken
from tracks_dagster.core.records import Json, Record

Body = TypeVar("Body")


def to_json(body: Any) -> dict[str, Json]:
    """Return a body dataclass as JSON values, nested ones included."""
    return typing.cast(dict[str, Json], _plain(body))


def _plain(value: Any) -> Json:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def from_json(kind: type[Body], data: Json) -> Body:
    """Return the dataclass `kind` that `data` describes; unknown fields are ignored.

    Raises TrackBroken when a field without a default is missing or has another shape.
    """
    try:
        return typing.cast(Body, _typed(kind, data))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise TrackBroken(f"A body is no {kind.__name__}: {error}") from error


def body_of(kind: type[Body], record: Record) -> Body:
    """Return the body of `record`; raises TrackBroken naming the record when it is no `kind`."""
    try:
        return from_json(kind, record.body)
    except TrackBroken as error:
        raise TrackBroken(
            f"Record {record.seq} ({record.kind}) cannot be read; records before it still hold. {error}"
        ) from error


def _typed(annotation: Any, value: Any) -> Any:
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        (inner,) = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        return _typed(inner, value)
    if origin is tuple:
        return tuple(_typed(typing.get_args(annotation)[0], item) for item in value)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        fields = _fields(annotation).items()
        known = {name: _typed(hint, value[name]) for name, hint in fields if name in value}
        return annotation(**known)
    return value


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """Return the resolved annotation of every field; resolving takes longer than all the rest."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
