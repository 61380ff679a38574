"""Which sources in quarantine a thing descends from, and whether anything new may start from it.

A quarantine is one record, of a dataset's track for a snapshot, of the track of quarantines for all
else. That a checkpoint descends from it stands nowhere: it is found at each reading, so a release
undoes it by one record too.

Every decision reads the quarantines right before it appends. They stand in another track than the one
that it appends to, so one that is recorded within that moment is missed by this decision: what it
started then descends from a source in quarantine, is shown so from the next reading on, and the next
decision about it (a retry, an eval, a promotion) refuses. What runs goes on, and a gang that finds the
checkpoint it was opened with corrupt falls back by its own run's track alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile

from tracks_dagster.holds.effects.things import Exact, as_it_was, find_exact
from tracks_dagster.holds.lineage import (
    Thing,
    ThingKind,
    attempt_thing,
    carried,
    checkpoint_thing,
    is_code,
    ran_a_step,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import CodeVersion, SnapshotRef
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.placement import nodes_of
from tracks_dagster.track.records import Record
from tracks_dagster.track.states import dataset_state, quarantine_state, run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.quarantine_state import SourceQuarantine
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, RunState
from tracks_dagster.track.track import QUARANTINES_TRACK, dataset_track, run_track

ID_CHARACTERS = 12  # of a snapshot's id in a name
WHY_CHARACTERS_MAX = 300  # of a quarantine's why in a sentence, which stands in a record


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A source in quarantine, and how what was asked about comes from it.

    source: as people name it, and as `tracks release` takes it. seq: of its record in `track`.
    through: what used the source, in words; empty where the source's name says it.
    """

    source: str
    by: str
    why: str
    at: datetime
    track: str
    seq: int
    through: str = ""

    @property
    def release(self) -> str:
        """The command that ends the quarantine."""
        return f'`tracks release {self.source} --why "…"`'

    @property
    def _why(self) -> str:
        return self.why[:WHY_CHARACTERS_MAX].rstrip(" .")

    @property
    def own_words(self) -> str:
        """What to say of the source itself."""
        return (
            f"is in quarantine: {self._why} ({self.by}, record {self.seq} of "
            f"{self.track}). {self.release} releases it."
        )

    @property
    def words(self) -> str:
        """What to say of it, after the name of what descends: "descends from …"."""
        through = f", through {self.through}" if self.through else ""
        return (
            f"descends from {self.source}, which {self.by} put in quarantine "
            f"({self._why}; record {self.seq} of {self.track}){through}. {self.release} releases it."
        )


Marks = Mapping[str, Quarantined]
_Flows = tuple[Mapping[int, Marks], Mapping[str, Marks]]


def quarantined_sources(
    tracks: Tracks, ledger: Ledger | None, thing: Thing, *, as_of: datetime | None = None
) -> tuple[Quarantined, ...]:
    """Return the sources in quarantine that `thing` descends from, itself included, oldest first.

    as_of: by the records up to then, None for all. Of a run: those of all its attempts. Read from the
    tracks; the ledger is asked only what a shortened id or a manifest's sha256 names, and may be None
    where the name is whole. Raises UnknownRun and InvalidInput as `find_exact`.
    """
    found = Quarantines(tracks, as_of=as_of).of_exact(find_exact(tracks, ledger, thing))
    return tuple(sorted(found.values(), key=lambda each: (each.at, each.track, each.seq)))


