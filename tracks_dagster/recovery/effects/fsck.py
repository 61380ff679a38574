"""Check everything that a store holds against its tracks, the ledger against both, and exported runs.

Reads every byte that a record names by hash. It repairs nothing: each finding names what it means and
what a person does about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.track_states import TrackState
from tracks_dagster.recovery.effects.fsck_ledger import check_ledger, check_orphans, unreadable
from tracks_dagster.recovery.effects.fsck_objects import (
    IsAbsent,
    VerifyCheckpoint,
    check_artifacts,
    check_checkpoints,
    check_deletions,
    check_eval_files,
    check_eval_results,
    check_evidence,
    check_history,
    check_journals,
    check_media,
    check_packages,
    check_places,
    check_project,
    check_snapshots,
    check_study_code,
    check_trainer,
    nothing_is_absent,
)
from tracks_dagster.recovery.effects.fsck_tracks import (
    Finding,
    FindingKind,
    OtherTracks,
    check_cursor,
    fold_track,
    not_checked,
    read_track,
    track_names,
)
from tracks_dagster.stores.archive import MANIFEST, STORE, ArchiveManifest
from tracks_dagster.track.errors import ArchiveNewer, LedgerError, StoreError, StoreUnsuitable
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Record, sha256_hex
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.history_state import HistoryState
from tracks_dagster.track.states.project_state import ProjectState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.study_state import StudyState

TRIES_MAX = 64  # cursors that moved while a track was compared; each is an append that was read
AGAIN = (
    "Ask for the archive again, and compare its sha256 with the one that `tracks export` printed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was looked at, and what was found. checkpoint_count: without deleted ones."""

    track_count: int
    record_count: int
    checkpoint_count: int
    snapshot_count: int
    findings: tuple[Finding, ...]


def fsck(
    store: ObjectStore,
    ledger: Ledger | LedgerError,
    verify: VerifyCheckpoint,
    *,
    is_absent: IsAbsent = nothing_is_absent,
) -> Checked:
    """Check the whole store and the ledger; `verify` reads a checkpoint (CheckpointError if bad).

    ledger: or why it cannot be read, which is then a finding.
    is_absent: whether an exported run was made without an object.
    """
    findings: list[Finding] = []
    sources = OtherTracks(store)
    record_count = checkpoint_count = snapshot_count = 0
    names = track_names(store)
    for name in names:
        try:
            track, ledger = _read(store, ledger, name)
            record_count += len(track.records)
            findings += track.problems
            if isinstance(track.state, RunState):
                checkpoint_count += sum(not c.deleted for c in track.state.checkpoints)
                for found in _of_run(store, track.state, verify, is_absent):
                    findings.append(found)  # as it comes: what was found before a defect counts
                findings += sources.check(track.state)
            elif isinstance(track.state, DatasetState):
                snapshot_count += len(track.state.snapshots)
                findings += check_snapshots(store, track.state, is_absent)
            elif isinstance(track.state, ProjectState):
                findings += check_project(store, track.state)
            elif isinstance(track.state, StudyState):
                findings += check_study_code(store, track.state)
            elif isinstance(track.state, HistoryState):
                findings += check_history(store, track.state)
            findings += track.wrong_rows
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - of that track alone
            findings.append(not_checked(name, error))
    if not isinstance(ledger, LedgerError):
        try:
            findings += check_orphans(ledger, store, set(names))
        except LedgerError as error:
            ledger = error
    findings += [unreadable(ledger)] if isinstance(ledger, LedgerError) else []
    return Checked(
        track_count=len(names),
        record_count=record_count,
        checkpoint_count=checkpoint_count,
        snapshot_count=snapshot_count,
        findings=tuple(findings),
    )


