"""Two saves, a restore and sometimes a newer attempt, over a store in which any request may fail.

The program's answers are kept and, once nothing goes wrong any more, compared with what is true.
The program is the real one: tracks, storage writer and reader, chunks that later saves share. Only the
saver's threads are left out, so that a seed plays the same schedule again.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import nn

from tests.bodies import FREE, ended, placed
from tests.fakes import FakeClock, FakeObjectStore
from tests.histories import History
from tests.s3_faults import FaultySchedule
from tests.s3_fronts import open_faulty_store
from tests.training import checkpoints
from tracks_dagster.track.append import Authority
from tracks_dagster.track.bodies import AttemptOpened, CheckpointCommitted, Note
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import CheckpointCorrupt, Fenced, StoreError, TrackBroken
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, Record
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import Track, log_key, read_records
from tracks_dagster.track.trainer_track import TrainerTrack
from tracks_dagster.training.saves import random_state, state_dict
from tracks_dagster.training.saves.chunk_writer import KnownChunks
from tracks_dagster.training.saves.loading import load_into
from tracks_dagster.training.saves.manifest import verify_checkpoint
from tracks_dagster.training.saves.trained import Trained

RUN, OPENED_SEQ = "r", 1
TRIES_MAX = 3  # of an operation that failed, as a supervisor or the next save would try again
NEWER_ATTEMPTS = 0.3  # of the schedules

T = TypeVar("T")
State = dict[str, bytes]


@dataclass
class Answers:
    """The answers that the program got. saves by manifest sha256: the state saved, and how it went.

    "done": committed; "failed": not committed; "unknown": the commit's outcome was never learnt;
    "fenced". facts: uids that were answered as recorded. restores: how each restore ended.
    """

    states: dict[str, State] = field(default_factory=dict)
    saves: dict[str, str] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    restores: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        """How often each answer came."""
        saves = [f"save {how}" for how in self.saves.values()]
        return Counter([*saves, *(f"restore {how}" for how in self.restores)])


def play(schedule: FaultySchedule) -> Answers:
    """Play a schedule to its end and check everything; AssertionError says what does not hold."""
    random_state.seed_all(0, rank=0)
    answers = Answers()
    history = History(RUN).declare().open()
    for seq, data in enumerate(history.stored):
        schedule.put(log_key(run_track(RUN), seq), data)
    draw = random.Random(f"scenario {schedule.seed}")
    newer_after = draw.choice(("save 1", "chunks of save 2", "save 2"))
    has_newer = draw.random() < NEWER_ATTEMPTS
    first = Trainer(schedule, answers, attempt_id=1, opened_seq=OPENED_SEQ, model=tiny())

    def take_over(point: str) -> None:
        if has_newer and point == newer_after:
            _newer_attempt(schedule, answers, history)

    try:
        if first.place():
            first.save(2)
            take_over("save 1")
            first.train()
            first.save(3, between=lambda: take_over("chunks of save 2"))
            take_over("save 2")
            if has_newer:
                first.save(4)
    except Fenced:
        assert has_newer, "the only attempt was fenced"
    _restore(schedule, answers, phase="restore", shortens=True)
    _check(answers, schedule.stored())
    return answers


class Trainer:
    """Rank 0 of one attempt."""

    def __init__(
        self,
        schedule: FaultySchedule,
        answers: Answers,
        *,
        attempt_id: int,
        opened_seq: int,
        model: Trained,
    ) -> None:
        self._schedule = schedule
        self._answers = answers
        self._store: ObjectStore = open_faulty_store()
        self._opened_seq = opened_seq
        self._authority = Authority(attempt_id=attempt_id, launch_id=f"launch-{attempt_id}")
        self._track: TrainerTrack | None = None
        self.known = KnownChunks()
        self.trained = model

    def place(self) -> bool:
        """Append `attempt_placed` and a note; False when the store does not let it."""
        attempt_id, launch_id = self._authority.attempt_id, self._authority.launch_id
        self._schedule.enter(f"place {attempt_id}")
        self._track = tried(self._open_track)
        body = placed(launch_id, world_size=1)
        draft = Draft(
            uid=f"placed-{attempt_id}",
            kind=Kind.ATTEMPT_PLACED,
            body=to_json(body),
            attempt_id=attempt_id,
        )
        is_placed = tried(lambda: self._track.append(draft)) if self._track else None
        if is_placed is None:
            return False
        self._answers.facts.append(draft.uid)
        note = Draft(
            uid=f"note-{attempt_id}", kind=Kind.NOTE, body=to_json(Note(by="tests", text="hello"))
        )
        if attempt_id == 1 and tried(lambda: _track(self._store).note(note)) is not None:
            self._answers.facts.append(note.uid)
        return True

    def train(self) -> None:
        """Change one of the tensors, so that the next save shares chunks with the last."""
        with torch.no_grad():
            self.trained.model[1].weight.add_(1)  # type: ignore[index, union-attr, operator]

    def save(self, step: int, *, between: Callable[[], None] = lambda: None) -> None:
        """Save as a saver does, once; `between` the bytes and the commit, something may happen."""
        phase = f"save {step} of {self._authority.attempt_id}"
        self._schedule.enter(phase)
        try:
            writer = checkpoints.write(
                self._store,
                self.trained,
                step=step,
                run_id=RUN,
                known=self.known,
                attempt_id=self._authority.attempt_id,
                launch_id=self._authority.launch_id,
            )
        except StoreError:
            return  # the answer is known, and no commit was ever tried
        written = writer.written
        assert written is not None
        digest = written.ref.manifest_sha256
        self._answers.states[digest] = state_of(self.trained)
        self._answers.saves[digest] = "failed"
        between()
        self._schedule.enter(f"{phase}, commit")
        sources = self.known.sources(writer.chunks)
        draft = self._commit(written.ref)
        assert self._track is not None
        self._answers.saves[digest] = "unknown"
        try:
            record = self._track.append(draft, sources=sources)
        except StoreError:
            return
        except Fenced:
            self._answers.saves[digest] = "fenced"
            raise
        assert record is not None, "a commit was abandoned and nothing was withdrawn"
        self._answers.saves[digest] = "done"
        self._answers.facts.append(draft.uid)
        self.known.learn_commit(digest, writer.chunks)

    def _open_track(self) -> TrainerTrack:
        return TrainerTrack(
            self._store,
            run_track(RUN),
            opened_seq=self._opened_seq,
            authority=self._authority,
            now=FakeClock(),
            sleep=lambda seconds: None,
        )

    def _commit(self, ref: CheckpointRef) -> Draft:
        body = CheckpointCommitted(
            launch_id=self._authority.launch_id,
            ref=ref,
            cursor=12 * ref.step,
            epoch=0,
            trigger="interval",
            total_bytes=1,
            written_bytes=1,
            blocking_s=0.0,
            metrics={},
        )
        return Draft(
            uid=f"commit-{ref.attempt_id}-{ref.step}",
            kind=Kind.CHECKPOINT_COMMITTED,
            body=to_json(body),
            attempt_id=ref.attempt_id,
        )


def tried(action: Callable[[], T]) -> T | None:
    """Do `action`, again when the store fails; None when it fails too often."""
    for _ in range(TRIES_MAX):
        try:
            return action()
        except StoreError:
            continue
    return None


def tiny(seed: int = 0) -> Trained:
    """A model and momentum of a few hundred bytes: four chunks when chunks are tiny."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 4, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    return Trained(model=model, optimizer=optimizer)


