"""Export all that explains a run as one archive, for a machine without our store.

In it: the tracks, evidence, journals and manifests of the run and of those that it branched from; the
tracks of their datasets with the manifests of their snapshots; the tracks of their pools and of the
quarantines where they are small. Chunks only on request, rows of data never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.recovery.effects.fsck_tracks import fold_track, read_track
from tracks_dagster.review.effects.explain.reading import RunRead, read_run
from tracks_dagster.review.explain.explanation import Break
from tracks_dagster.stores.archive import (
    ARCHIVE_FORMAT,
    MANIFEST,
    README,
    STORE,
    ArchiveManifest,
    LeftOut,
    manifest_bytes,
    readme,
)
from tracks_dagster.track.errors import InvalidInput, TrackBroken, UnknownRun
from tracks_dagster.track.json_text import EVIDENCE_BYTES_MAX, MANIFEST_BYTES_MAX, parse_json
from tracks_dagster.track.names import QUARANTINES_TRACK, dataset_track, pool_track, run_track
from tracks_dagster.track.placement import pool_of
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.redact import Redact, redact_json
from tracks_dagster.track.text.safe_text import valid_json
from tracks_dagster.track.track import last_seq, log_key

SOURCES_MAX = 100  # runs that a branch descends from, one from the other
SHARED_TRACK_BYTES_MAX = 4 * 1024 * 1024  # of a pool's track, or the quarantines': else left out
FORMAT_KEY = "format.json"

Add = Callable[[str, bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written. total_bytes: of the members, before they were packed.

    broken: where the run's track breaks; what follows is in the archive as it is.
    """

    manifest: ArchiveManifest
    member_count: int
    total_bytes: int
    broken: Break | None


def export_run(
    tracks: Tracks, run_id: str, add: Add, *, with_chunks: bool, redact: Redact, version: str
) -> Exported:
    """Give every member of the archive to `add`, the manifest last; holds one object at a time.

    An object in which `redact` finds a secret is left out; raises InvalidInput where that is a record,
    without which the others prove nothing. Raises UnknownRun, and TrackBroken where not even the first
    record of the run can be read. What the run does meanwhile is not in it.
    """
    reads = tuple(_with_sources(tracks, run_id))
    runs = tuple(read.state for read in reads)
    plan = _Plan(tracks.store, with_chunks=with_chunks)
    keys = sorted(set(plan.keys_of(reads)))
    members = _Members(add, redact)
    members.write(README, readme(run_id, package_version=version).encode())
    for key in keys:
        data = tracks.store.get(key)
        if data is None:
            plan.left_out.append(
                LeftOut(what=key, why="It was removed while the run was exported.")
            )
        elif not members.write_object(key, data):
            plan.left_out.append(LeftOut(what=key, why="It holds what looks like a secret."))
    manifest = ArchiveManifest(
        format=ARCHIVE_FORMAT,
        run_ids=tuple(state.run_id for state in runs),
        head_seqs=plan.head_seqs,
        chunks_of=(run_id,) if with_chunks else (),
        policy_versions=_policy_versions(runs),
        package_version=version,
        left_out=tuple(plan.left_out),
        members=dict(members.sha256s),
    )
    members.write(MANIFEST, _checked(manifest_bytes(manifest)))
    return Exported(
        manifest=manifest,
        member_count=len(members.sha256s),
        total_bytes=members.total_bytes,
        broken=reads[0].broken,
    )


def _checked(manifest: bytes) -> bytes:
    """Return the manifest; raises InvalidInput for one that nobody could read."""
    if len(manifest) > MANIFEST_BYTES_MAX:
        raise InvalidInput(
            f"Cannot export: the list of all files has {len(manifest)} bytes, and none of more than "
            f"{MANIFEST_BYTES_MAX} is read. Leave out --with-chunks, or copy the store."
        )
    return manifest


class _Members:
    """Adds members, and remembers the sha256 of each."""

    def __init__(self, add: Add, redact: Redact) -> None:
        self._add = add
        self._redact = redact
        self.sha256s: dict[str, str] = {}
        self.total_bytes = 0

    def write(self, name: str, data: bytes) -> None:
        """Add one member."""
        self._add(name, data)
        self.sha256s[name] = sha256_hex(data)
        self.total_bytes += len(data)

    def write_object(self, key: str, data: bytes) -> bool:
        """Add an object under its key; False, with nothing added, when it holds a secret."""
        if not _is_chunk(key) and self._has_secret(data):
            if "/log/" in key:
                raise InvalidInput(
                    f"Cannot export: the record {key} holds what looks like a secret, and a record "
                    "cannot be left out without breaking the chain. Change that secret where it is "
                    "used, then take it from this shell's environment to export anyway."
                )
            return False
        self.write(STORE + key, data)
        return True

    def _has_secret(self, data: bytes) -> bool:
        """Whether a text in it would be changed: each by itself, as it was when it was cleaned."""
        lines = data.splitlines() if data.startswith(b"{") else [data]
        return any(self._line_has_secret(line) for line in lines)

    def _line_has_secret(self, line: bytes) -> bool:
        try:
            value = valid_json(parse_json(line, bytes_max=EVIDENCE_BYTES_MAX))
        except ValueError:
            value = line.decode("utf-8", "replace")
        return bool(redact_json(value, self._redact) != value)


