"""Stores what a source says: chunks of attempts, and a record for each in the track of the history.

May be killed anywhere and started again: a chunk counts once its record is there, and an attempt that
is known is taken again only where its source says more of it. Two at once are safe: an attempt that
both take is one, by its uid.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.stores.histories import Histories
from tracks_dagster.track.addressed import read_addressed, write_addressed
from tracks_dagster.track.bodies import HistoryImported, NodesImported
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.imported import (
    CHUNK_ATTEMPTS_MAX,
    ImportedAttempt,
    ImportedNode,
    changed_nodes,
    newest_nodes,
    pack,
    pack_nodes,
    pack_uids,
    unpack_uids,
    version_of,
)
from tracks_dagster.track.names import RUNS, history_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, sha256_hex
from tracks_dagster.track.states.history_state import HistoryState
from tracks_dagster.track.track import (
    history_chunk_key,
    history_curves_key,
    history_nodes_key,
    history_uids_key,
)
from tracks_dagster.wings.history.curves import segments
from tracks_dagster.wings.history.judging import Judge
from tracks_dagster.wings.history.source import (
    BadRow,
    History,
    NotEnded,
    Point,
    SourceAttempt,
    SourceNode,
)

BATCH_ATTEMPTS_MAX = 2 * CHUNK_ATTEMPTS_MAX  # in memory at once, sorted, then cut into chunks
BAD_ROWS_KEPT_MAX = 1000


@dataclass(slots=True, kw_only=True)
class Imported:
    """What came of an import. bad: the first BAD_ROWS_KEPT_MAX rows that could not be read.

    grown: attempts that were known, and of which the source says more by now.
    nodes: those that the source lists, by name; nodes_new: states of nodes that were not known.
    """

    new: int = 0
    known: int = 0
    grown: int = 0
    not_ended: int = 0
    bad_count: int = 0
    bad: list[BadRow] = field(default_factory=list)
    runs: set[int] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)
    device_seconds: dict[str, float] = field(default_factory=dict)
    first_at: str | None = None
    last_at: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, ImportedNode] = field(default_factory=dict)
    nodes_new: int = 0

    def leave_out(self, row: BadRow) -> None:
        """Count a row that cannot be imported."""
        self.bad_count += 1
        if len(self.bad) < BAD_ROWS_KEPT_MAX:
            self.bad.append(row)

    def take(self, attempt: ImportedAttempt, *, is_known: bool) -> None:
        """Count one that is new, or of which there is more than was known."""
        if is_known:
            self.grown += 1
            return
        self.new += 1
        self.runs.add(hash(attempt.run_id))
        self.reasons[attempt.reason] += 1
        before_s = self.device_seconds.get(attempt.reason, 0.0)
        self.device_seconds[attempt.reason] = before_s + attempt.device_seconds
        self.first_at = min(self.first_at or attempt.submitted_at, attempt.submitted_at)
        self.last_at = max(self.last_at or attempt.ended_at, attempt.ended_at)
        self.unknown |= attempt.unknown


def import_history(
    tracks: Tracks,
    history: History,
    name: str,
    *,
    rules: UserRules,
    by: str,
    dry_run: bool = False,
    on_stored: Callable[[int], object] = lambda count: None,
) -> Imported:
    """Import every ended attempt of `history` that is not known yet, as runs `<name>.…`.

    on_stored: called with how many more are stored. Raises InvalidInput where the source cannot be
    read, or a run of ours has a name that this history would give.
    """
    histories, taken, others = Histories(tracks.store), set[bytes](), set[str]()
    _check_name(tracks.store, name)
    known = _known(tracks.store, histories.state(name))
    judge, done = Judge(name, rules, tracks.clean), Imported()
    batch: list[tuple[ImportedAttempt, str]] = []
    listed: list[ImportedNode] = []
    for each in history.read():
        if isinstance(each, NotEnded):
            done.not_ended += 1
        elif isinstance(each, BadRow):
            done.leave_out(each)
        elif isinstance(each, SourceNode):
            listed.append(judge.node(each))
        else:
            try:
                attempt = judge.imported(each)
            except ValueError as error:
                done.leave_out(BadRow(line=0, file=each.id, why=str(error)))
                continue
            uid, version = bytes.fromhex(attempt.uid), version_of(attempt)
            if bytes.fromhex(version) in known or uid in taken:
                done.known += 1
                continue
            stored: Sequence[ImportedAttempt] = (
                histories.run(attempt.run_id) if uid in known else ()
            )
            before = next((one for one in stored if one.uid == attempt.uid), None)
            if before is not None and before is stored[0] and _is_another(attempt, before):
                others.add(attempt.run_id)
                done.leave_out(_of_another(each, before))
            if attempt.run_id in others:
                continue
            if uid in known and (before is None or attempt.extent <= before.extent):
                done.known += 1
                continue
            taken.add(uid)
            done.take(attempt, is_known=uid in known)
            if not dry_run:
                curves = _store_curves(tracks.store, name, judge.points(each.points))
                batch.append((replace(attempt, curves=curves), version))
        if len(batch) == BATCH_ATTEMPTS_MAX:
            _store(tracks, history, name, batch, by, on_stored)
            batch = []
    if batch:
        _store(tracks, history, name, batch, by, on_stored)
    _add_nodes(tracks, history, name, listed, done, by=by, dry_run=dry_run)
    return done


def _is_another(attempt: ImportedAttempt, before: ImportedAttempt) -> bool:
    """Whether two that a source calls the first of a run are not the same: of one that grew, one time
    lies in the other. Later ones are numbered again where more of their run is there."""
    begins = attempt.order[0] <= before.order[0], attempt.order[0] >= before.order[0]
    ends = attempt.ended_at >= before.ended_at, attempt.ended_at <= before.ended_at
    return not any(begin and end for begin, end in zip(begins, ends, strict=True))


def _of_another(attempt: SourceAttempt, before: ImportedAttempt) -> BadRow:
    why = (
        f"another run of this name, which began at {before.order[0]}, was imported before: import this "
        "with another --name"
    )
    return BadRow(line=0, file=attempt.id, why=why)


def _store_curves(store: ObjectStore, name: str, points: Sequence[Point]) -> dict[str, str]:
    """Store the journal of these points; return the sha256 of its segments by where they begin."""
    stored, offset = dict[str, str](), 0
    for segment in segments(points):
        data = gzip.compress(segment, compresslevel=3, mtime=0)
        sha256 = sha256_hex(data)
        write_addressed(store, history_curves_key(name, sha256), data)
        stored[str(offset)] = sha256
        offset += len(segment)
    return stored


def _add_nodes(
    tracks: Tracks,
    history: History,
    name: str,
    listed: Sequence[ImportedNode],
    done: Imported,
    *,
    by: str,
    dry_run: bool,
) -> None:
    """Store each node of a list whose state differs from the one before it."""
    if not listed:
        return
    done.nodes = newest_nodes(listed)
    new = changed_nodes(Histories(tracks.store).nodes(name), listed)
    done.nodes_new = len(new)
    for begin in range(0, 0 if dry_run else len(new), CHUNK_ATTEMPTS_MAX):
        part = new[begin : begin + CHUNK_ATTEMPTS_MAX]
        data = pack_nodes(part)
        body = NodesImported(
            history=name,
            system=history.system,
            origin=history.origin,
            nodes_sha256=sha256_hex(data),
            node_count=len(part),
            by=by,
        )
        write_addressed(tracks.store, history_nodes_key(name, body.nodes_sha256), data)
        tracks.decide_history(
            name, partial(_unless_listed, tracks.draft(Kind.NODES_IMPORTED, body))
        )
        tracks.project(history_track(name))


def _unless_listed(draft: Draft, state: HistoryState | None) -> Draft | None:
    there = () if state is None else (each.nodes_sha256 for each in state.nodes)
    return None if draft.body["nodes_sha256"] in there else draft


def _check_name(store: ObjectStore, name: str) -> None:
    """Raise InvalidInput where runs of ours begin as those of the history would."""
    own = next((each for each in store.folders(RUNS) if each.startswith(f"{name}.")), None)
    if own is not None:
        raise InvalidInput(
            f"The run {own} is one of your own, so no history can be called {name}: its runs would be "
            f"called {name}.… too. Give another --name."
        )


def _known(store: ObjectStore, state: HistoryState | None) -> set[bytes]:
    """Return the identities of all attempts that were imported, and of how much was known of each."""
    known: set[bytes] = set()
    for chunk in state.chunks if state is not None else ():
        key = history_uids_key(chunk.history, chunk.uids_sha256)
        known.update(unpack_uids(read_addressed(store, key, chunk.uids_sha256)))
    return known


def _store(
    tracks: Tracks,
    history: History,
    name: str,
    batch: list[tuple[ImportedAttempt, str]],
    by: str,
    on_stored: Callable[[int], object],
) -> None:
    versions = {attempt.uid: version for attempt, version in batch}
    attempts = sorted((attempt for attempt, _ in batch), key=lambda each: (each.run_id, each.order))
    for chunk in _chunks(attempts):
        data = pack(chunk)
        uids = pack_uids(uid for each in chunk for uid in (each.uid, versions[each.uid]))
        body = HistoryImported(
            history=name,
            system=history.system,
            origin=history.origin,
            chunk_sha256=sha256_hex(data),
            uids_sha256=sha256_hex(uids),
            first_run_id=chunk[0].run_id,
            last_run_id=chunk[-1].run_id,
            attempt_count=len(chunk),
            by=by,
        )
        write_addressed(tracks.store, history_chunk_key(name, body.chunk_sha256), data)
        write_addressed(tracks.store, history_uids_key(name, body.uids_sha256), uids)
        draft = tracks.draft(Kind.HISTORY_IMPORTED, body)
        tracks.decide_history(name, partial(_unless_there, draft))
        tracks.project(history_track(name))
        on_stored(len(chunk))


def _unless_there(draft: Draft, state: HistoryState | None) -> Draft | None:
    there = () if state is None else (each.chunk_sha256 for each in state.chunks)
    return None if draft.body["chunk_sha256"] in there else draft


def _chunks(batch: Sequence[ImportedAttempt]) -> Iterator[Sequence[ImportedAttempt]]:
    """Yield parts of CHUNK_ATTEMPTS_MAX or a little more: no run is cut in two."""
    begin = 0
    for at in range(1, len(batch) + 1):
        is_full = at - begin >= CHUNK_ATTEMPTS_MAX
        if at == len(batch) or (is_full and batch[at].run_id != batch[at - 1].run_id):
            yield batch[begin:at]
            begin = at