def state_of(trained: Trained) -> State:
    """The bytes of every tensor, by flat name."""
    tensors = state_dict.collect(trained).tensors
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


def _newer_attempt(schedule: FaultySchedule, answers: Answers, history: History) -> None:
    """End attempt 1 and open attempt 2, which places itself, restores and saves."""
    schedule.enter("take over")
    opened = tried(lambda: _take_over(_track(open_faulty_store()), history))
    if opened is None:
        return
    restored = _restore(schedule, answers, phase="restore of 2", shortens=False)
    newest = Trainer(
        schedule, answers, attempt_id=2, opened_seq=opened.seq, model=restored or tiny()
    )
    try:
        if newest.place():
            newest.train()
            newest.save(5)
    except Fenced as error:
        raise AssertionError("the newest attempt was fenced") from error


def _take_over(track: Track, history: History) -> Record:
    """Decide that attempt 1 has ended and attempt 2 begins; as safe to repeat as any decision."""

    def end(records: list[Record]) -> Draft | None:
        body = ended("preempted", last_step=3, at=history.at)
        draft = Draft(uid="end", kind=Kind.ATTEMPT_ENDED, body=to_json(body), attempt_id=1)
        return None if any(record.uid == draft.uid for record in records) else draft

    def begin(records: list[Record]) -> Draft | None:
        state = run_fold.fold(records)
        assert state is not None
        body = replace(_first_opened(history), cause="retry", debit=FREE, resume=state.resumes_from)
        draft = Draft(uid="open", kind=Kind.ATTEMPT_OPENED, body=to_json(body), attempt_id=2)
        return None if any(record.uid == draft.uid for record in records) else draft

    track.decide(end)
    track.decide(begin)
    (opened,) = [record for record in track.refresh() if record.uid == "open"]
    return opened


