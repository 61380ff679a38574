"""What was imported of a history: a pure fold over its track."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tracks_dagster.track.bodies import HistoryImported
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState:
    """Every chunk of one history, in the order of their import. `head` is the last record folded."""

    head: Record
    name: str
    chunks: tuple[HistoryImported, ...]

    def with_runs(self, first: str, last: str) -> list[HistoryImported]:
        """Return the chunks that may hold runs from `first` to `last`."""
        return [
            each for each in self.chunks if each.first_run_id <= last and first <= each.last_run_id
        ]


def fold(records: Iterable[Record], state: HistoryState | None = None) -> HistoryState | None:
    """Return the state after `records`, starting from `state`; None for an empty track."""
    for record in records:
        state = apply(state, record)
    return state


def apply(state: HistoryState | None, record: Record) -> HistoryState:
    """Return the state after one more record; raises TrackBroken for one that cannot come next."""
    if record.kind is not Kind.HISTORY_IMPORTED:
        raise TrackBroken(f"Record {record.seq} ({record.kind}) does not belong in a history.")
    body = body_of(HistoryImported, record)
    if state is None:
        return HistoryState(head=record, name=body.history, chunks=(body,))
    if body.history != state.name:
        raise TrackBroken(f"Record {record.seq} is of another history than those before it.")
    return replace(state, head=record, chunks=(*state.chunks, body))
