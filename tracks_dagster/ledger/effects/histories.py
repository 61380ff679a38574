"""The rows of imported runs and nodes: they follow from the chunks that a history's records name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.facts.fact import row
from tracks_dagster.ledger.facts.sources import IMPORTED_NODE, NodeSeen
from tracks_dagster.ledger.ports import Row
from tracks_dagster.stores.histories import Histories
from tracks_dagster.track import imported
from tracks_dagster.track.bodies import HistoryImported, NodesImported
from tracks_dagster.track.body_json import body_of
from tracks_dagster.track.records import Kind, Record
from tracks_dagster.track.states.history_state import HistoryState


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRows:
    """Rows by table. replaced: runs that the ledger may know already; what it has of them goes first,
    because an attempt that is imported late may move others behind it."""

    rows: dict[str, Sequence[Row]]
    replaced: frozenset[str]


def imported_rows(
    histories: Histories, state: HistoryState, records: Sequence[Record]
) -> ImportedRows:
    """Return the rows of every run, and node, of the chunks that `records` of the history name.

    state: after them. Raises ObjectLost and TrackBroken.
    """
    rows: dict[str, list[Row]] = {}
    replaced: set[str] = set()
    done: set[str] = set()
    for record in records:
        if record.kind is Kind.NODES_IMPORTED:
            of_list = histories.nodes(state.name, [body_of(NodesImported, record).nodes_sha256])
            rows.setdefault("imported_nodes", []).extend(
                row(IMPORTED_NODE, NodeSeen(history=state.name, node=each)) for each in of_list
            )
            continue
        body = body_of(HistoryImported, record)
        of_chunk = histories.chunk(state.name, body.chunk_sha256)
        others = _others(state, body)
        for run_id, attempts in of_chunk.items():
            if run_id in done:
                continue
            done.add(run_id)
            elsewhere = [
                each
                for other in others
                for each in histories.chunk(state.name, other.chunk_sha256).get(run_id, ())
                if other.first_run_id <= run_id <= other.last_run_id
            ]
            if elsewhere:
                replaced.add(run_id)
            run = imported.state_of(imported.in_order([*attempts, *elsewhere]))
            for table, found in track_states.run_rows(run).items():
                rows.setdefault(table, []).extend(found)
    return ImportedRows(rows={**rows}, replaced=frozenset(replaced))


def _others(state: HistoryState, body: HistoryImported) -> list[HistoryImported]:
    """Return the other chunks that may hold runs of this one, each once."""
    near = state.with_runs(body.first_run_id, body.last_run_id)
    by_sha256 = {each.chunk_sha256: each for each in near}
    by_sha256.pop(body.chunk_sha256, None)
    return list(by_sha256.values())
