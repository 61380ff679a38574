"""Check the records of a track: each parses, none is missing, the chain and the fold hold.

A track has no witness for its own last record; the ledger's cursor, which remembers the sha256 of
the last record it took in, serves as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tracks_dagster.ledger import track_states
from tracks_dagster.ledger.effects.projector import KINDS
from tracks_dagster.ledger.ports import Cursor
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.track.errors import RecordNewer, TrackBroken
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.names import dataset_track, run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Record, sha256_hex
from tracks_dagster.track.states.checkpoints import checkpoint_at
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import last_seq, log_key, read_record
from tracks_dagster.track.unforeseen import problem_of

RESTORE = "Restore the object from a backup or the bucket's versions"
UPGRADE = (
    "Install the version of the machine that wrote it, which a record does not name, and restore "
    "nothing"
)


class FindingKind(StrEnum):
    """Every kind of finding, by what it is about. Programs go by these; people read the sentences."""

    # a track
    RECORD_MISSING = "record_missing"
    RECORD_BROKEN = "record_broken"  # it does not parse, or does not follow the one before it
    RECORD_NEWER = "record_newer"  # it follows, and only a newer version can read it
    RECORD_EDITED = "record_edited"  # whole, but not the one that the ledger took in
    TRACK_CUT = "track_cut"  # records at its end are gone
    RECORD_WITHOUT_ROWS = "record_without_rows"  # it holds, and the ledger cannot be made of it
    RULES_BROKEN = "rules_broken"  # the state before a record does not allow it
    NOT_CHECKED = "not_checked"  # checking it met an error that nobody foresaw
    # what a record names by hash, or describes
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    DELETION_LIST_WRONG = "deletion_list_wrong"
    EVIDENCE_WRONG = "evidence_wrong"
    PLACES_WRONG = "places_wrong"
    TRAINER_WRONG = "trainer_wrong"
    CODE_DIFF_WRONG = "code_diff_wrong"
    PACKAGES_WRONG = "packages_wrong"
    SNAPSHOT_WRONG = "snapshot_wrong"
    CHECKS_WRONG = "checks_wrong"
    EVAL_RESULT_WRONG = "eval_result_wrong"
    EVAL_FILE_WRONG = "eval_file_wrong"
    ARTIFACT_WRONG = "artifact_wrong"
    MEDIA_WRONG = "media_wrong"
    HISTORY_WRONG = "history_wrong"
    JOURNAL_GAP = "journal_gap"
    JOURNAL_EDITED = "journal_edited"
    JOURNAL_SHORT = "journal_short"
    # one track against another
    SOURCE_UNKNOWN = "source_unknown"  # what a run branched from is in no track
    SNAPSHOT_UNKNOWN = "snapshot_unknown"  # nor is what it trained on
    # the ledger
    LEDGER_LACKS_TRACK = "ledger_lacks_track"
    LEDGER_ROW_WRONG = "ledger_row_wrong"
    LEDGER_REMEMBERS_MORE = "ledger_remembers_more"  # than a broken track holds
    LEDGER_UNREADABLE = "ledger_unreadable"
    LEDGER_TRACK_LOST = "ledger_track_lost"
    # an exported run
    ARCHIVE_UNREADABLE = "archive_unreadable"
    ARCHIVE_NEWER = "archive_newer"
    MEMBER_MISSING = "member_missing"
    MEMBER_CHANGED = "member_changed"
    MEMBER_ADDED = "member_added"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that does not hold. where: a key, a track, a ledger's table or an archive's member.

    meaning: one or two sentences on what it means; to_do: what a person does about it.
    """

    kind: FindingKind
    where: str
    meaning: str
    to_do: str


def track_names(store: ObjectStore) -> list[str]:
    """Return the name of every track in the store, sorted."""
    return sorted(
        prefix + name
        for prefix in KINDS
        for name in store.folders(prefix)
        if has_records(store, prefix + name)
    )


def has_records(store: ObjectStore, name: str) -> bool:
    """Whether the store holds any record of that track."""
    return next(iter(store.list(f"{name}/log/")), None) is not None


def read_track(
    store: ObjectStore,
    name: str,
    cursor: Cursor | None = None,
    *,
    known: Sequence[Record] = (),
) -> tuple[list[Record], list[Finding]]:
    """Return the records that hold, from the first on, and what ended them early if anything did.

    Behind a record of a newer version only the chain is checked. cursor: what the ledger took in last,
    which distinguishes such a record at a track's end from an edited one. known: are not read again.
    """
    records = list(known)
    newer: list[Finding] = []
    prev_sha256 = records[-1].sha256 if records else None
    last = last_seq(store, name)
    for seq in range(len(records), last + 1):
        data = store.get(log_key(name, seq), RECORD_BYTES_MAX)
        if data is None:
            return records, [*newer, _missing(name, seq, last)]
        sha256 = sha256_hex(data)
        try:
            record = read_record(name, prev_sha256, data, seq)
            if not newer:
                records.append(record)
        except RecordNewer as error:
            if cursor is not None and cursor.seq == seq and cursor.sha256 != sha256:
                return records, [*newer, _edited(name, seq)]
            newer = newer or [_newer(log_key(name, seq), error)]
        except TrackBroken as error:
            if seq == len(records) + 1:  # what seemed newer may be what was edited
                newer = []
            return records, [*newer, _broken(name, seq, str(error))]
        prev_sha256 = sha256
    return records, newer


