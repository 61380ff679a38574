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
from tracks_dagster.track.imported import ImportedAttempt
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
        near = state.with_runs(body.first_run_id, body.last_run_id)
        own = histories.chunk(state.name, body.chunk_sha256)
        for run_id in own:
            if run_id in done:
                continue
            done.add(run_id)
            attempts: list[ImportedAttempt] = []
            for each in near:  # in the order of their import
                if each.chunk_sha256 == body.chunk_sha256:
                    attempts += own[run_id]
                elif each.first_run_id <= run_id <= each.last_run_id:
                    attempts += histories.of_chunk(state.name, each.chunk_sha256, run_id)
            if len(attempts) > len(own[run_id]):
                replaced.add(run_id)
            run = imported.state_of(imported.in_order(attempts))
            for table, found in track_states.run_rows(run).items():
                rows.setdefault(table, []).extend(found)
    return ImportedRows(rows={**rows}, replaced=frozenset(replaced))
