"""Sources that people put in quarantine: a pure fold over the one track of quarantines.

A checkpoint, an attempt, a node or a commit has no track of its own for a record "nobody builds on
this": an attempt's run may be finished, a commit belongs to no run, and a node's
pool says only where gangs may start, for a while. One track for all of them is one more use of what
tracks give (append-only, chained, folded, projected), where a list of exceptions in each of three other
kinds of track would be three rules. Snapshots have a track, their dataset's, and stay there. What the
machine quarantines by itself (corrupt bytes, checkpoints after an onset, a node that fails too often)
concerns that one thing and stays where it is too: it affects nothing that descends from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.track.bodies import SourceDecision
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRelease:
    """One `source_released`."""

    seq: int
    at: datetime
    body: SourceDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceQuarantine:
    """One `source_quarantined`; release: the first one after it, None while it holds."""

    seq: int
    at: datetime
    body: SourceDecision
    release: SourceRelease | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineState:
    """Every quarantine, oldest first. `head` is the last record folded."""

    head: Record
    quarantines: tuple[SourceQuarantine, ...] = ()

    @property
    def in_force(self) -> dict[str, SourceQuarantine]:
        """What is in quarantine now, by source; of several decisions on one the oldest counts."""
        return {each.body.source: each for each in reversed(self.quarantines) if not each.release}


def fold(records: Iterable[Record], state: QuarantineState | None = None) -> QuarantineState | None:
    """Return the state after `records`, starting from `state`; None for an empty track."""
    for record in records:
        state = apply(state, record)
    return state


def apply(state: QuarantineState | None, record: Record) -> QuarantineState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    before = state.quarantines if state is not None else ()
    match record.kind:
        case Kind.SOURCE_QUARANTINED:
            body = body_of(SourceDecision, record)
            added = SourceQuarantine(seq=record.seq, at=record.at, body=body)
            return QuarantineState(head=record, quarantines=(*before, added))
        case Kind.SOURCE_RELEASED:
            body = body_of(SourceDecision, record)
            release = SourceRelease(seq=record.seq, at=record.at, body=body)
            after = tuple(
                replace(each, release=release)
                if each.release is None and each.body.source == body.source
                else each
                for each in before
            )
            return QuarantineState(head=record, quarantines=after)
        case Kind.NOTE | Kind.ALERT if state is not None:
            return replace(state, head=record)
        case _:
            raise TrackBroken(
                f"Record {record.seq} ({record.kind}) does not belong there in the track of "
                "quarantines."
            )
