"""One launch of an attempt: its ranks together, placed in the track, with all that they were given.

`place` is where a gang finds out whether it may train at all: of two gangs of one attempt, or one of
an attempt that has ended, it is fenced here, before the first step.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from tracks_dagster.stores.journal_columns import ColumnsWriter
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.append import Authority
from tracks_dagster.track.bodies import AttemptOpened, AttemptPlaced, RankPlace, RunDeclared
from tracks_dagster.track.body_json import body_of, from_json, to_json
from tracks_dagster.track.declared_fields import WORDS
from tracks_dagster.track.errors import SettingsError, TrackBroken
from tracks_dagster.track.json_text import RECORD_BYTES_MAX
from tracks_dagster.track.names import ALONE, run_track
from tracks_dagster.track.placement import compacted, places_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Json, Kind, Record, parse, sha256_hex
from tracks_dagster.track.text.redact import Redact, redact, redact_words
from tracks_dagster.track.track import Track, log_key, packages_key
from tracks_dagster.track.trainer_track import TrainerTrack
from tracks_dagster.training.environment import (
    AttemptPlace,
    RankEnvironment,
    describe_place,
    describe_software,
    digest_of,
)
from tracks_dagster.training.journal import Journal
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.signals.device_watch import DeviceWatch, MemoryWatch
from tracks_dagster.training.software import describe_code, list_packages


def utc_now() -> datetime:
    """Return the time, for records that people read."""
    return datetime.now(UTC)


def draft(kind: Kind, body: object, attempt_id: int | None, *, clean: Redact) -> Draft:
    """Return a record with a fresh uid, its words cleaned of secrets."""
    cleaned = redact_words(to_json(body), WORDS, clean)
    return Draft(uid=uuid.uuid4().hex, kind=kind, body=cleaned, attempt_id=attempt_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A placed launch, as one rank sees it. track: rank 0's; the other ranks write no records.

    clean: takes the secrets of this process out of what it writes.
    """

    store: ObjectStore
    place: AttemptPlace
    ranks: Ranks
    launch_id: str
    track: TrainerTrack | None
    declared: RunDeclared
    opened: AttemptOpened
    environment_sha256: str
    journal: Journal
    clean: Redact

    def draft(self, kind: Kind, body: object) -> Draft:
        """Return a record of this attempt with a fresh uid."""
        return draft(kind, body, self.place.attempt_id, clean=self.clean)

    def append(self, draft: Draft, *, sources: frozenset[str] = frozenset()) -> Record | None:
        """Append a fact, on rank 0 only; None when it was abandoned. Raises Fenced."""
        return self.own_track.append(draft, sources=sources)

    @property
    def own_track(self) -> TrainerTrack:
        """The track as rank 0 writes to it."""
        if self.track is None:
            raise SettingsError("Only rank 0 writes to a run's track.")
        return self.track

    @property
    def replay_steps(self) -> int:
        """How many steps it trains on after the checkpoint of a SIGTERM: as of `Program`."""
        program = self.opened.program or self.declared.program
        return 0 if program is None else program.replay_steps

    @property
    def watch(self) -> tuple[str, ...]:
        """Which files that a command writes are its checkpoints: as of `Program`."""
        program = self.opened.program or self.declared.program
        return () if program is None else program.watch

    def whole_track(self) -> Track:
        """Return the run's track from its first record on, for notes and alerts."""
        return Track(self.store, run_track(self.place.run_id), now=utc_now)


