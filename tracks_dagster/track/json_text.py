"""JSON that was stored, or that comes from another program or machine: parsed within bounds.

What is read has the bounds of what is written, one size for each kind of object. Whatever cannot be
parsed is a ValueError, whose words say what is wrong: no reader has to know how many ways there are.
Ruff forbids `json.loads` everywhere else.
"""

from __future__ import annotations

import json
import math
from typing import Any

KIB, MIB = 1024, 1024 * 1024
RECORD_BYTES_MAX = 16 * KIB
SMALL_BYTES_MAX = MIB  # an object beside records: a last word, a heartbeat, a mark, an answer
EVIDENCE_BYTES_MAX = 128 * MIB  # of all ranks of an attempt, 64 KiB of log each
MANIFEST_BYTES_MAX = 64 * MIB  # of a checkpoint (2 TB in chunks of 8 MiB), or of an archive
SNAPSHOT_BYTES_MAX = 512 * MIB  # the manifest of a snapshot: up to a million files
DEPTH_MAX = 100  # of lists and objects in each other: who walks over a value calls itself so often
# `[[],[],…]` takes 30 times its size in memory, and nothing of ours looks like that: where it matters,
# beyond a MiB, a list or an object comes once in so many bytes at most.
NESTED_BYTES_MIN = 8


def parse_json(
    data: bytes | str, *, bytes_max: int = SMALL_BYTES_MAX, foreign: bool = False
) -> Any:
    """Return the value that `data` holds: dict, list, str, int, finite float, bool or None.

    foreign: by another program, whose NaN, infinity, and key that is there twice are taken as they are.
    Raises ValueError where it is not JSON, or is larger or deeper than it may be.
    """
    if len(data) > bytes_max:
        raise ValueError(f"it is larger than {bytes_max} bytes, which is the limit")
    signs = ("[", "{") if isinstance(data, str) else (b"[", b"{")
    nested_count = sum(map(data.count, signs))  # type: ignore[arg-type]
    if len(data) > MIB and nested_count > len(data) // NESTED_BYTES_MIN:
        raise ValueError(f"it has {nested_count} lists and objects in {len(data)} bytes")
    try:
        text = data if isinstance(data, str) else _decoded(data)
        value = (_FOREIGN if foreign else _OURS).decode(text)
    except RecursionError as error:
        raise _too_deep() from error
    except MemoryError as error:
        raise ValueError("there is no memory left for it") from error
    if nested_count > DEPTH_MAX:
        _check_depth(value)
    return value


def _decoded(data: bytes) -> str:
    return data.decode(json.detect_encoding(data), "surrogatepass")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise _too_deep()


def _inside(value: Any) -> list[Any]:
    found = value.values() if isinstance(value, dict) else value
    return [each for each in found if isinstance(each, dict | list)]


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEPTH_MAX} times")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the key {twice[:80]!r} twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:80]} is larger than any number")
    return value


_FOREIGN = json.JSONDecoder()
_OURS = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite)
