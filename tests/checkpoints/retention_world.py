"""A run whose checkpoints are saved, restored, pinned, evaluated and collected, all in memory.

Trainers write small chunks and name those of the checkpoint that they restored and of their own
commits, as a real one does. A save has two halves, so that anything can happen in between; an old
trainer lives on and tries to commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.bodies import FREE, declared, placed
from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.append import Authority
from tracks_dagster.track.bodies import (
    AttemptOpened,
    AttemptRestored,
    CheckpointCommitted,
    RetentionRule,
    RunFinished,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import CheckpointCorrupt, Fenced
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, canonical_json, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key, object_prefix
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.trainer_track import TrainerTrack

RUN_ID = "r-1"
BRANCH_ID = "r-2"
BRANCH = f"branch:{BRANCH_ID}"


class Crash(BaseException):
    """The process is gone; nothing may catch it."""


class Interrupted:
    """The store as one process sees it: at its call number `at` something happens, once.

    after: the call has taken effect by then. Calls count from `arm` on; with `only_changes`, only
    those that write or delete.
    """

    def __init__(
        self,
        below: FakeObjectStore,
        *,
        at: int,
        action: Callable[[], None],
        after: bool,
        only_changes: bool,
    ) -> None:
        self._below = below
        self._only_changes = only_changes
        self._at = at
        self._left = 0
        self._action = action
        self._after = after

    def arm(self) -> None:
        """Begin to count."""
        self._left = self._at

    @property
    def url(self) -> str:
        return self._below.url

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        return self._call(lambda: self._below.get(key, bytes_max))

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        return self._call(lambda: self._below.read_into(key, buffer))

    def create(self, key: str, data: bytes | memoryview) -> bool:
        return self._call(lambda: self._below.create(key, data), changes=True)

    def put(self, key: str, data: bytes | memoryview) -> None:
        return self._call(lambda: self._below.put(key, data), changes=True)

    def list(self, prefix: str) -> Iterator[str]:
        return self._call(lambda: self._below.list(prefix))

    def folders(self, prefix: str) -> Iterator[str]:
        return self._call(lambda: self._below.folders(prefix))

    def delete(self, key: str) -> None:
        return self._call(lambda: self._below.delete(key), changes=True)

    def _call(self, effect: Callable[[], Any], *, changes: bool = False) -> Any:
        if self._only_changes and not changes:
            return effect()
        self._left -= 1
        if self._left == 0 and not self._after:
            self._action()
        result = effect()
        if self._left == 0 and self._after:
            self._action()
        return result


class Reader:
    """Reads the manifests that `Trainer` writes; implements `ports.CheckpointReader`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def chunk_sizes(self, ref: CheckpointRef) -> Mapping[str, int]:
        return {key: size for key, (_, size) in self._manifest(ref).items()}

    def verify(self, ref: CheckpointRef) -> int:
        for key, (sha256, _) in self._manifest(ref).items():
            self._read(key, sha256)
        return sum(self.chunk_sizes(ref).values())

    def _manifest(self, ref: CheckpointRef) -> dict[str, tuple[str, int]]:
        stored = json.loads(self._read(manifest_key(ref), ref.manifest_sha256))
        chunks: dict[str, tuple[str, int]] = stored["chunks"]
        return chunks

    def _read(self, key: str, sha256: str) -> bytes:
        data = self._store.get(key)
        found = "nothing" if data is None else sha256_hex(data)
        if data is None or found != sha256:
            raise CheckpointCorrupt(f"{key} has sha256 {found}; expected {sha256}.")
        return data


