"""What was imported of a history: a pure fold over its track."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tracks_dagster.track.bodies import HistoryImported, NodesImported
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.records import Kind, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState:
    """Every chunk of one history, and every list of nodes, in the order of their import.

    `head` is the last record folded.
    """

    head: Record
    name: str
    chunks: tuple[HistoryImported, ...] = ()
    nodes: tuple[NodesImported, ...] = ()

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
    if record.kind is Kind.HISTORY_IMPORTED:
        body = body_of(HistoryImported, record)
        before = _of(state, record, body.history)
        return replace(before, head=record, chunks=(*before.chunks, body))
    if record.kind is Kind.NODES_IMPORTED:
        nodes = body_of(NodesImported, record)
        before = _of(state, record, nodes.history)
        return replace(before, head=record, nodes=(*before.nodes, nodes))
    raise TrackBroken(f"Record {record.seq} ({record.kind}) does not belong in a history.")


def _of(state: HistoryState | None, record: Record, history: str) -> HistoryState:
    """Return the history that the record is of; raises TrackBroken where it is another one."""
    if state is not None and state.name != history:
        raise TrackBroken(f"Record {record.seq} is of another history than those before it.")
    return state or HistoryState(head=record, name=history)