def _first_opened(history: History) -> AttemptOpened:
    return history.state.attempts[0].opened


def _restore(
    schedule: FaultySchedule, answers: Answers, *, phase: str, shortens: bool
) -> Trained | None:
    """Restore what the track says, in a fresh store object; it is what was saved, or an error."""
    schedule.enter(phase, shortens=shortens)
    before = copy.copy(schedule.played)
    store = open_faulty_store()
    try:
        restored, ref = restore_newest(store, _state(store))
    except StoreError:
        answers.restores.append("failed")
        return None
    except (CheckpointCorrupt, TrackBroken):
        lies = schedule.played - before
        assert any(wrong.name == "SHORT" for wrong in lies), "whole bytes were called corrupt"
        answers.restores.append("called corrupt")
        return None
    if ref is not None:
        assert state_of(restored) == answers.states[ref.manifest_sha256], "restored other bytes"
    answers.restores.append("done" if ref else "of nothing")
    return restored


def restore_newest(store: ObjectStore, state: RunState) -> tuple[Trained, CheckpointRef | None]:
    """Return a model with the resume target put into it, and that target."""
    ref, fresh = state.resumes_from, tiny(seed=1)
    if ref is not None:
        load_into(fresh, checkpoints.read(store, ref, fresh))
    return fresh, ref


def _check(answers: Answers, stored: dict[str, bytes]) -> None:
    """Compare the answers with what is true."""
    store = FakeObjectStore()
    store.objects = stored
    records = list(read_records(store, run_track(RUN)))
    state = run_fold.fold(records)
    assert state is not None
    uids = Counter(record.uid for record in records)
    assert max(uids.values()) == 1, f"a fact stands twice: {uids}"
    assert set(answers.facts) <= uids.keys(), "a fact that was answered as recorded is not there"
    for checkpoint in state.checkpoints:
        verify_checkpoint(store, checkpoint.ref)
    committed = {checkpoint.ref.manifest_sha256 for checkpoint in state.checkpoints}
    by_end: dict[str, set[str]] = {
        "done": set(),
        "unknown": set(),
        "failed": set(),
        "fenced": set(),
    }
    for digest, how in answers.saves.items():
        by_end[how].add(digest)
    assert by_end["done"] <= committed, "a save was answered as done and is not committed"
    assert committed <= by_end["done"] | by_end["unknown"], (
        "a save was answered as failed and is committed"
    )
    end = next(
        (record.seq for record in records if record.kind is Kind.ATTEMPT_ENDED), len(records)
    )
    zombies = [
        record.seq
        for record in records
        if record.kind is Kind.CHECKPOINT_COMMITTED and record.attempt_id == 1 and record.seq > end
    ]
    assert not zombies, f"attempt 1 committed after its end: {zombies}"
    restored, ref = restore_newest(store, state)
    if ref is not None:
        assert state_of(restored) == answers.states[ref.manifest_sha256], "restored other bytes"


def _state(store: ObjectStore) -> RunState:
    state = run_fold.fold(read_records(store, run_track(RUN)))
    assert state is not None
    return state


def _track(store: ObjectStore) -> Track:
    return Track(store, run_track(RUN), now=FakeClock(), sleep=lambda seconds: None)
