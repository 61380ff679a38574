"""The fingerprint of a failure: the same bad assumption gives the same text.

Messages differ in numbers, addresses and paths from one try to the next. What is left without these
shows whether a retry failed as the attempt before it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, canonical_json, sha256_hex

FINGERPRINT_DIGITS = 16

# Applied in this order: a path may hold hex, a time holds numbers.
_VARYING: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"(\w+://|(?<![\w<])~?/)[^\s'\",;)\]}>]*[^\s'\",;)\]}>:.]"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{7,}\b"), "<hex>"),
    (re.compile(r"\d+([.,:]\d+)*([eE][+-]?\d+)?"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def fingerprint(
    reason: TerminationReason,
    root_message: str,
    config: Mapping[str, Json],
    snapshot: SnapshotRef | None,
    nodes: Iterable[str],
) -> str:
    """Return 16 hex digits over the reason, what was tried, where, and the normalised message."""
    identity = {
        "reason": reason.value,
        "message": normalise(root_message),
        "config": dict(config),
        "snapshot": None if snapshot is None else to_json(snapshot),
        "nodes": sorted(set(nodes)),
    }
    return sha256_hex(canonical_json(identity))[:FINGERPRINT_DIGITS]


def normalise(message: str) -> str:
    """Return `message` without what varies between two meetings of one failure.

    "pid 41 died at 0x7f3a after 3.5 s" → "pid <n> died at <hex> after <n> s"
    """
    for pattern, placeholder in _VARYING:
        message = pattern.sub(placeholder, message)
    return message.strip()
