"""Records: the only thing that is ever written to a track, and how they become bytes.

A record is stored as sorted-key UTF-8 JSON without spaces; its sha256 is of those stored bytes, and
each record names the sha256 of the one before it. What a body of each kind holds is in `bodies`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from tracks_dagster.track.errors import RecordNewer, RecordTooLarge, TrackBroken
from tracks_dagster.track.json_text import RECORD_BYTES_MAX, parse_json
from tracks_dagster.track.text.safe_text import valid_json

COMMIT_BYTES_MAX = 4 * 1024
SHOWN_CHARACTERS_MAX = 80  # of a wrong value, in a message
INTEGER_END = 2**63  # the first whole number that a database cannot hold; -2**63 it can

Json = Any  # what parse_json returns: dict, list, str, int, float, bool or None


class Kind(StrEnum):
    """Every kind of record, by the track it belongs to."""

    RUN_DECLARED = "run_declared"
    ATTEMPT_OPENED = "attempt_opened"
    ATTEMPT_SUPERVISED = "attempt_supervised"
    ATTEMPT_PLACED = "attempt_placed"
    ATTEMPT_RESTORED = "attempt_restored"
    CHECKPOINT_COMMITTED = "checkpoint_committed"
    ATTEMPT_ENDED = "attempt_ended"
    ATTEMPT_RECLASSIFIED = "attempt_reclassified"
    RETRY_REFUSED = "retry_refused"
    STOP_REQUESTED = "stop_requested"
    CHECKPOINT_VERIFIED = "checkpoint_verified"
    CHECKPOINT_QUARANTINED = "checkpoint_quarantined"
    CHECKPOINT_SUPERSEDED = "checkpoint_superseded"
    CHECKPOINT_DELETED = "checkpoint_deleted"
    CHECKPOINT_PINNED = "checkpoint_pinned"
    CHECKPOINT_UNPINNED = "checkpoint_unpinned"
    EVAL_OPENED = "eval_opened"
    EVAL_ENDED = "eval_ended"
    EVAL_WAIVED = "eval_waived"
    PROMOTION_DECIDED = "promotion_decided"
    NOTE = "note"
    ALERT = "alert"
    ALERT_CLEARED = "alert_cleared"
    RUN_FINISHED = "run_finished"
    STAGE_JUDGED = "stage_judged"
    RUN_LABELLED = "run_labelled"

    DATASET_DECLARED = "dataset_declared"
    SNAPSHOT_COMMITTED = "snapshot_committed"
    SNAPSHOT_QUARANTINED = "snapshot_quarantined"
    SNAPSHOT_RELEASED = "snapshot_released"

    NODE_STRUCK = "node_struck"
    NODE_QUARANTINED = "node_quarantined"
    NODE_RELEASED = "node_released"
    DEVICES_LEASED = "devices_leased"
    LEASE_CONFIRMED = "lease_confirmed"
    LEASE_RELEASED = "lease_released"

    SOURCE_QUARANTINED = "source_quarantined"
    SOURCE_RELEASED = "source_released"

    ALERTS_MUTED = "alerts_muted"
    ALERTS_UNMUTED = "alerts_unmuted"

    VIEW_SAVED = "view_saved"
    VIEW_REMOVED = "view_removed"

    CODE_CERTIFIED = "code_certified"

    PROJECT_STORED = "project_stored"
    PROJECT_REMOVED = "project_removed"
    PROJECT_SCHEDULED = "project_scheduled"

    HISTORY_IMPORTED = "history_imported"
    NODES_IMPORTED = "nodes_imported"

    STUDY_DECLARED = "study_declared"
    STUDY_EXTENDED = "study_extended"
    TRIAL_PROPOSED = "trial_proposed"
    TRIAL_JUDGED = "trial_judged"
    TRIAL_STOPPED = "trial_stopped"
    STUDY_STOPPED = "study_stopped"
    STUDY_FINISHED = "study_finished"


_KINDS = frozenset(kind.value for kind in Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A record before it has a place: its content, and the uid that no other has.

    The uid is drawn once per fact or decision and stays the same at every try.
    body: its texts are made valid here, so that no record holds what a database refuses.
    attempt_id: the attempt it speaks of, 1-based, or None.
    """

    uid: str
    kind: Kind
    body: Mapping[str, Json] = field(hash=False)  # a dict has no hash; the uid tells drafts apart
    attempt_id: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "body", valid_json(self.body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One stored record; `sha256` is of its stored bytes and is not part of them."""

    seq: int
    uid: str
    at: datetime
    kind: Kind
    attempt_id: int | None
    prev_sha256: str | None
    body: Mapping[str, Json] = field(hash=False)
    sha256: str


def seal(draft: Draft, *, seq: int, at: datetime, prev_sha256: str | None) -> bytes:
    """Return the bytes that store `draft` at `seq`.

    Raises RecordTooLarge when they exceed 16 KiB, or 4 KiB for a commit.
    """
    stored: dict[str, Json] = {
        "seq": seq,
        "uid": draft.uid,
        "at": format_time(at),
        "kind": draft.kind.value,
        "prev_sha256": prev_sha256,
        "body": draft.body,
    }
    if draft.attempt_id is not None:
        stored["attempt_id"] = draft.attempt_id
    data = canonical_json(stored)
    limit = COMMIT_BYTES_MAX if draft.kind is Kind.CHECKPOINT_COMMITTED else RECORD_BYTES_MAX
    if len(data) > limit:
        raise RecordTooLarge(
            f"Cannot append {draft.kind}: it is {len(data)} bytes and the limit is {limit}; "
            "store what is large as an object and name it by sha256."
        )
    return data


def parse(data: bytes, *, seq: int) -> Record:
    """Return the record that `data` stores at `seq`, its texts valid.

    Raises TrackBroken when the bytes are not a record, or one of another seq, and RecordNewer when they
    are one of a kind that this version does not know.
    """
    try:
        stored = {"attempt_id": None, **parse_json(data, bytes_max=RECORD_BYTES_MAX)}
        if any(
            mark in data for mark in _MARKS_OF_INVALID
        ):  # one that was stored before drafts were valid
            stored = valid_json(stored)
        at = parse_time(stored["at"])
        _check_types(stored)
    except (ValueError, KeyError, TypeError) as error:
        raise TrackBroken(f"Record {seq} cannot be read ({error}).") from error
    if stored["seq"] != seq:
        raise TrackBroken(f"The record stored as {seq} says that it is {stored['seq']}.")
    kind, prev_sha256 = stored["kind"], stored["prev_sha256"]
    if kind not in _KINDS:
        raise RecordNewer(
            f"Record {seq} is of kind {kind[:SHOWN_CHARACTERS_MAX]!r}, which this version does not "
            f"know: a newer one wrote it, on {stored['at'][:19]}Z. Update this checkout.",
            prev_sha256=prev_sha256,
        )
    return Record(
        seq=seq,
        uid=stored["uid"],
        at=at,
        kind=Kind(kind),
        attempt_id=stored["attempt_id"],
        prev_sha256=prev_sha256,
        body=stored["body"],
        sha256=sha256_hex(data),
    )


# Only as an escape, or as the first byte of half a surrogate, can JSON hold a text that is not valid.
_MARKS_OF_INVALID = (b"\\u", b"\xed")

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "seq": int,
    "uid": str,
    "kind": str,
    "attempt_id": (int, type(None)),
    "prev_sha256": (str, type(None)),
    "body": dict,
}


def _check_types(stored: Mapping[str, Json]) -> None:
    for name, kind in _TYPES.items():
        value = stored[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"its {name} is {repr(value)[:SHOWN_CHARACTERS_MAX]}")


def canonical_json(value: Json) -> bytes:
    """Return `value` as sorted-key UTF-8 JSON without spaces; NaN and infinity are a ValueError."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    # Half a surrogate, as in the name of a file that is not UTF-8, becomes its JSON escape.
    return text.encode("utf-8", "backslashreplace")


def sha256_hex(data: bytes) -> str:
    """Return the sha256 of `data` as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def format_time(at: datetime) -> str:
    """Return an aware datetime as UTC, `2026-01-31T02:00:00.000000Z`: sorts as text.

    Raises ValueError for a naive one, which would silently be taken as local time.
    """
    if at.tzinfo is None:
        raise ValueError(f"{at!r} has no time zone")
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    # Twice as fast as `isoformat`: a line of the journal has it in each step.
    numbers = (at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond)
    return "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ" % numbers  # noqa: UP031 - as fast as it gets


def parse_time(text: str) -> datetime:
    """Return the aware UTC datetime that `format_time` wrote; ValueError for another text."""
    try:
        at = datetime.fromisoformat(text)
        is_ours = format_time(at) == text
    except OverflowError:  # in UTC it lies outside of the years 1 to 9999
        is_ours = False
    if not is_ours:
        shown = repr(text)[:SHOWN_CHARACTERS_MAX]
        raise ValueError(f"{shown} is not a UTC time such as 2026-01-31T02:00:00.000000Z")
    return at