class Trainer:
    """Rank 0 of one launch. Three layers of weights; a value that comes back is a chunk to share."""

    def __init__(self, world: World, *, attempt_id: int, opened_seq: int) -> None:
        self.attempt_id = attempt_id
        self.launch_id = f"launch-{attempt_id}"
        self.step = 0
        self._world = world
        authority = Authority(attempt_id=attempt_id, launch_id=self.launch_id)
        self._track = TrainerTrack(
            world.store,
            run_track(RUN_ID),
            opened_seq=opened_seq,
            authority=authority,
            now=world.now,
        )
        self._known: dict[str, tuple[str, str]] = {}  # content's sha256 → key, manifest it is of
        self._saving: tuple[int, dict[str, tuple[str, int]], set[str], float] | None = None

    def start(self) -> None:
        """Place, and restore what the attempt was opened with, or what is left to resume from."""
        self._append(Kind.ATTEMPT_PLACED, placed(self.launch_id, world_size=1))
        state = self._world.state
        asked = state.attempts[-1].opened.resume
        ref = asked if asked in state.resumable else state.resumes_from
        if ref is not None:
            Reader(self._world.store).verify(ref)  # what it restores has to be whole
            self.step = ref.step
            self._learn(ref)
        self._append(
            Kind.ATTEMPT_RESTORED,
            AttemptRestored(launch_id=self.launch_id, step=self.step, checkpoint=ref, cursor=0),
        )

    @property
    def is_saving(self) -> bool:
        """Whether a save was begun and not finished."""
        return self._saving is not None

    def begin_save(self, layers: tuple[int, int, int], loss: float) -> None:
        """Write the chunks that are new, and take the others from where they lie."""
        self.step += 10
        chunks: dict[str, tuple[str, int]] = {}
        sources: set[str] = set()
        for number, value in enumerate(layers):
            data = f"layer {number} is {value}".encode()
            key, source = self._known.get(sha256_hex(data), (None, None))
            if key is None or source is None:
                key = f"{self._prefix()}chunks/{sha256_hex(data)}"
                self._world.store.put(key, data)
            else:
                sources.add(source)
            chunks[key] = (sha256_hex(data), len(data))
        self._saving = (self.step, chunks, sources, loss)

    def finish_save(self) -> None:
        """Write the manifest and commit; abandoned, the next save takes nothing from anywhere."""
        assert self._saving is not None
        step, chunks, sources, loss = self._saving
        self._saving = None
        data = canonical_json({"of": [self.attempt_id, step], "chunks": chunks})
        ref = CheckpointRef(RUN_ID, self.attempt_id, step, self._prefix(), sha256_hex(data))
        self._world.store.put(manifest_key(ref), data)
        body = CheckpointCommitted(
            launch_id=self.launch_id,
            ref=ref,
            cursor=step,
            epoch=0,
            trigger="interval",
            total_bytes=1,
            written_bytes=1,
            blocking_s=0.0,
            metrics={"loss": loss},
        )
        draft = self._draft(Kind.CHECKPOINT_COMMITTED, body)
        if self._track.append(draft, sources=frozenset(sources)) is None:
            self._known.clear()
            return
        self._world.ever_named[ref.manifest_sha256] = frozenset(chunks)
        self._learn(ref)

    def _learn(self, ref: CheckpointRef) -> None:
        for key in Reader(self._world.store).chunk_sizes(ref):
            self._known[key.rpartition("/")[2]] = (key, ref.manifest_sha256)

    def _prefix(self) -> str:
        return object_prefix(AttemptRef(RUN_ID, self.attempt_id), self.launch_id, self.step)

    def _append(self, kind: Kind, body: object) -> None:
        self._track.append(self._draft(kind, body))

    def _draft(self, kind: Kind, body: object) -> Draft:
        return Draft(
            uid=self._world.new_uid(), kind=kind, body=to_json(body), attempt_id=self.attempt_id
        )


class World:
    """One store with one run, its trainers, and the clock. `tracks` is everybody else's view."""

    def __init__(self, rule: RetentionRule) -> None:
        self.store = FakeObjectStore()
        self.now = FakeClock()
        self.new_uid = SequentialUids()
        self.tracks = self.fresh_tracks(self.store)
        self.trainers: list[Trainer] = []
        self.ever_named: dict[str, frozenset[str]] = {}  # manifest sha256 → keys, of every commit
        self.tracks.declare_run(declared(RUN_ID, retention=rule, evals=(), promotion=None))

    @property
    def state(self) -> RunState:
        """The run as its track stands."""
        return self.tracks.run(RUN_ID)

    @property
    def branch(self) -> RunState | None:
        """The run that branches from this one, once it is declared."""
        return self.tracks.find_run(BRANCH_ID)

    def declare_branch(self) -> None:
        """Declare the branch."""
        self.tracks.declare_run(declared(BRANCH_ID, evals=(), promotion=None))

    def finish_branch(self) -> None:
        """End the branch for good; it never was launched."""
        body = RunFinished(stop_cause="user", why="enough", decided_by="tests", final=None)
        draft = self.tracks.draft(Kind.RUN_FINISHED, body)
        self.tracks.decide_run(
            BRANCH_ID, lambda state: draft if state is not None and not state.finished else None
        )

    def fresh_tracks(self, store: ObjectStore) -> Tracks:
        """Return the tracks as another process sees them, with nothing read yet."""
        return Tracks(store, now=self.now, new_uid=self.new_uid, project=lambda name: None)

    def open_attempt(self) -> None:
        """Open the next attempt from what a resume would take, if none is open."""

        def choose(state: RunState | None) -> Draft | None:
            if state is None or state.open_attempt is not None or state.finished is not None:
                return None
            body = AttemptOpened(
                cause="retry",
                decided_by="tests",
                decision="Again.",
                config=state.declared.config,
                compute=state.declared.compute,
                snapshot=state.declared.snapshot,
                resume=state.resumes_from,
                debit=FREE,
            )
            number = len(state.attempts) + 1
            return self.tracks.draft(Kind.ATTEMPT_OPENED, body, attempt_id=number)

        record = self.tracks.decide_run(RUN_ID, choose)
        if record is not None:
            assert record.attempt_id is not None
            self.trainers.append(Trainer(self, attempt_id=record.attempt_id, opened_seq=record.seq))

    def decide(self, kind: Kind, body: object, *, attempt_id: int | None = None) -> None:
        """Append a decision of somebody else, if the state allows it."""
        draft = self.tracks.draft(kind, body, attempt_id=attempt_id)
        self.tracks.decide_run(RUN_ID, lambda state: draft)

    def save(self, trainer: Trainer, layers: tuple[int, int, int], loss: float) -> None:
        """Let a trainer do the next half of a save; one that is fenced is gone."""
        try:
            if trainer.is_saving:
                trainer.finish_save()
            else:
                trainer.begin_save(layers, loss)
        except Fenced:
            self.trainers.remove(trainer)