class Quarantines:
    """Reads each track once: make one for a decision, or for a tick's. Safe for several threads, which
    may read the same thing at once. as_of: count only records up to then, where states are not given.
    """

    def __init__(self, tracks: Tracks, *, as_of: datetime | None = None) -> None:
        self._tracks = tracks
        self._as_of = as_of
        self._held: dict[str, SourceQuarantine] | None = None
        self._codes: dict[str, SourceQuarantine] = {}
        self._snapshots: dict[SnapshotRef, Marks] = {}
        self._flows: dict[str, tuple[int, _Flows]] = {}

    def of_checkpoint(self, ref: CheckpointRef, state: RunState | None = None) -> Marks:
        """Return what a checkpoint descends from, by source. state: of its run, where it is at hand."""
        found = state if state is not None else self._run(ref.run_id)
        if found is None or found.run_id != ref.run_id:
            return {}
        return self._flow(found, ())[1].get(ref.manifest_sha256, {})

    def of_attempt(self, state: RunState, attempt_id: int) -> Marks:
        """Return what an attempt descends from: what it resumed from, used and ran on."""
        return self._flow(state, ())[0].get(attempt_id, {})

    def of_run(self, state: RunState) -> Marks:
        """Return what the attempts of a run descend from."""
        found: dict[str, Quarantined] = {}
        for marks in self._flow(state, ())[0].values():
            found = {**marks, **found}
        return found

    def of_checkpoints(self, state: RunState) -> Mapping[str, Marks]:
        """Return what each checkpoint of a run descends from, by manifest sha256; most from nothing."""
        return self._flow(state, ())[1]

    def of_code(self, code: CodeVersion, environment_sha256: str | None = None) -> Marks:
        """Return the quarantines that name this code, whoever runs it."""
        self._load()
        return {
            text: _mark(each, through="the code that the run was declared with")
            for text, each in self._codes.items()
            if is_code(text.partition(":")[2], code, environment_sha256)
        }

    def of_snapshot(self, ref: SnapshotRef) -> Marks:
        """Return the quarantine of a snapshot."""
        if ref not in self._snapshots:
            self._snapshots[ref] = self._snapshot_marks(ref)
        return self._snapshots[ref]

    def held_nodes(self) -> Mapping[str, str]:
        """Return node → why, of the nodes on which nothing may start."""
        prefix = f"{ThingKind.NODE}:"
        return {
            text.removeprefix(prefix): each.body.why
            for text, each in self._load().items()
            if text.startswith(prefix)
        }

    def of_exact(self, found: Exact) -> Marks:
        """Return what a thing descends from, by source; of one that was not there yet, nothing."""
        was = as_it_was(found, self._as_of) if self._as_of is not None else found
        if was is None:
            return {}
        state, ref = was.state, was.checkpoint
        if state is not None and self._as_of is not None:
            state = self._run(state.run_id)
        marks = self.of_snapshot(was.snapshot) if was.snapshot is not None else {}
        if ref is not None:
            marks = {**marks, **self.of_checkpoint(ref, state)}
        elif state is not None and found.attempt_id is not None:
            marks = {**marks, **self.of_attempt(state, found.attempt_id)}
        elif state is not None:
            marks = {**marks, **self.of_run(state)}
        own = self._load().get(found.text)
        return marks if own is None else {found.text: _mark(own, through=""), **marks}

    def ask_again(self) -> None:
        """Forget what was read: something was decided since."""
        self._held = None
        self._snapshots.clear()
        self._flows.clear()

    def _load(self) -> dict[str, SourceQuarantine]:
        if self._held is None:
            state = (
                self._tracks.find_quarantines()
                if self._as_of is None
                else quarantine_state.fold(self._then(QUARANTINES_TRACK))
            )
            held = state.held if state is not None else {}
            prefix = f"{ThingKind.CODE}:"
            self._codes = {text: each for text, each in held.items() if text.startswith(prefix)}
            self._held = held
        return self._held

    def _run(self, run_id: str) -> RunState | None:
        if self._as_of is None:
            return self._tracks.find_run(run_id)
        return run_fold.fold(self._then(run_track(run_id)))

    def _then(self, track_name: str) -> Iterator[Record]:
        """Return the records of a track up to the time that is asked about."""
        until = self._as_of
        records = self._tracks.records(track_name)
        return takewhile(lambda record: until is None or record.at <= until, records)

    def _flow(self, state: RunState, coming_from: tuple[str, ...]) -> _Flows:
        known = self._flows.get(state.run_id)
        if known is not None and known[0] == state.head.seq:
            return known[1]
        self._load()
        flows = carried(
            state,
            by_attempt=lambda attempt: self._set_by_attempt(state, attempt),
            by_checkpoint=self._set_by_checkpoint,
            from_elsewhere=lambda ref: self._from_elsewhere(ref, (*coming_from, state.run_id)),
        )
        self._flows[state.run_id] = (state.head.seq, flows)
        return flows

    def _from_elsewhere(self, ref: CheckpointRef, coming_from: tuple[str, ...]) -> Marks:
        if ref.run_id in coming_from:
            return {}  # two damaged tracks that name each other: nothing descends from itself
        source = self._run(ref.run_id)
        if source is None:
            return {}
        return self._flow(source, coming_from)[1].get(ref.manifest_sha256, {})

    def _set_by_attempt(self, state: RunState, attempt: AttemptState) -> Marks:
        held, key = self._load(), attempt_key(state.run_id, attempt.attempt_id)
        found: dict[str, Quarantined] = {}
        own = str(attempt_thing(state.run_id, attempt.attempt_id))
        if own in held:
            found[own] = _mark(held[own], through="")
        if attempt.placed is not None:
            for node in nodes_of(attempt.placed) if held else ():
                text = f"{ThingKind.NODE}:{node}"
                if text in held:
                    found[text] = _mark(held[text], through=f"attempt {key}, which ran on it")
            environment = attempt.placed.environment_sha256
            for text, each in self._codes.items():
                if is_code(text.partition(":")[2], state.declared.code, environment):
                    found[text] = _mark(each, through=f"attempt {key}, which ran it")
        snapshot = self.of_snapshot(attempt.opened.snapshot)
        if snapshot and ran_a_step(state, attempt):
            for text, mark in snapshot.items():
                found[text] = replace(mark, through=f"attempt {key}, which trained on it")
        return found

    def _set_by_checkpoint(self, checkpoint: CheckpointState) -> Marks:
        text = str(checkpoint_thing(checkpoint.ref))
        held = self._load().get(text)
        through = f"step {checkpoint.ref.step} of {checkpoint.ref.run_id}"
        return {text: _mark(held, through=through)} if held is not None else {}

    def _snapshot_marks(self, ref: SnapshotRef) -> Marks:
        state = (
            self._tracks.find_dataset(ref.dataset)
            if self._as_of is None
            else dataset_state.fold(self._then(dataset_track(ref.dataset)))
        )
        found = state.snapshot(ref.snapshot_id) if state is not None else None
        if found is None or found.quarantine is None:
            return {}
        decision, name = found.quarantine, snapshot_name(ref)
        mark = Quarantined(
            source=name,
            by=decision.body.by,
            why=decision.body.why,
            at=decision.at,
            track=dataset_track(ref.dataset),
            seq=decision.seq,
        )
        return {name: mark}


def snapshot_name(ref: SnapshotRef) -> str:
    """Return a snapshot as people name it."""
    return f"{ThingKind.SNAPSHOT}:{ref.dataset}@{ref.snapshot_id[:ID_CHARACTERS]}"


def _mark(quarantine: SourceQuarantine, *, through: str) -> Quarantined:
    body = quarantine.body
    return Quarantined(
        source=body.called,
        by=body.by,
        why=body.why,
        at=quarantine.at,
        track=QUARANTINES_TRACK,
        seq=quarantine.seq,
        through=through,
    )
