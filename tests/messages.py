"""A planted follower: what a new one needs is this file, and a tick that calls `follow`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.track.errors import StoreUnavailable
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.track.states.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Sends a message for each end of an attempt, the same one once: a receiver knows its key."""

    name: str = "messages"
    sent: dict[str, str] = field(default_factory=dict)
    calls: list[list[int]] = field(default_factory=list)
    away: set[str] = field(default_factory=set)

    def take(self, state: TrackState, new: Sequence[Record]) -> None:
        if not isinstance(state, RunState):
            return
        if state.run_id in self.away:
            raise StoreUnavailable("the messenger does not answer")
        self.calls.append([record.seq for record in new])
        for record in new:
            if record.kind is Kind.ATTEMPT_ENDED:
                self.sent[f"{state.run_id}/{record.seq}"] = record.body["reason"]