def check_cursor(
    name: str, records: Sequence[Record], cursor: Cursor | None, *, is_read: bool = True
) -> Iterator[Finding]:
    """Yield where the ledger's memory of the track's end contradicts it.

    is_read: `records` are all there are; if not, what ended them early is reported already.
    """
    if cursor is None or (cursor.seq >= len(records) and not is_read):
        return
    if cursor.seq >= len(records):
        yield Finding(
            kind=FindingKind.TRACK_CUT,
            where=log_key(name, cursor.seq),
            meaning=f"The ledger has seen record {cursor.seq} of {name}, and the track cannot be "
            "read that far any more: records at its end were deleted or damaged.",
            to_do=f"{RESTORE}. If it cannot be had, `tracks reindex --forget-lost` makes the ledger "
            "agree with what is left.",
        )
    elif records[cursor.seq].sha256 != cursor.sha256:
        yield _edited(name, cursor.seq)


def fold_track(name: str, records: Sequence[Record]) -> tuple[TrackState | None, list[Finding]]:
    """Return the state as far as the records can be folded, and the record that stopped it."""
    state: TrackState | None = None
    for record in records:
        try:
            state = track_states.apply(name, state, record)
        except RecordNewer as error:
            return state, [_newer(log_key(name, record.seq), error)]
        except TrackBroken as error:
            return state, [_against_the_rules(log_key(name, record.seq), error)]
    return state, []


def not_checked(name: str, error: Exception) -> Finding:
    """Return that the check of a track broke off, of which the rest is not known."""
    return Finding(
        kind=FindingKind.NOT_CHECKED,
        where=name,
        meaning=f"{problem_of(error)} What {name} holds, and names, was not checked to its end.",
        to_do="Report it, with this sentence; every other track was checked.",
    )


def _newer(where: str, error: RecordNewer) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_NEWER,
        where=where,
        meaning=f"{error} The chain holds, so this is neither damage nor tampering; what it and the "
        "records after it say is not known here.",
        to_do=f"{UPGRADE}.",
    )


def _against_the_rules(where: str, error: TrackBroken) -> Finding:
    return Finding(
        kind=FindingKind.RULES_BROKEN,
        where=where,
        meaning=f"{error} The state before it does not allow it: a writer broke the rules, or a newer "
        "version, which has others, wrote it.",
        to_do="Keep the track as it is and do not retry the run before this is understood.",
    )


def _edited(name: str, seq: int) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_EDITED,
        where=log_key(name, seq),
        meaning=f"Record {seq} of {name} is not the one that the ledger took in: it was edited after "
        "it was written.",
        to_do=f"{RESTORE}, and find out who wrote there.",
    )


def _missing(name: str, seq: int, last: int) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_MISSING,
        where=log_key(name, seq),
        meaning=f"Record {seq} of {name} is gone while records up to {last} are there: it was "
        "deleted, and what came after it is not read.",
        to_do=f"{RESTORE}; until then the track is read as it was before, so do not retry the run.",
    )


def _broken(name: str, seq: int, problem: str) -> Finding:
    return Finding(
        kind=FindingKind.RECORD_BROKEN,
        where=log_key(name, seq),
        meaning=f"{problem} Records are never edited, so this is damage or tampering.",
        to_do=f"{RESTORE}, and find out who wrote there; the records before it still hold.",
    )


class OtherTracks:
    """Checks that other tracks have what a run refers to; reads each dataset's track once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._snapshots: dict[str, frozenset[str] | None] = {}

    def check(self, state: RunState) -> Iterator[Finding]:
        """Yield what the run refers to and no other track knows."""
        yield from self._check_branch(state)
        asked = [state.declared.snapshot, *(a.opened.snapshot for a in state.attempts)]
        for each in dict.fromkeys(filter(None, asked)):
            dataset, snapshot_id = each.dataset, each.snapshot_id
            if not self._has(dataset, snapshot_id):
                yield Finding(
                    kind=FindingKind.SNAPSHOT_UNKNOWN,
                    where=run_track(state.run_id),
                    meaning=f"Run {state.run_id} trains on snapshot {snapshot_id} of {dataset}, and "
                    f"{dataset_track(dataset)} has no record of it: that track was cut or replaced.",
                    to_do=f"{RESTORE}: without it nobody knows what the run saw.",
                )

    def _check_branch(self, state: RunState) -> Iterator[Finding]:
        ref = state.declared.branched_from
        if ref is None:
            return
        name = run_track(ref.run_id)
        source, is_newer = self._read(name)
        if is_newer or (
            isinstance(source, RunState) and source.checkpoint(ref.manifest_sha256) is not None
        ):
            return
        yield Finding(
            kind=FindingKind.SOURCE_UNKNOWN,
            where=run_track(state.run_id),
            meaning=f"Run {state.run_id} branched from {checkpoint_at(ref)}, attempt "
            f"{ref.attempt_id}, and {name} has no record of that checkpoint: that track was cut, "
            "deleted or replaced.",
            to_do=f"{RESTORE}; until then nothing shows what the branch began with.",
        )

    def _has(self, dataset: str, snapshot_id: str) -> bool:
        """Whether the dataset has that snapshot; True where only a newer version could tell."""
        for is_again in (False, True):  # it may have been committed since the track was read
            if is_again or dataset not in self._snapshots:
                self._snapshots[dataset] = self._snapshots_of(dataset)
            there = self._snapshots[dataset]
            if there is None or snapshot_id in there:
                return True
        return False

    def _snapshots_of(self, dataset: str) -> frozenset[str] | None:
        state, is_newer = self._read(dataset_track(dataset))
        there = state.snapshots if isinstance(state, DatasetState) else ()
        return None if is_newer else frozenset(s.body.snapshot_id for s in there)

    def _read(self, name: str) -> tuple[TrackState | None, bool]:
        """Return the state of a track, and whether a newer version wrote what is not in it."""
        records, problems = read_track(self._store, name)
        state, objections = fold_track(name, records)
        kinds = {finding.kind for finding in (*problems, *objections)}
        return state, FindingKind.RECORD_NEWER in kinds
