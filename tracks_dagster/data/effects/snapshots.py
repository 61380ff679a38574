"""Make and find data snapshots: checked first, then stored, then committed by one record.

A snapshot exists if and only if its `snapshot_committed` record does. Its shards and manifest are
named by their content, so that a maker that dies on the way leaves only objects nobody names. What
rows must look like is `data.effects.datasets`'s to know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tracks_dagster.data.effects.freezing import Frozen, Progress, freeze, list_files
from tracks_dagster.data.effects.own_checks import OwnChecks, run_checks, stored_checks
from tracks_dagster.data.ports import Datasets
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.stores.hashes import Hashes
from tracks_dagster.stores.local_files import HASHES, local_files
from tracks_dagster.stores.sources import FolderSource, open_source
from tracks_dagster.track.bodies import DatasetDeclared, SnapshotCommitted, SnapshotRef
from tracks_dagster.track.errors import DataRejected, InvalidInput, UnknownRun
from tracks_dagster.track.json_text import SNAPSHOT_BYTES_MAX
from tracks_dagster.track.names import snapshot_asset
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.dataset_state import (
    DatasetState,
    PreparedSnapshot,
    SnapshotState,
    checks_key,
    find_by_prefix,
    manifest,
    manifest_key,
    shard_key,
    snapshot_id,
)
from tracks_dagster.track.states.files_manifest import FILES

DATASET_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """A snapshot of files. is_new: no record was there before; written_bytes: new to the store.

    passed: the checks that the files passed now; the record of a snapshot that was there already
    keeps those that it was recorded with.
    """

    body: SnapshotCommitted
    is_new: bool
    passed: tuple[str, ...]
    written_bytes: int


def add_files(
    tracks: Tracks,
    datasets: Datasets,
    dataset: str,
    place: str,
    *,
    in_place: bool,
    cache: Path,
    checks: OwnChecks | None = None,
    on_listed: Callable[[int, int], object] = lambda file_count, total_bytes: None,
    progress: Progress = lambda done: None,
    dagster_run_id: str | None = None,
) -> Added:
    """Freeze the files at `place`, a path or s3:// prefix, as a snapshot of `dataset`.

    in_place: record their hashes and leave them where they are. cache: this machine's, for hints and
    fetched files. Idempotent and safe from two processes, as `make_snapshot`. Raises InvalidInput for
    what cannot be frozen, DataRejected when one of `checks` fails; nothing is recorded then.
    """
    _check_name(tracks, datasets, dataset)
    source = open_source(place)
    is_local = isinstance(source, FolderSource)
    if Path(place).is_dir():
        _check_apart(source.url, tracks.store.url, str(cache.resolve()))
    elif is_local:
        _check_one_file(place, in_place, checks)
    hashes = Hashes(cache / HASHES, source.url)
    files = list_files(source)
    passed: tuple[str, ...] = ()
    if checks is not None and is_local:  # before a byte is copied
        passed = run_checks(checks, dataset, Path(source.url))
    on_listed(len(files), sum(file.size_bytes for file in files))
    frozen = freeze(
        source, files, tracks.store, dataset, in_place=in_place, hashes=hashes, progress=progress
    )
    data = frozen.manifest.data
    ref = SnapshotRef(dataset=dataset, snapshot_id=_put_manifest(tracks.store, dataset, data))
    if checks is not None and not is_local:
        passed = run_checks(checks, dataset, local_files(tracks.store, ref, cache))
    if checks is not None:
        tracks.store.put(checks_key(dataset, checks.sha256), checks.source)
    where = str(Path(place).absolute()) if is_local else source.url
    body = _files_body(ref, frozen, where, passed, checks, dagster_run_id)
    declared = DatasetDeclared(
        dataset=dataset, description=f"Files of one's own, first added from {where}.", kind=FILES
    )
    known = _commit_files(tracks, declared, body)
    return Added(
        body=known or body,
        is_new=known is None,
        passed=passed,
        written_bytes=frozen.written_bytes,
    )


def checks_in_force(tracks: Tracks, dataset: str) -> OwnChecks | None:
    """Return the checks of the newest snapshot that was added with any, which the next one passes too.

    Raises DataRejected when they are lost.
    """
    state = tracks.find_dataset(dataset)
    checked = [s.body for s in (state.snapshots if state else ()) if s.body.checks_sha256]
    return stored_checks(tracks.store, checked[-1]) if checked else None


def _check_one_file(place: str, in_place: bool, checks: OwnChecks | None) -> None:
    if in_place:
        raise InvalidInput(
            f"{place} is one file, and what lies beside it would be seen as well; name a folder that "
            "holds nothing else, or add it without --in-place."
        )
    if checks is not None:
        raise InvalidInput(f"Checks look at a folder; name the one that holds {place}.")


def _check_apart(source: str, *ours: str) -> None:
    """Raise InvalidInput where what is frozen holds what is written while it is frozen."""
    for place in ours:
        if f"{place}/".startswith(f"{source.rstrip('/')}/"):
            raise InvalidInput(
                f"{source} holds {place}, which tracks itself writes to; name the folder that holds "
                "the data alone."
            )


def _check_name(tracks: Tracks, datasets: Datasets, dataset: str) -> None:
    if not DATASET_NAME.fullmatch(dataset):
        raise InvalidInput(
            f"{dataset!r} cannot be a dataset's name; use 1 to 40 of a-z, 0-9 and '-' between them."
        )
    try:
        shipped = datasets.describe(dataset)
    except UnknownRun:
        shipped = None
    if shipped is not None:
        raise InvalidInput(
            f"{dataset!r} is a dataset that ships ({shipped.description.split(':')[0]}); give yours "
            "another name."
        )
    state = tracks.find_dataset(dataset)
    if state is not None and state.declared.kind != FILES:
        raise InvalidInput(
            f"{dataset!r} is a dataset of another kind ({state.declared.kind}), which files cannot "
            "join; give yours another name."
        )


def _files_body(
    ref: SnapshotRef,
    frozen: Frozen,
    source: str,
    passed: tuple[str, ...],
    checks: OwnChecks | None,
    dagster_run_id: str | None,
) -> SnapshotCommitted:
    manifest = frozen.manifest
    return SnapshotCommitted(
        dataset=ref.dataset,
        snapshot_id=ref.snapshot_id,
        manifest_key=manifest_key(ref.dataset, ref.snapshot_id),
        row_count=None,
        total_bytes=manifest.total_bytes,
        shard_count=manifest.shard_count,
        logical_sha256=manifest.logical_sha256,
        source=source,
        checks=passed,
        dagster_run_id=dagster_run_id,
        file_count=manifest.file_count,
        in_place=manifest.in_place,
        checks_sha256=None if checks is None else checks.sha256,
    )


def _commit_files(
    tracks: Tracks, declared: DatasetDeclared, body: SnapshotCommitted
) -> SnapshotCommitted | None:
    """Append the record; return the one of the same files where it was there already."""
    draft = tracks.draft(Kind.DATASET_DECLARED, declared)
    tracks.decide_dataset(body.dataset, lambda state: draft if state is None else None)
    commit = tracks.draft(Kind.SNAPSHOT_COMMITTED, body)
    record = tracks.decide_dataset(body.dataset, lambda state: _unless_known(state, commit, body))
    known = None if record is not None else _known(tracks.find_dataset(body.dataset), body)
    return None if known is None else known.body


def make_snapshot(
    tracks: Tracks,
    datasets: Datasets,
    dataset: str,
    *,
    source: Path | None = None,
    dagster_run_id: str | None = None,
) -> SnapshotCommitted:
    """Commit a snapshot of the data as it is now, and return its record's body.

    Idempotent and safe from two processes: the same data finds the snapshot that is there, and
    writes no second record. With nothing written, raises InvalidInput when it cannot be read as this
    dataset, DataRejected naming the bad rows.
    """
    with datasets.prepare(dataset, source) as prepared:
        body = _store(tracks.store, dataset, prepared, source, dagster_run_id)
    _declare(tracks, datasets, dataset)
    draft = tracks.draft(Kind.SNAPSHOT_COMMITTED, body)
    tracks.decide_dataset(dataset, lambda state: _unless_known(state, draft, body))
    committed = _known(tracks.find_dataset(dataset), body)
    return committed.body if committed is not None else body


def find_snapshot(tracks: Tracks, dataset: str, snapshot_id: str | None = None) -> SnapshotRef:
    """Return the newest usable snapshot of `dataset`, or the one whose id begins with the given.

    Raises UnknownRun when there is none, InvalidInput when the id is ambiguous or the snapshot is
    quarantined.
    """
    state = tracks.find_dataset(dataset)
    if state is None or not state.snapshots:
        raise UnknownRun(
            f"There is no snapshot of dataset {dataset!r}; add one of your own files with `tracks "
            f"snapshots add {dataset} PATH`. One that ships is made by the asset "
            f"{snapshot_asset(dataset)!r} in the UI, or by `tracks run`."
        )
    found = state.newest_usable if snapshot_id is None else find_by_prefix(state, snapshot_id)
    if found is None:
        newest = state.snapshots[-1]
        raise InvalidInput(
            f"Every snapshot of {dataset} is quarantined, the newest, {newest.body.snapshot_id[:12]}, "
            f"because: {newest.quarantined_why}. Make one of corrected data, or release one: "
            f"{_release(dataset, newest)}."
        )
    if found.quarantined_why is not None:
        raise InvalidInput(
            f"Snapshot {found.body.snapshot_id} of {dataset} is quarantined "
            f"({found.quarantined_why}); use another one, or release it with "
            f"{_release(dataset, found)}."
        )
    return SnapshotRef(dataset=dataset, snapshot_id=found.body.snapshot_id)


def _release(dataset: str, snapshot: SnapshotState) -> str:
    return f'`tracks release snapshot:{dataset}@{snapshot.body.snapshot_id[:12]} --why "…"`'


def _put_manifest(store: ObjectStore, dataset: str, data: bytes) -> str:
    """Store a manifest and return its snapshot's id; raises InvalidInput where nobody could read it."""
    if len(data) > SNAPSHOT_BYTES_MAX:
        raise InvalidInput(
            f"The manifest of this snapshot of {dataset} has {len(data)} bytes; at most "
            f"{SNAPSHOT_BYTES_MAX} are read. Use fewer, larger files, with shorter names."
        )
    identity = snapshot_id(data)
    store.put(manifest_key(dataset, identity), data)
    return identity