def place(
    store: ObjectStore,
    where: AttemptPlace,
    ranks: Ranks,
    environment: RankEnvironment,
    *,
    on_launch_id: Callable[[str], None],
    clean: Redact = redact,
    computes_on: torch.device | None = None,
) -> Launch:
    """Bring the ranks together under one launch id and append `attempt_placed`. Collective.

    on_launch_id gets the id as soon as it is known. computes_on: the device of another process, which
    trains in this one's place; None: this one does. Raises Fenced on every rank when another launch was
    placed or the attempt is over, SettingsError when the gang has another size than the attempt was
    opened with.
    """
    launch_id = ranks.from_first(lambda: uuid.uuid4().hex)
    on_launch_id(launch_id)
    declared, opened = _orders(store, where, ranks)
    software = _software(declared, opened)
    device = computes_on or ranks.device
    here = describe_place(ranks.rank, device, node=environment.node, pod=environment.pod)
    places = ranks.gather(to_json(here))
    packages = list_packages().encode() if ranks.is_first else b""
    placed = AttemptPlaced(
        launch_id=launch_id,
        world_size=ranks.world_size,
        ranks=tuple(from_json(RankPlace, each) for each in places),
        image=environment.image,
        environment=software,
        environment_sha256=digest_of(software),
        packages_sha256=sha256_hex(packages),
        asked=environment.asked,
        granted=environment.granted,
    )
    track = _trainer_track(store, where, launch_id) if ranks.is_first else None

    def append() -> Json:
        if track is not None:
            body = _stored_places(store, where, placed)
            store.put(packages_key(where.run_id, sha256_hex(packages)), packages)
            track.append(draft(Kind.ATTEMPT_PLACED, body, where.attempt_id, clean=clean))
        return None

    ranks.from_first(append)
    journal = _journal(store, where, launch_id, ranks, computes_on=computes_on, clean=clean)
    journal.write("start", pid=here.pid, boot_id=here.boot_id)
    return Launch(
        store=store,
        place=where,
        ranks=ranks,
        launch_id=launch_id,
        track=track,
        declared=declared,
        opened=opened,
        environment_sha256=placed.environment_sha256,
        journal=journal,
        clean=clean,
    )


def _orders(
    store: ObjectStore, where: AttemptPlace, ranks: Ranks
) -> tuple[RunDeclared, AttemptOpened]:
    """Return what the run and its attempt were to be; raises SettingsError of another gang's size."""
    declared = body_of(RunDeclared, _record(store, where, 0, Kind.RUN_DECLARED))
    opened = body_of(AttemptOpened, _record(store, where, where.opened_seq, Kind.ATTEMPT_OPENED))
    if opened.compute.ranks != ranks.world_size:
        raise SettingsError(
            f"Attempt {where.attempt_id} was opened for {opened.compute.ranks} ranks and "
            f"{ranks.world_size} were started; WORLD_SIZE must be {opened.compute.ranks}."
        )
    return declared, opened


def _software(declared: RunDeclared, opened: AttemptOpened) -> dict[str, Json]:
    """Return what the gang runs on, with the digest of its code where that is stored."""
    is_stored = declared.model_family != ALONE
    code = describe_code(opened.trainer or declared.trainer) if is_stored else {}
    return {**describe_software(), **code}


def _stored_places(store: ObjectStore, where: AttemptPlace, placed: AttemptPlaced) -> AttemptPlaced:
    """Return what the record may hold, once the object that it names is there."""
    body, places = compacted(placed)
    if places is not None and body.places_sha256 is not None:
        sha256 = body.places_sha256
        store.put(places_key(where.ref, placed.launch_id, sha256), places)
    return body


def _trainer_track(store: ObjectStore, where: AttemptPlace, launch_id: str) -> TrainerTrack:
    return TrainerTrack(
        store,
        run_track(where.run_id),
        opened_seq=where.opened_seq,
        authority=Authority(attempt_id=where.attempt_id, launch_id=launch_id),
        now=utc_now,
    )


def _journal(
    store: ObjectStore,
    where: AttemptPlace,
    launch_id: str,
    ranks: Ranks,
    *,
    computes_on: torch.device | None,
    clean: Redact,
) -> Journal:
    """Open this rank's journal; what another process takes of memory is not known here."""
    memory = MemoryWatch(ranks.device) if computes_on is None else None
    watch = DeviceWatch(
        computes_on or ranks.device, where.work, computes=computes_on is None, clean=clean
    )
    prefix = journal_prefix(where.ref, launch_id, ranks.rank)
    return Journal(
        where.work / "journal" / launch_id / f"rank-{ranks.rank}.jsonl",
        store,
        prefix=prefix,
        now=utc_now,
        memory=None if memory is None else lambda: to_json(memory.peak()),
        watch=watch,
        columns=ColumnsWriter(store, journal=prefix) if ranks.is_first else None,
    )


def _record(store: ObjectStore, where: AttemptPlace, seq: int, kind: Kind) -> Record:
    name = run_track(where.run_id)
    data = store.get(log_key(name, seq), RECORD_BYTES_MAX)
    record = None if data is None else parse(data, seq=seq)
    own = record is not None and record.attempt_id in (None, where.attempt_id)
    if record is None or record.kind is not kind or not own:
        found = "nothing" if record is None else f"{record.kind} of attempt {record.attempt_id}"
        raise TrackBroken(
            f"Record {seq} of {name} should be {kind} (attempt {where.attempt_id}) and is {found}; "
            "the launcher handed over a wrong seq."
        )
    return record
