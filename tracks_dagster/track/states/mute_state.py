"""What alerts are sent to nobody for a while: a pure fold over the one track of mutes.

A mute stops the sending and never the record. One track for all of them, those of a single run too:
who sends reads it once, and a run that is over needs no rule for a record that changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.track.bodies import ANY_RULE, MuteDecision
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record, parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmute:
    """One `alerts_unmuted`."""

    seq: int
    at: datetime
    body: MuteDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Mute:
    """One `alerts_muted`. unmute: the first one after it of the same rule and run, None without."""

    seq: int
    at: datetime
    until_at: datetime
    body: MuteDecision
    unmute: Unmute | None = None

    def covers(self, rule: str, run_id: str | None, at: datetime) -> bool:
        """Whether an alert of `rule` about that run (None: about no run) is sent to nobody at `at`."""
        if self.unmute is not None or at >= self.until_at:
            return False
        is_run = self.body.run_id is None or self.body.run_id == run_id
        return is_run and self.body.rule in (ANY_RULE, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class MuteState:
    """Every mute, oldest first. `head` is the last record folded."""

    head: Record
    mutes: tuple[Mute, ...] = ()

    def mute_of(self, rule: str, run_id: str | None, at: datetime) -> Mute | None:
        """Return the newest mute that covers an alert, or None."""
        found = (mute for mute in reversed(self.mutes) if mute.covers(rule, run_id, at))
        return next(found, None)

    def in_force(self, at: datetime) -> tuple[Mute, ...]:
        """Return the mutes that hold at `at`, oldest first."""
        return tuple(m for m in self.mutes if m.unmute is None and at < m.until_at)


def fold(records: Iterable[Record], state: MuteState | None = None) -> MuteState | None:
    """Return the state after `records`, starting from `state`; None for an empty track."""
    for record in records:
        state = apply(state, record)
    return state


def apply(state: MuteState | None, record: Record) -> MuteState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    before = state.mutes if state is not None else ()
    match record.kind:
        case Kind.ALERTS_MUTED:
            body = body_of(MuteDecision, record)
            if body.until_at is None:
                raise TrackBroken(f"Record {record.seq} ({record.kind}) does not say until when.")
            until_at = parse_time(body.until_at)
            added = Mute(seq=record.seq, at=record.at, until_at=until_at, body=body)
            return MuteState(head=record, mutes=(*before, added))
        case Kind.ALERTS_UNMUTED:
            body = body_of(MuteDecision, record)
            unmute = Unmute(seq=record.seq, at=record.at, body=body)
            after = (
                replace(each, unmute=unmute)
                if each.unmute is None and _is_of(each.body, body)
                else each
                for each in before
            )
            return MuteState(head=record, mutes=tuple(after))
        case Kind.NOTE | Kind.ALERT if state is not None:
            return replace(state, head=record)
        case _:
            raise TrackBroken(
                f"Record {record.seq} ({record.kind}) does not belong there in the track of mutes."
            )


def _is_of(mute: MuteDecision, unmute: MuteDecision) -> bool:
    return (mute.rule, mute.run_id) == (unmute.rule, unmute.run_id)
