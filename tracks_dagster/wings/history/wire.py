"""Protobuf's wire format, as far as logs of others need it: fields by number, nothing by name. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT_BITS_MAX = 70

Field = int | bytes  # a varint as it is; text, a message in it, a float: bytes


def fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """Yield each field's number and value in order; ValueError where the message is cut or damaged."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("it is cut or damaged")
        yield number, data[at : at + size]
        at += size


def first(data: bytes, number: int) -> bytes:
    """Return the first field of that number that is not a varint; empty where there is none."""
    return next((v for n, v in fields(data) if n == number and isinstance(v, bytes)), b"")


def text(data: bytes, number: int) -> str:
    """Return a field as text; empty where there is none."""
    return first(data, number).decode("utf-8", "replace")


def integer(data: bytes, number: int) -> int | None:
    """Return a field as a whole number with its sign; None where there is none."""
    found = next((v for n, v in fields(data) if n == number and isinstance(v, int)), None)
    return found if found is None or found < 2**63 else found - 2**64


def number_in(value: Field) -> float:
    """Return the float or double that a field holds."""
    if isinstance(value, int):
        raise ValueError("it is not a number with a point")
    if len(value) not in (4, 8):
        raise ValueError(f"it has {len(value)} bytes, not the 4 or 8 of a number with a point")
    found: float = struct.unpack("<f" if len(value) == 4 else "<d", value)[0]
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift >= _VARINT_BITS_MAX:
            raise ValueError("it is cut or damaged")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
