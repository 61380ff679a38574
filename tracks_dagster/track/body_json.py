"""Between a record's body and its JSON: the only way from one to the other.

A field that a newer version added is ignored when read; a field that is missing and has no default is
a TrackBroken, of a record a RecordNewer. Works for any frozen dataclass of JSON scalars, mappings,
tuples and dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tracks_dagster.track.errors import RecordNewer, TrackBroken
from tracks_dagster.track.records import INTEGER_END, SHOWN_CHARACTERS_MAX, Json, Record, parse_time

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
    except _Unfit as error:
        raise TrackBroken(f"A body is not {kind.__name__}: it is {error.shown}") from error
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
        raise TrackBroken(f"A body is not {kind.__name__}: {error}") from error


def body_of(kind: type[Body], record: Record) -> Body:
    """Return the body of `record`; raises RecordNewer naming the record when it is not a `kind`.

    A text of it whose name ends in `_at` holds a time.
    """
    try:
        body = from_json(kind, record.body)
        for name, value in record.body.items():
            if name.endswith("_at") and value is not None and hasattr(body, name):
                _check_time(name, value)
        return body
    except TrackBroken as error:
        raise RecordNewer(
            f"Record {record.seq} ({record.kind}) cannot be read; records before it still hold. "
            f"{error} A newer version, or no program of ours, wrote it on "
            f"{record.at:%Y-%m-%dT%H:%M:%SZ}. Update this checkout."
        ) from error


def _check_time(name: str, text: str) -> None:
    try:
        parse_time(text)
    except ValueError as error:
        raise TrackBroken(f"Its {name} is {text[:SHOWN_CHARACTERS_MAX]!r}.") from error


def _reader_of(kind: type) -> Callable[[Json], Any]:
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind.__name__} is not a dataclass")
    return _reader(kind)


@functools.cache
def _reader(annotation: Any) -> Callable[[Json], Any]:
    """Return what makes a value of `annotation` out of JSON, or raises `_Unfit`.

    Kept for each annotation: to look at types again for every record took most of a reindex.
    """
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        (inner,) = [a for a in arguments if a is not types.NoneType]
        read = _reader(inner)
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        read_item = _reader(arguments[0])
        return lambda value: tuple(map(read_item, _fit(list, value)))
    if origin is Mapping:
        read_item = _reader(arguments[1])
        return lambda value: {key: read_item(item) for key, item in _fit(dict, value).items()}
    if dataclasses.is_dataclass(annotation):
        return _dataclass_reader(typing.cast(type, annotation))
    return _SCALARS.get(annotation, _json)


def _dataclass_reader(kind: type) -> Callable[[Json], Any]:
    hints = typing.get_type_hints(kind)
    fields = [
        (f.name, _class_that_fits(hints[f.name]), _reader(hints[f.name]))
        for f in dataclasses.fields(kind)
    ]

    def read(value: Json) -> Any:
        _fit(dict, value)
        given = {}
        for name, fits, read_field in fields:
            if name not in value:
                continue
            found = value[name]
            try:
                given[name] = found if found.__class__ is fits else read_field(found)
            except _Unfit as error:
                raise TypeError(f"its {name} is {error.shown}") from error
        return kind(**given)

    return read


def _class_that_fits(annotation: Any) -> type | None:
    """Return the class of JSON values that need no look: most fields are texts."""
    return next((kind for kind in (str, bool) if annotation in (kind, kind | None)), None)


class _Unfit(Exception):
    """A JSON value that is not of the annotated type, or one that no ledger can hold."""

    def __init__(self, value: Json) -> None:
        super().__init__()
        self.shown = repr(value)[:SHOWN_CHARACTERS_MAX]


def _fit(kind: type, value: Json) -> Any:
    if value.__class__ is not kind:
        raise _Unfit(value)
    return value


def _integer(value: Json) -> int:
    """Return a whole number of 64 bits, which is what databases count with; 3.0 is one too."""
    if value.__class__ is float and value.is_integer():
        value = int(value)
    if value.__class__ is not int or not -INTEGER_END <= value < INTEGER_END:
        raise _Unfit(value)
    return value


def _finite(value: Json) -> float:
    """Return a number as it is; whole ones beyond 64 bits as a float."""
    if value.__class__ is int and not -INTEGER_END <= value < INTEGER_END:
        try:
            value = float(value)
        except OverflowError:
            raise _Unfit(value) from None
    if value.__class__ not in (int, float) or not math.isfinite(value):
        raise _Unfit(value)
    return typing.cast(float, value)


def _json(value: Json) -> Json:
    """Return any value of JSON, which has no infinite number."""
    if value.__class__ is float:
        return _finite(value)
    if value.__class__ in (list, dict):
        for each in value.values() if isinstance(value, dict) else value:
            _json(each)
    return value


_SCALARS: Mapping[Any, Callable[[Json], Any]] = {
    int: _integer,
    float: _finite,
    bool: functools.partial(_fit, bool),
    str: functools.partial(_fit, str),
}