def _store(
    store: ObjectStore,
    dataset: str,
    prepared: PreparedSnapshot,
    source: Path | None,
    dagster_run_id: str | None,
) -> SnapshotCommitted:
    """Make shards and manifest durable, in this order, and return the body that commits them."""
    for shard in prepared.shards:
        store.put(shard_key(dataset, shard.sha256), shard.path.read_bytes())
    written = manifest(dataset, prepared)
    identity = _put_manifest(store, dataset, written)
    return SnapshotCommitted(
        dataset=dataset,
        snapshot_id=identity,
        manifest_key=manifest_key(dataset, identity),
        row_count=prepared.row_count,
        total_bytes=prepared.total_bytes,
        shard_count=len(prepared.shards),
        logical_sha256=prepared.logical_sha256,
        source=prepared.source if source is None else f"{prepared.source}: {source.name}",
        checks=prepared.checks,
        dagster_run_id=dagster_run_id,
    )


def _declare(tracks: Tracks, datasets: Datasets, dataset: str) -> None:
    draft = tracks.draft(Kind.DATASET_DECLARED, datasets.describe(dataset))
    tracks.decide_dataset(dataset, lambda state: draft if state is None else None)


def _unless_known(
    state: DatasetState | None, draft: Draft, body: SnapshotCommitted
) -> Draft | None:
    """Commit what is new; raises DataRejected when this very data was quarantined."""
    known = _known(state, body)
    if known is not None and known.quarantined_why is not None:
        raise DataRejected(
            f"This data of {body.dataset} is snapshot {body.snapshot_id}, which is quarantined: "
            f"{known.quarantined_why}. Correct the source, or release the snapshot."
        )
    return None if known is not None else draft


def _known(state: DatasetState | None, body: SnapshotCommitted) -> SnapshotState | None:
    return state.snapshot(body.snapshot_id) if state is not None else None
