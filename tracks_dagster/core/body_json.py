"""Between a record's body and its JSON: the only way from one to the other.

A field that a newer version added is ignored when read; a field that is missing and has no default is
a TrackBroken, of a record a RecordNewer. Works for any frozen dataclass of JSON scalars, mappings,
tuples and dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tracks_dagster.core.errors import RecordNewer, TrackBroken
from tracks_dagster.core.records import SHOWN_CHARACTERS_MAX, Json, Record

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
        return typing.cast(Body, _reader_of(kind)(data))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise TrackBroken(f"A body is no {kind.__name__}: {error}") from error


def body_of(kind: type[Body], record: Record) -> Body:
    """Return the body of `record`; raises RecordNewer naming the record when it is no `kind`."""
    try:
        return from_json(kind, record.body)
    except TrackBroken as error:
        raise RecordNewer(
            f"Record {record.seq} ({record.kind}) cannot be read; records before it still hold. "
            f"{error} A newer version, or no program of ours, wrote it on "
            f"{record.at:%Y-%m-%dT%H:%M:%SZ}. Update this checkout."
        ) from error


def _reader_of(kind: type) -> Callable[[Json], Any]:
    reader = _reader(kind)
    if reader is None:
        raise TypeError(f"{kind.__name__} is no dataclass")
    return reader


@functools.cache
def _reader(annotation: Any) -> Callable[[Json], Any] | None:
    """Return what makes a value of `annotation` out of JSON; None where JSON is that value already.

    Kept for each annotation: to look at types again for every record took most of a reindex.
    """
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        (inner,) = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        read = _reader(inner)
        return None if read is None else lambda value: None if value is None else read(value)
    if origin is tuple:
        read_item = _reader(typing.get_args(annotation)[0])
        return tuple if read_item is None else lambda value: tuple(map(read_item, value))
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _dataclass_reader(annotation)
    return None


def _dataclass_reader(kind: type) -> Callable[[Json], Any]:
    hints = typing.get_type_hints(kind)
    fields = [
        (field.name, _reader(hints[field.name]), _unfit(hints[field.name]))
        for field in dataclasses.fields(kind)
    ]

    def read(value: Json) -> Any:
        given = {}
        for name, read_field, unfit in fields:
            if name not in value:
                continue
            found = value[name]
            if found.__class__ in unfit:
                raise TypeError(f"its {name} is {repr(found)[:SHOWN_CHARACTERS_MAX]}")
            given[name] = found if read_field is None else read_field(found)
        return kind(**given)

    return read


def _unfit(annotation: Any) -> frozenset[type]:
    """Return what JSON may not hold for `annotation`: a list is no number. None, true and 3.0 pass."""
    inner = [a for a in typing.get_args(annotation) if a is not types.NoneType]
    is_optional = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    plain = inner[0] if is_optional and len(inner) == 1 else annotation
    if plain in (int, float, bool):
        return frozenset({str, list, dict})
    if plain is str:
        return frozenset({bool, int, float, list, dict})
    if typing.get_origin(plain) is Mapping:
        return frozenset({bool, int, float, str, list})
    if typing.get_origin(plain) is tuple:
        return frozenset({bool, int, float, str, dict})
    return frozenset()
