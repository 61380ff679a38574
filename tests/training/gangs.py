"""A run with real ranks, without Dagster: the test plays the supervisor and the gang's parent.

Ranks are forked from a process that has imported torch once, so that a gang starts in well under a
second; what a rank runs is what `python train.py` runs in the folder of an example.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from tests.bodies import FREE
from tests.examples import EXAMPLES, example, example_config
from tests.forked import PROCESSES
from tests.ports import free_port
from tests.training.checkpoints import weights_of
from tracks_dagster.reasons.evidence import LastWord
from tracks_dagster.stores import open_store
from tracks_dagster.track import names
from tracks_dagster.track.bodies import (
    AttemptEnded,
    AttemptOpened,
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    Drill,
    Program,
    RetentionRule,
    RunDeclared,
    SnapshotRef,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Json, Kind, Record, canonical_json, sha256_hex
from tracks_dagster.track.samples import SampleOrder
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import Track
from tracks_dagster.training import journal
from tracks_dagster.training.attempt import Attempt
from tracks_dagster.training.environment import AttemptPlace, read_environment
from tracks_dagster.training.joining import Farewell
from tracks_dagster.training.launch import place
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves.manifest import Manifest, read_manifest, weights_sha256
from tracks_dagster.training.triggers import StopSignal

GANG_S_MAX = 240.0  # a gang that takes longer is killed and fails its test
SURVIVORS_S_MAX = 40.0  # the parent gives five; here a busy machine must change no exit code
POLL_S = 0.02
SMALL: dict[str, dict[str, Json]] = {
    "tabular": {"global_batch": 12, "micro_batch": 2, "hidden": 8, "warmup_steps": 2},
    "gpt": {
        "global_batch": 12,
        "micro_batch": 2,
        "context": 8,
        "layers": 1,
        "heads": 2,
        "d_model": 8,
        "warmup_steps": 2,
    },
}


@dataclass(kw_only=True)
class Gang:
    """The ranks of one launch."""

    ranks: list[ForkServerProcess]
    work: Path
    exit_codes: list[int | None] = field(default_factory=list)

    def signal(self, number: signal.Signals) -> None:
        """Signal every rank that lives."""
        for rank in self.ranks:
            if rank.pid is not None and rank.is_alive():
                os.kill(rank.pid, number)

    def wait(self, until: Callable[[], bool] = lambda: False) -> None:
        """Play the gang's parent until every rank has ended, or `until` says so.

        A rank's abnormal end ends the others after a while, as the parent would.
        """
        deadline = time.monotonic() + GANG_S_MAX
        fired = False
        while any(rank.is_alive() for rank in self.ranks) and not until():
            request = self.work / "drill" / "preempt.json"
            if not fired and request.exists():
                fired = True
                grace_s = json.loads(request.read_text())["grace_s"]
                self.signal(signal.SIGTERM if grace_s else signal.SIGKILL)
            for number, rank in enumerate(self.ranks):
                if rank.pid is not None and (self.work / f"drill/sigkill-{number}.json").exists():
                    rank.kill()
            if any(rank.exitcode not in (None, 0) for rank in self.ranks):
                deadline = min(deadline, time.monotonic() + SURVIVORS_S_MAX)
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
            time.sleep(POLL_S)
        self.exit_codes = [rank.exitcode for rank in self.ranks]

    def log(self, rank: int = 0) -> str:
        """Return what a rank wrote to stdout and stderr."""
        return (self.work / f"rank-{rank}.log").read_text()


class TrainingRun:
    """A declared run in a store of its own; `ranks` processes train each of its attempts.

    family: the example that it trains, with its config and a snapshot of its kind. script: what each
    rank runs in place of the example's own. steps: None for a config that does not say how many.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ranks: int = 1,
        family: str = "tabular",
        steps: int | None = 12,
        every_steps: int | None = 5,
        every_s: float | None = None,
        drills: tuple[Drill, ...] = (),
        script: Path | None = None,
        store: ObjectStore | None = None,
        retention: RetentionRule | None = None,
        run_id: str = "r",
        branched_from: CheckpointRef | None = None,
        sample_order: SampleOrder = SampleOrder.FEISTEL,
        program: Program | None = None,
        **config: Json,
    ) -> None:
        self.folder = folder
        self.run_id = run_id
        self.ranks = ranks
        self.script = script or EXAMPLES / family / "train.py"
        self.store = store or open_store(str(folder / "store"))
        self.track = Track(self.store, run_track(run_id), now=lambda: datetime.now(UTC))
        given = {**SMALL[family], **({} if steps is None else {"steps": steps}), **config}
        self.config = example_config(given, name=family, ranks=ranks)
        if steps is None:
            del self.config["steps"]
        self.declared = RunDeclared(
            run_id=run_id,
            model_family=family,
            config=self.config,
            snapshot=make_snapshot(self.store, family),
            code=CodeVersion(git_commit=None, branch=None, dirty=None, package_version="0"),
            owner="tests",
            team="tests",
            stage="smoke",
            intent="a test",
            compute=ComputeRequest(ranks=ranks),
            cadence=CheckpointCadence(every_steps=every_steps, every_s=every_s),
            estimated_device_s=1.0,
            drills=drills,
            retention=retention or RetentionRule(),
            trainer="script",
            branched_from=branched_from,
            sample_order=sample_order.value,
            program=program,
        )
        self._decide(Kind.RUN_DECLARED, self.declared)

    @property
    def state(self) -> RunState:
        """The run as its track tells it now."""
        state = run_fold.fold(self.records())
        assert state is not None
        return state

    def records(self, kind: Kind | None = None) -> list[Record]:
        """Return the track's records, of one kind or all."""
        return [r for r in self.track.refresh() if kind in (None, r.kind)]

    def open(
        self,
        *,
        resume_step: int | None = None,
        cadence: CheckpointCadence | None = None,
        **changes: Json,
    ) -> int:
        """Open the next attempt, ending the one before; returns its id.

        It resumes from the newest checkpoint, or from the one of `resume_step`; without one of its
        own from what it branched from.
        """
        state = self.state
        if state.open_attempt is not None:
            self.end(state.open_attempt.attempt_id)
            state = self.state
        attempt_id = len(state.attempts) + 1
        choice = [ref for ref in state.resumable if resume_step in (None, ref.step)]
        micro_batch = changes.get("micro_batch", self.config["micro_batch"])
        ranks = {"accumulation": self.config["global_batch"] // self.ranks // micro_batch}
        body = AttemptOpened(
            cause="retry" if state.attempts else "first",
            decided_by="tests",
            decision="a test",
            config={**self.config, **changes, **ranks},
            compute=ComputeRequest(ranks=self.ranks),
            snapshot=self.declared.snapshot,
            resume=resume_target(choice) if choice else self.declared.branched_from,
            cadence=cadence,
            debit=FREE if state.attempts else None,
        )
        self._decide(Kind.ATTEMPT_OPENED, body, attempt_id)
        return attempt_id

    def end(self, attempt_id: int) -> None:
        """End an attempt, as a supervisor would."""
        body = AttemptEnded(
            reason="unknown",
            confidence=0.0,
            rule="tests",
            lines=(),
            classifier_version="0",
            evidence_key="",
            evidence_sha256="",
            device_seconds=0.0,
            accelerator="cpu",
            started_at=None,
            finished_at=None,
            last_step=None,
            first_line_ran=True,
            root_message="",
            fingerprint="",
            closed_by="tests",
        )
        self._decide(Kind.ATTEMPT_ENDED, body, attempt_id)

    def start(self, attempt_id: int | None = None) -> Gang:
        """Start a gang of an attempt, by default of a new one."""
        attempt_id = self.open() if attempt_id is None else attempt_id
        work = self.folder / f"work-{attempt_id}-{uuid.uuid4().hex[:8]}"
        work.mkdir()
        shared = self.environment(attempt_id, work)
        gang = Gang(ranks=[], work=work)
        for rank in range(self.ranks):
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = PROCESSES.Process(
                target=run_rank, args=(environment, work / f"rank-{rank}.log", self.script)
            )
            process.start()
            gang.ranks.append(process)
        return gang

    def environment(self, attempt_id: int, work: Path) -> dict[str, str]:
        """Return what a launcher sets for every rank alike."""
        return {
            "WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            # The forkserver may be older than what a fixture set: an S3 store's address and keys.
            **{name: value for name, value in os.environ.items() if name.startswith("AWS_")},
            names.ENV_STORE: self.store.url,
            names.ENV_RUN_ID: self.run_id,
            names.ENV_ATTEMPT_ID: str(attempt_id),
            names.ENV_OPENED_SEQ: str(self.place(attempt_id, work).opened_seq),
            names.ENV_WORK: str(work),
        }

    def place(self, attempt_id: int, work: Path) -> AttemptPlace:
        """Return what a rank is given about its attempt."""
        (seq,) = [r.seq for r in self.records(Kind.ATTEMPT_OPENED) if r.attempt_id == attempt_id]
        return AttemptPlace(
            store_url=self.store.url,
            run_id=self.run_id,
            attempt_id=attempt_id,
            opened_seq=seq,
            work=work,
            cache=work / "cache",
        )

    @contextmanager
    def joined(
        self, attempt_id: int | None = None, *, stop: StopSignal | None = None
    ) -> Iterator[Attempt]:
        """Join an attempt, by default a new one, as its only rank, in this process.

        stop: what its SIGTERM sets, for a test that sets it.

        Its journal is shipped by saves and at the end only: the store is called as the test foresees,
        however long it takes.
        """
        attempt_id = self.open() if attempt_id is None else attempt_id
        where = self.place(attempt_id, self.folder / f"work-{attempt_id}")
        ranks = Ranks(rank=0, world_size=1, device=torch.device("cpu"))
        with mock.patch.object(journal, "SHIP_EVERY_S", GANG_S_MAX):
            launch = place(
                self.store,
                where,
                ranks,
                read_environment({}),
                on_launch_id=lambda launch_id: None,
            )
            attempt = Attempt(launch, stop or StopSignal(), Farewell())
            try:
                with attempt.saves_settled():
                    yield attempt
            finally:
                launch.journal.close(ship=True)

    def train(self, attempt_id: int | None = None) -> Gang:
        """Run a gang of an attempt, by default of a new one, to its end."""
        gang = self.start(attempt_id)
        gang.wait()
        return gang

    def train_to_the_end(self, attempts_max: int = 5) -> None:
        """Open attempts until one completes."""
        for _ in range(attempts_max):
            gang = self.train()
            if set(gang.exit_codes) == {0}:
                return
        raise AssertionError(f"no attempt completed; the last one:\n{gang.log()}")

    def final(self) -> CheckpointRef:
        """Return the checkpoint that the run would resume from."""
        return resume_target(self.state.resumable)

    def weights(self) -> str:
        """Return the digest of the final weights, after checking that all steps were done."""
        final = self.final()
        assert final.step == self.config["steps"]
        return weights_sha256(self.store, final)

    def manifest_of(self, ref: CheckpointRef) -> Manifest:
        """Return a checkpoint's manifest."""
        return read_manifest(self.store, ref)

    def weights_of(self, ref: CheckpointRef) -> dict[str, torch.Tensor]:
        """Return a checkpoint's model tensors."""
        return weights_of(self.store, ref)

    def steps(self, attempt_id: int, rank: int = 0) -> dict[int, dict[str, Json]]:
        """Return the step lines that an attempt's rank shipped, by step."""
        lines = [line for line in self.journal(attempt_id, rank) if line["kind"] == "step"]
        return {line["step"]: line for line in lines}

    def journal(self, attempt_id: int, rank: int = 0) -> list[dict[str, Json]]:
        """Return the lines that an attempt's placed launch shipped."""
        placed = self.state.attempts[attempt_id - 1].placed
        assert placed is not None
        prefix = f"runs/{self.run_id}/attempts/{attempt_id}/{placed.launch_id}/journal/rank-{rank}/"
        data = b"".join(self.store.get(key) or b"" for key in self.store.list(prefix))
        return [json.loads(line) for line in data.splitlines()]

    def last_words(self, attempt_id: int) -> list[LastWord]:
        """Return every last word of an attempt, the early ones included, by key."""
        keys = list(self.store.list(f"runs/{self.run_id}/attempts/{attempt_id}/"))
        words = [key for key in keys if "/exit/" in key or "/early/" in key]
        return [LastWord(**json.loads(self.store.get(key) or b"")) for key in words]

    def _decide(self, kind: Kind, body: object, attempt_id: int | None = None) -> None:
        draft = Draft(uid=uuid.uuid4().hex, kind=kind, body=to_json(body), attempt_id=attempt_id)
        self.track.decide(lambda records: draft)


def run_rank(environment: Mapping[str, str], log: Path, script: Path) -> None:
    """Be a rank: the body of a forked process."""
    multiprocessing.set_start_method("fork", force=True)  # of loader workers, as in a fresh process
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def make_snapshot(store: ObjectStore, family: str) -> SnapshotRef:
    """Store a small snapshot of what that example trains on: 100 flights, or two documents."""
    if family == "gpt":
        documents = [f"document {i}: " + "the quick brown fox. " * 20 for i in range(2)]
        table = pa.table({"document": ["a", "b"], "text": documents})
    else:
        rng = np.random.default_rng(11)
        features = {name: rng.integers(0, 100, 100) for name in ("delay", "distance", "month")}
        table = pa.table({**features, "late": (features["delay"] > 60).astype(np.int32)})
    dataset = example(family).dataset
    assert dataset is not None
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    shard = sink.getvalue().to_pybytes()
    key = f"datasets/{dataset}/shards/{sha256_hex(shard)}.parquet"
    store.put(key, shard)
    manifest = canonical_json(
        {
            "format": 1,
            "shards": [{"key": key, "sha256": sha256_hex(shard)}],
            "row_count": table.num_rows,
        }
    )
    store.put(f"datasets/{dataset}/manifests/{sha256_hex(manifest)}.json", manifest)
    return SnapshotRef(dataset=dataset, snapshot_id=sha256_hex(manifest))