def _of_run(
    store: ObjectStore, state: RunState, verify: VerifyCheckpoint, is_absent: IsAbsent
) -> Iterator[Finding]:
    """Check what the records of a run name."""
    yield from check_checkpoints(store, state, verify)
    yield from check_deletions(store, state)
    yield from check_evidence(store, state, is_absent)
    yield from check_places(store, state, is_absent)
    yield from check_trainer(store, state, is_absent)
    yield from check_packages(store, state, is_absent)
    yield from check_eval_results(store, state)
    yield from check_eval_files(store, state, is_absent)
    yield from check_artifacts(store, state, is_absent)
    yield from check_media(store, state, is_absent)
    yield from check_journals(store, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Track:
    """A track and what is wrong with it; wrong_rows: of the ledger, for the same records."""

    records: Sequence[Record]
    state: TrackState | None
    problems: Sequence[Finding]
    wrong_rows: Sequence[Finding] = ()


def _read(
    store: ObjectStore, ledger: Ledger | LedgerError, name: str
) -> tuple[_Track, Ledger | LedgerError]:
    """Return the track, compared with the ledger, and the ledger, or why it cannot be read any more."""
    if not isinstance(ledger, LedgerError):
        try:
            return _compared(store, ledger, name), ledger
        except LedgerError as error:
            ledger = error
    records, problems = read_track(store, name)
    state, objections = fold_track(name, records)
    return _Track(records=records, state=state, problems=[*problems, *objections]), ledger


def _compared(store: ObjectStore, ledger: Ledger, name: str) -> _Track:
    """Read the track and the ledger's rows of it, again while the ledger takes in what is appended.

    Its cursor is read before the track, which only grows, and after the rows.
    """
    cursor = ledger.cursor(name)
    records: list[Record] = []
    for _ in range(TRIES_MAX):
        records, broken = read_track(store, name, cursor, known=records)
        broken += check_cursor(name, records, cursor, is_read=not broken)
        state, objections = fold_track(name, records)
        problems = [*broken, *objections]
        wrong_rows = list(check_ledger(ledger, name, records, cursor, problems))
        before, cursor = cursor, ledger.cursor(name)
        if cursor == before:
            break
    else:
        wrong_rows = []  # of no one moment
    return _Track(records=records, state=state, problems=problems, wrong_rows=wrong_rows)


class Archive(Protocol):
    """An exported run, as its file is."""

    def names(self) -> Sequence[str]:
        """Return the name of every member, sorted."""
        ...

    def member(self, name: str) -> bytes | None:
        """Return the bytes of a member, or None when there is none."""
        ...

    def manifest(self) -> ArchiveManifest:
        """Return its own list of members; raises StoreUnsuitable."""
        ...


def check_archive(archive: Archive) -> Iterator[Finding]:
    """Yield every member that differs from the manifest; reads one at a time.

    The manifest alone proves nothing: who edits a member can edit it too. Then the chain of the records
    and their hashes show it; for a record at the end of a track only the sender's sha256 does.
    """
    try:
        members = archive.manifest().members
    except ArchiveNewer as error:
        yield Finding(
            kind=FindingKind.ARCHIVE_NEWER,
            where=MANIFEST,
            meaning=f"{error} Nothing of it was checked here.",
            to_do="Update tracks-dagster here, then run `tracks fsck` again; the archive need not be "
            "sent again.",
        )
        return
    except StoreUnsuitable as error:
        yield Finding(
            kind=FindingKind.ARCHIVE_UNREADABLE,
            where=MANIFEST,
            meaning=f"{error} What the archive should hold is not known.",
            to_do=f"{AGAIN}.",
        )
        return
    there = set(archive.names()) - {MANIFEST}
    for name in sorted(members.keys() | there):
        data = archive.member(name)
        if data is None:
            yield Finding(
                kind=FindingKind.MEMBER_MISSING,
                where=name,
                meaning=f"{name} is in the manifest of the archive and not in the archive: it was "
                "taken out after the export.",
                to_do=f"{AGAIN}.",
            )
        elif name not in members:
            yield Finding(
                kind=FindingKind.MEMBER_ADDED,
                where=name,
                meaning=f"{name} is in the archive and not in its manifest: it was put in after the "
                "export.",
                to_do=f"Do not believe it. {AGAIN}.",
            )
        elif (found := sha256_hex(data)) != members[name]:
            yield Finding(
                kind=FindingKind.MEMBER_CHANGED,
                where=name,
                meaning=f"{name} has sha256 {found}, and the manifest says {members[name]}: it was "
                "changed after the export.",
                to_do=f"Do not believe it. {AGAIN}.",
            )


def no_store(error: StoreUnsuitable) -> Finding:
    """Return what is wrong where the objects of an archive are not a store that this version reads."""
    return Finding(
        kind=FindingKind.ARCHIVE_UNREADABLE,
        where=f"{STORE}format.json",
        meaning=f"{error} The tracks in the archive were not checked.",
        to_do=f"{AGAIN}; where a newer version wrote it, update this checkout.",
    )


def is_left_out(manifest: ArchiveManifest, key: str) -> bool:
    """Whether an object is not in the archive on purpose: rows of data, and what the manifest names."""
    is_row = key.startswith("datasets/") and "/log/" not in key and "/manifests/" not in key
    is_part = "/artifacts/parts/" in key  # of what a script left: as chunks are
    return is_row or is_part or any(each.what == key for each in manifest.left_out)
