"""A life that checkpoints lead: an attempt restores and saves while a collector works, ends, and is
collected; and its sequel. What the proof of killed saves kills, and what comes after the kill.

The trainer is the product's, on a model of a few chunks; only its gradients are made up, so that no
two steps of any attempts have the same state.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.bodies import FREE, declared, ended
from tests.real.said import SayingStore
from tracks_dagster.checkpoints.effects.retention import collect
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import (
    AttemptOpened,
    CheckpointCadence,
    ComputeRequest,
    RetentionRule,
)
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Draft, Kind, sha256_hex
from tracks_dagster.track.states.checkpoints import object_prefix
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.environment import AttemptPlace, RankEnvironment
from tracks_dagster.training.joining import Farewell
from tracks_dagster.training.launch import place
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves import layout
from tracks_dagster.training.saves.manifest import StoredCheckpoints
from tracks_dagster.training.saves.state_dict import collect as collect_state
from tracks_dagster.training.saves.trained import Trained
from tracks_dagster.training.triggers import StopSignal

RUN_ID = "r"
EVERY_STEPS = 2  # between saves
GLOBAL_BATCH = 4
CHUNK_BYTES_MAX = 1024  # so that a model of 4 KiB has several chunks
SHARED_BYTES_MAX = 256
RULE = RetentionRule(keep_last=1, keep_best=1, delete_after_s=0.0)

# The killed life: saves of steps 6 and 8, with a collection while the first is under way or done.
COLLECTED_AT = 7
LAST_STEP = 8
BEST_STEP = 4  # of attempt 1, so that the best is not the newest


class Life:
    """One process's view of the run's store."""

    def __init__(self, store: SayingStore, work: Path) -> None:
        self.store = store
        self._work = work
        self._tracks = Tracks(
            store,
            now=lambda: datetime.now(UTC),
            new_uid=lambda: uuid.uuid4().hex,
            project=lambda name: None,
        )

    def begin(self) -> None:
        """What was before: attempt 1 saved steps 2 and 4, began to save step 6 and was preempted;
        attempt 2 is open."""
        body = declared(
            RUN_ID,
            config={"global_batch": GLOBAL_BATCH, "micro_batch": GLOBAL_BATCH},
            compute=ComputeRequest(ranks=1),
            cadence=CheckpointCadence(every_steps=EVERY_STEPS),
            retention=RULE,
            evals=(),
            promotion=None,
        )
        self._tracks.declare_run(body)
        self._train(self._open(), until=4)
        launch = self._state.attempts[0].placed
        assert launch is not None
        prefix = object_prefix(AttemptRef(RUN_ID, 1), launch.launch_id, 6)
        self.store.put(f"{prefix}chunks/never-committed", b"half a save")
        self._end()
        self._open()

    def go_on(self) -> None:
        """The life that is killed, as attempt 2."""
        self._train(2, until=LAST_STEP, on_step=self._collect_at)
        self._end()
        self._collect()

    def recover(self) -> RunState:
        """The sequel, in a fresh process: end what is open, collect, train on, collect."""
        if self._state.open_attempt is not None:
            self._end()
        self._collect()
        attempt_id = self._open()
        resume = self._state.attempts[-1].opened.resume
        assert resume is not None
        self._train(attempt_id, until=resume.step + EVERY_STEPS)
        self._end()
        self._collect()
        return self._state

    @property
    def _state(self) -> RunState:
        return self._tracks.run(RUN_ID)

    def _collect_at(self, step: int) -> None:
        if step == COLLECTED_AT:
            self._collect()

    def _collect(self) -> None:
        collect(self._tracks, StoredCheckpoints(self.store), RUN_ID, by="tests")

    def _open(self) -> int:
        def choose(state: RunState | None) -> Draft:
            assert state is not None
            body = AttemptOpened(
                cause="retry" if state.attempts else "first",
                decided_by="tests",
                decision="a test",
                config=state.declared.config,
                compute=state.declared.compute,
                snapshot=state.declared.snapshot,
                resume=state.resumes_from,
                debit=FREE if state.attempts else None,
            )
            attempt_id = len(state.attempts) + 1
            return self._tracks.draft(Kind.ATTEMPT_OPENED, body, attempt_id=attempt_id)

        record = self._tracks.decide_run(RUN_ID, choose)
        assert record is not None
        assert record.attempt_id is not None
        return record.attempt_id

    def _end(self) -> None:
        def choose(state: RunState | None) -> Draft:
            assert state is not None
            assert state.open_attempt is not None
            attempt_id = state.open_attempt.attempt_id
            body = ended("preempted")
            return self._tracks.draft(Kind.ATTEMPT_ENDED, body, attempt_id=attempt_id)

        self._tracks.decide_run(RUN_ID, choose)

    def _train(
        self, attempt_id: int, *, until: int, on_step: Callable[[int], None] = lambda step: None
    ) -> None:
        """Be the only rank of an attempt."""
        where = AttemptPlace(
            store_url=self.store.url,
            run_id=RUN_ID,
            attempt_id=attempt_id,
            opened_seq=self._state.attempts[attempt_id - 1].opened_seq,
            work=self._work,
            cache=self._work / "cache",
        )
        ranks = Ranks(rank=0, world_size=1, device=torch.device("cpu"))
        alone = RankEnvironment(
            rank=0, world_size=1, local_rank=0, threads=1, image=None, attempt=where
        )
        launch = place(self.store, where, ranks, alone, on_launch_id=lambda launch_id: None)
        a = Attempt(launch, StopSignal(), Farewell())
        try:
            with a.saves_settled():
                for step, trained in self._steps(a, attempt_id, until):
                    on_step(step)
                    if step % EVERY_STEPS == 0:
                        self.store.say("saves", attempt_id, step, _digests(trained))
                    a.report(step, loss=1.0 + abs(step - BEST_STEP))
                a.finish()
        finally:
            launch.journal.close(ship=True)

    def _steps(self, a: Attempt, attempt_id: int, until: int) -> Iterator[tuple[int, Trained]]:
        """Yield every step, done; the first layer is frozen, so that saves share its chunks."""
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 24), nn.Linear(24, 2))
        model[0].requires_grad_(False)
        moved = [p for p in model.parameters() if p.requires_grad]
        trained = Trained(model=model, optimizer=torch.optim.SGD(moved, lr=0.1, momentum=0.9))
        a.register(model=model, optimizer=trained.optimizer)
        sampler = a.sampler(100, seed=1)
        loader = DataLoader(TensorDataset(torch.zeros(100)), batch_sampler=sampler)
        for step, _ in a.steps(loader, until=until):
            for number, parameter in enumerate(moved):
                parameter.grad = torch.full_like(parameter, attempt_id + step / (7 + number))
            trained.optimizer.step()
            yield step, trained


def use_small_chunks() -> None:
    """Let this process cut checkpoints into chunks of about a kilobyte."""
    patch = pytest.MonkeyPatch()
    patch.setattr(layout, "CHUNK_BYTES_MAX", CHUNK_BYTES_MAX)
    patch.setattr(layout, "SHARED_BYTES_MAX", SHARED_BYTES_MAX)


def _digests(trained: Trained) -> dict[str, str]:
    tensors = collect_state(trained).tensors
    return {name: sha256_hex(t.detach().numpy().tobytes()) for name, t in tensors.items()}