class _Plan:
    """Which objects belong to the archive, and what is left out of it."""

    def __init__(self, store: ObjectStore, *, with_chunks: bool) -> None:
        self._store = store
        self._with_chunks = with_chunks
        self.left_out: list[LeftOut] = []
        self.head_seqs: dict[str, int] = {}

    def keys_of(self, reads: Sequence[RunRead]) -> Iterator[str]:
        """Yield the keys for runs, the exported one first."""
        yield FORMAT_KEY
        for index, read in enumerate(reads):
            yield from self._keys_of_run(read, with_chunks=self._with_chunks and index == 0)
        runs = [read.state for read in reads]
        for dataset in sorted({name for state in runs for name in _datasets(state)}):
            yield from self._keys_of_dataset(dataset)
        self.left_out.append(
            LeftOut(what="rows of data", why="Only manifests of snapshots are kept.")
        )
        for name in sorted({name for state in runs for name in _pools(state)}):
            yield from self._keys_if_small(name)
        yield from self._keys_if_small(QUARANTINES_TRACK)

    def _keys_of_run(self, read: RunRead, *, with_chunks: bool) -> Iterator[str]:
        state = read.state
        track = run_track(state.run_id)
        chunk_count, kept = 0, []
        for key in self._store.list(f"{track}/"):
            if _is_chunk(key) and not with_chunks:
                chunk_count += 1
            else:
                kept.append(key)
        last = state.head.seq if read.broken is None else last_seq(self._store, track)
        yield from self._up_to(last, track, kept)
        if chunk_count:
            why = "Give --with-chunks for those of the exported run."
            self.left_out.append(LeftOut(what=f"{chunk_count} chunks of {state.run_id}", why=why))

    def _keys_of_dataset(self, dataset: str) -> Iterator[str]:
        track = dataset_track(dataset)
        state, _ = fold_track(track, read_track(self._store, track)[0])
        if not isinstance(state, DatasetState):
            self.left_out.append(LeftOut(what=track, why="There is no such track to be read."))
            return
        keys = self._store.list(f"{track}/log/")
        yield from self._up_to(last_seq(self._store, track), track, keys)
        yield from (snapshot.body.manifest_key for snapshot in state.snapshots)

    def _keys_if_small(self, track: str) -> Iterator[str]:
        keys = list(self._store.list(f"{track}/log/"))
        total_bytes = 0
        for key in keys:
            total_bytes += len(self._store.get(key) or b"")
            if total_bytes > SHARED_TRACK_BYTES_MAX:
                why = f"It is larger than {SHARED_TRACK_BYTES_MAX} bytes and mostly of other runs."
                self.left_out.append(LeftOut(what=track, why=why))
                return
        yield from self._up_to(last_seq(self._store, track), track, keys)

    def _up_to(self, last: int, track: str, keys: Iterable[str]) -> Iterator[str]:
        """Yield the keys without the records after `last`, which came meanwhile; name a lost record.

        last: -1 where the track has no record.
        """
        there = {key for key in keys if not _is_later(key, track, last)}
        yield from there
        if last >= 0:
            self.head_seqs[track] = last
        seqs = (seq for seq in range(last + 1) if log_key(track, seq) not in there)
        if (lost := next(seqs, None)) is not None:
            why = "It is lost, though later ones are there; `tracks fsck` says more."
            self.left_out.append(LeftOut(what=log_key(track, lost), why=why))


def _with_sources(tracks: Tracks, run_id: str) -> Iterator[RunRead]:
    """Yield the run, then the run that it branched from, and so on."""
    read: RunRead | None = read_run(tracks, run_id)
    for _ in range(SOURCES_MAX):
        if read is None:
            return
        yield read
        source = read.state.declared.branched_from
        read = None if source is None else _find(tracks, source.run_id)


def _find(tracks: Tracks, run_id: str) -> RunRead | None:
    """Return the run as far as its track holds, or None where nothing of it can be read."""
    try:
        return read_run(tracks, run_id)
    except (UnknownRun, TrackBroken):
        return None


def _datasets(state: RunState) -> Iterator[str]:
    asked = (state.declared.snapshot, *(attempt.opened.snapshot for attempt in state.attempts))
    evaluated = (
        *(declared.snapshot for declared in state.declared.evals),
        *(evaluation.opened.snapshot for evaluation in state.evals),
    )
    yield from (each.dataset for each in (*asked, *evaluated) if each is not None)


def _pools(state: RunState) -> Iterator[str]:
    for attempt in state.attempts:
        yield pool_track(pool_of(attempt.opened.compute))


def _policy_versions(runs: tuple[RunState, ...]) -> tuple[str, ...]:
    versions = (attempt.opened.policy_version for state in runs for attempt in state.attempts)
    return tuple(dict.fromkeys(version for version in versions if version))


def _is_chunk(key: str) -> bool:
    return any(part in key for part in ("/chunks/", "/artifacts/parts/", "/media/parts/"))


def _is_later(key: str, track: str, head_seq: int) -> bool:
    """Whether the key is of a record that came after what was read, which explains nothing here."""
    name = key.removeprefix(f"{track}/log/").removesuffix(".json")
    return name.isdigit() and int(name) > head_seq
