"""Stores what a source says: chunks of attempts, and a record for each in the track of the history.

May be killed anywhere and started again: a chunk counts once its record is there, and an attempt that
is known is taken again only where its source says more of it. Two at once are safe: an attempt that
both take is one, by its uid.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

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
    Read,
    SourceAttempt,
    SourceNode,
    uid_of,
)

BATCH_ATTEMPTS_MAX = 2 * CHUNK_ATTEMPTS_MAX  # in memory at once, sorted, then cut into chunks
BAD_ROWS_KEPT_MAX = 1000
IN_ANOTHER_ZONE = (
    "it was imported before with times that differ by whole quarters of an hour: give the same "
    "--timezone as then, or another --name"
)
FOLDERS = ("tensorboard",)  # whose ids are names of folders below the one that is imported


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
    _check_name(tracks.store, name)
    judge = Judge(name, rules, tracks.clean)
    this = _Import(tracks, history, name, judge, by=by, dry_run=dry_run, on_stored=on_stored)
    for each in history.read():
        this.take(each)
    return this.finish()


class _Import:
    """One import: what is known of the history, and what was read and is not stored yet."""

    def __init__(
        self,
        tracks: Tracks,
        history: History,
        name: str,
        judge: Judge,
        *,
        by: str,
        dry_run: bool,
        on_stored: Callable[[int], object],
    ) -> None:
        self._tracks, self._history, self._name, self._judge = tracks, history, name, judge
        self._by, self._dry_run, self._on_stored = by, dry_run, on_stored
        self._histories = Histories(tracks.store)
        state = self._histories.state(name)
        _check_origin(state, history)
        self._known = _known(tracks.store, state)
        self._done = Imported()
        self._taken = set[bytes]()  # uids that this import has taken
        self._others = set[str]()  # runs whose name another one has
        # Each with what else it is known by: its version, and itself in any zone.
        self._batch = list[tuple[ImportedAttempt, tuple[str, ...]]]()
        self._nodes = list[ImportedNode]()

    def take(self, each: Read) -> None:
        """Take in what the source says next."""
        if isinstance(each, NotEnded):
            self._done.not_ended += 1
        elif isinstance(each, BadRow):
            self._done.leave_out(each)
        elif isinstance(each, SourceNode):
            self._nodes.append(self._judge.node(each))
        else:
            self._take_attempt(each)

    def finish(self) -> Imported:
        """Store what is left."""
        self._store_batch()
        self._store_nodes()
        return self._done

    def _take_attempt(self, each: SourceAttempt) -> None:
        try:
            attempt = self._judge.imported(each)
        except ValueError as error:
            self._done.leave_out(BadRow(line=0, file=each.id, why=str(error)))
            return
        uid, version = bytes.fromhex(attempt.uid), version_of(attempt)
        if bytes.fromhex(version) in self._known or uid in self._taken:
            self._done.known += 1
            return
        is_known = uid in self._known
        if is_known and not self._has_grown(each, attempt):
            return
        if attempt.run_id in self._others:
            return
        in_any_zone = (uid_of(self._name, each.in_any_zone),) if each.in_any_zone else ()
        if not is_known and any(bytes.fromhex(one) in self._known for one in in_any_zone):
            self._done.leave_out(BadRow(line=0, file=each.id, why=IN_ANOTHER_ZONE))
            return
        self._taken.add(uid)
        self._done.take(attempt, is_known=is_known)
        if not self._dry_run:
            points = self._judge.points(each.points)
            curves = _store_curves(self._tracks.store, self._name, points)
            self._batch.append((replace(attempt, curves=curves), (version, *in_any_zone)))
        if len(self._batch) == BATCH_ATTEMPTS_MAX:
            self._store_batch()

    def _has_grown(self, each: SourceAttempt, attempt: ImportedAttempt) -> bool:
        """Whether there is more of a known attempt; counts it where there is not."""
        stored = self._histories.run(attempt.run_id)
        before = next((one for one in stored if one.uid == attempt.uid), None)
        if before is not None and before is stored[0] and _is_another(attempt, before):
            self._others.add(attempt.run_id)
            self._done.leave_out(_of_another(each, before))
        if attempt.run_id in self._others:
            return False
        if before is None or attempt.extent <= before.extent:
            self._done.known += 1
            return False
        return True

    def _store_batch(self) -> None:
        """Store the attempts that were taken, sorted, in chunks."""
        known_by = {attempt.uid: also for attempt, also in self._batch}
        attempts = [attempt for attempt, _ in self._batch]
        for chunk in _chunks(sorted(attempts, key=lambda each: (each.run_id, each.order))):
            self._store_chunk(chunk, known_by)
        self._batch = []

    def _store_chunk(
        self, chunk: Sequence[ImportedAttempt], known_by: Mapping[str, Sequence[str]]
    ) -> None:
        """Store attempts, and the record by which they count."""
        store, name = self._tracks.store, self._name
        data = pack(chunk)
        uids = pack_uids(uid for each in chunk for uid in (each.uid, *known_by[each.uid]))
        body = HistoryImported(
            history=name,
            system=self._history.system,
            origin=self._history.origin,
            chunk_sha256=sha256_hex(data),
            uids_sha256=sha256_hex(uids),
            first_run_id=chunk[0].run_id,
            last_run_id=chunk[-1].run_id,
            attempt_count=len(chunk),
            by=self._by,
        )
        write_addressed(store, history_chunk_key(name, body.chunk_sha256), data)
        write_addressed(store, history_uids_key(name, body.uids_sha256), uids)
        self._append(self._tracks.draft(Kind.HISTORY_IMPORTED, body), _unless_there)
        self._on_stored(len(chunk))

    def _store_nodes(self) -> None:
        """Store each node of a list whose state differs from the one before it."""
        if not self._nodes:
            return
        new = changed_nodes(self._histories.nodes(self._name), self._nodes)
        self._done.nodes, self._done.nodes_new = newest_nodes(self._nodes), len(new)
        for begin in range(0, 0 if self._dry_run else len(new), CHUNK_ATTEMPTS_MAX):
            part = new[begin : begin + CHUNK_ATTEMPTS_MAX]
            data = pack_nodes(part)
            body = NodesImported(
                history=self._name,
                system=self._history.system,
                origin=self._history.origin,
                nodes_sha256=sha256_hex(data),
                node_count=len(part),
                by=self._by,
            )
            key = history_nodes_key(self._name, body.nodes_sha256)
            write_addressed(self._tracks.store, key, data)
            self._append(self._tracks.draft(Kind.NODES_IMPORTED, body), _unless_listed)

    def _append(
        self, draft: Draft, choose: Callable[[Draft, HistoryState | None], Draft | None]
    ) -> None:
        self._tracks.decide_history(self._name, partial(choose, draft))
        self._tracks.project(history_track(self._name))


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


def _check_origin(state: HistoryState | None, history: History) -> None:
    """Raise InvalidInput where runs that are known would have other ids, and be imported twice."""
    if state is None or history.system not in FOLDERS:
        return
    path = Path(history.origin)
    for before in {each.origin: Path(each.origin) for each in state.chunks}.values():
        if path != before and (path.is_relative_to(before) or before.is_relative_to(path)):
            raise InvalidInput(
                f"The history {state.name} has runs of {before} already, and {path} has the same ones "
                f"under other names: import {before} again, or give another --name."
            )


def _known(store: ObjectStore, state: HistoryState | None) -> set[bytes]:
    """Return the identities of all attempts that were imported, and of how much was known of each."""
    known: set[bytes] = set()
    for chunk in state.chunks if state is not None else ():
        key = history_uids_key(chunk.history, chunk.uids_sha256)
        known.update(unpack_uids(read_addressed(store, key, chunk.uids_sha256)))
    return known


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
