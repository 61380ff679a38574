"""One run's whole story in a store, with real bytes behind every hash: for tests of what people read.

Attempt 1 is preempted after step 23 (steps 21 to 23 are lost), attempt 2 resumes at 20 and runs out
of memory in step 31, attempt 3 resumes at 30 with half the micro-batch and finishes step 40; its
checkpoint is evaluated and promoted. The loss of step n is 5 / n; it takes 0.4 s,
and 0.1 s for its data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from blake3 import blake3

from tests.bodies import CONFIG, PACKAGES
from tests.histories import DatasetHistory, History
from tracks_dagster.reasons.evidence import Evidence, LastWord, RankEnd
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import (
    ComputeRequest,
    ConfigChange,
    EvalRequirement,
    SnapshotRef,
    TimeSpent,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, canonical_json, format_time, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key, object_prefix
from tracks_dagster.track.track import packages_key
from tracks_dagster.training.saves.manifest import (
    MEMBERS,
    Chunk,
    Manifest,
    Member,
    Piece,
    Shard,
    TensorEntry,
)

RUN_ID = "gpt-story"
STEP_S, DATA_S, SAVING_S = 0.4, 0.1, 0.25  # of a step, of its data, of a save
HALVED = {**CONFIG, "micro_batch": 2, "accumulation": 12}
REMEDIATION = (
    ConfigChange(key="micro_batch", before=4, after=2, why="half the activations"),
    ConfigChange(key="accumulation", before=6, after=12, why="the same global batch"),
)
FRAME = '  File "/home/ann/train.py", line 12, in step\n    raise RuntimeError(words)\n'
TRACEBACK = f"Traceback (most recent call last):\n{FRAME}"


class Story:
    """Writes the story's objects as it grows; `write_tracks` stores its records."""

    def __init__(self, store: ObjectStore, run_id: str = RUN_ID) -> None:
        self.store = store
        self.run_id = run_id
        self.datasets = [DatasetHistory("aws-docs"), DatasetHistory("aws-docs-heldout")]
        self.snapshot, heldout = (self._snapshot(dataset) for dataset in self.datasets)
        self.history = History(run_id).declare(
            intent="See whether <half> the batch & twice the accumulation learns the same.",
            compute=ComputeRequest(ranks=1),
            snapshot=self.snapshot,
            evals=(
                EvalRequirement(suite="heldout-loss", suite_version="1", snapshot=heldout, seed=7),
            ),
        )

    def whole(self) -> Story:
        """Grow to the promotion and write everything; return the story."""
        self.attempt("preempted", last_step=23, commits=(10, 20))
        self.attempt("gpu_oom", last_step=30, commits=(30,))
        self.attempt(
            "completed", last_step=40, commits=(40,), config=HALVED, remediation=REMEDIATION
        )
        final = self.history.state.checkpoints[-1].ref
        self.history.open_eval(final)
        opened = self.history.state.evals[-1].opened
        self.history.end_eval(opened).finish().promote(opened)
        return self.write_tracks()

    def refused(self) -> Story:
        """Grow to one attempt that raises before its first step, and is refused a retry."""
        self.attempt("code_error", last_step=0, commits=())
        self.history.refuse()
        return self.write_tracks()

    def write_tracks(self) -> Story:
        """Store the records of the run and of both datasets."""
        for track in (*self.datasets, self.history):
            track.write_to(self.store)
        return self

    def attempt(
        self,
        reason: str,
        *,
        last_step: int,
        commits: Iterable[int],
        differs_from: int | None = None,
        **opened: Json,
    ) -> None:
        """Open an attempt from the newest checkpoint, run it to `last_step` and end it.

        differs_from: the first step whose loss is another one than the story's.
        """
        self.begin(**opened)
        first = self.history.state.attempts[-1].resumed_step + 1
        self.ship(range(first, last_step + 1), differs_from=differs_from)
        for step in commits:
            self.commit(step)
        self.end(reason, last_step=last_step)

    def begin(self, **opened: Json) -> None:
        """Open an attempt; place and restore it on one rank."""
        number = len(self.history.state.attempts) + 1
        self.history.open(**opened).supervise(f"dagster-{number}").place(world_size=1).restore()
        self.store.put(packages_key(self.run_id, sha256_hex(PACKAGES)), PACKAGES)

    def ship(self, steps: Iterable[int], *, differs_from: int | None = None) -> None:
        """Store the newest attempt's journal in one segment."""
        number = len(self.history.state.attempts)
        lines = [step_line(step, at=format_time(self.history.at)) for step in steps]
        for line in lines:
            if differs_from is not None and line["step"] >= differs_from:
                line["loss"] += 0.5
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        prefix = journal_prefix(AttemptRef(self.run_id, number), self.history.launch_id, 0)
        self.store.put(f"{prefix}{0:012d}.jsonl", data)

    def commit(self, step: int) -> None:
        """Store a checkpoint of one small tensor and commit it."""
        number, launch_id = len(self.history.state.attempts), self.history.launch_id
        ref = store_checkpoint(self.store, self.run_id, number, launch_id, step)
        self.history.commit(step, ref=ref, spent=self._spent(step), blocking_s=SAVING_S)

    def end(self, reason: str, *, last_step: int) -> None:
        """Store the evidence and end the newest attempt."""
        number = len(self.history.state.attempts)
        message = "" if reason == "completed" else f"{reason} as the story wants it"
        word = LastWord(
            rank=0,
            reason=reason,
            exception="builtins.RuntimeError" if message else None,
            message=message,
            traceback_tail=f"{TRACEBACK}RuntimeError: {message}" if message else "",
            step=last_step,
            at=format_time(self.history.at),
        )
        end = RankEnd(rank=0, exit_code=1 if message else 0, last_word=word)
        evidence = Evidence(
            run_id=self.run_id,
            attempt_id=number,
            launch_id=self.history.launch_id,
            ranks=(end,),
            last_step=last_step,
            placed=True,
        )
        data = canonical_json(to_json(evidence))
        key = f"runs/{self.run_id}/attempts/{number}/evidence/{sha256_hex(data)}.json"
        self.store.put(key, data)
        self.history.end(
            reason,
            last_step=last_step or None,
            spent=self._spent(last_step) if last_step else None,
            evidence_key=key,
            evidence_sha256=sha256_hex(data),
            root_message=message,
            lines=(message,) if message else (),
        )

    def _spent(self, step: int) -> TimeSpent:
        """Return what the newest attempt had spent by a step, on its saves so far too."""
        attempt = self.history.state.attempts[-1]
        steps = step - attempt.resumed_step
        saves = [
            c for c in self.history.state.checkpoints if c.ref.attempt_id == attempt.attempt_id
        ]
        return TimeSpent(
            steps_s=STEP_S * steps, data_s=DATA_S * steps, saving_s=SAVING_S * len(saves)
        )

    def _snapshot(self, dataset: DatasetHistory) -> SnapshotRef:
        name = dataset.dataset
        rows = f"rows of {name}".encode()
        shard = {"key": f"datasets/{name}/shards/{sha256_hex(rows)}.parquet"}
        manifest = canonical_json({"shards": [{**shard, "sha256": sha256_hex(rows)}]})
        self.store.put(shard["key"], rows)
        self.store.put(f"datasets/{name}/manifests/{sha256_hex(manifest)}.json", manifest)
        dataset.declare().commit(sha256_hex(manifest))
        return SnapshotRef(dataset=name, snapshot_id=sha256_hex(manifest))


def store_checkpoint(
    store: ObjectStore, run_id: str, number: int, launch_id: str, step: int
) -> CheckpointRef:
    """Store the chunk and the manifest of a checkpoint of one small tensor; commit nothing."""
    prefix = object_prefix(AttemptRef(run_id, number), launch_id, step)
    weights = hashlib.sha256(str(step).encode()).digest()
    chunk = Chunk(
        key=f"{prefix}chunks/{blake3(weights).hexdigest()}",
        blake3=blake3(weights).hexdigest(),
        size_bytes=len(weights),
    )
    store.put(chunk.key, weights)
    piece = Piece(chunk_index=0, offset_bytes=0, size_bytes=len(weights))
    shard = Shard(offsets=(0,), shape=(8,), pieces=(piece,))
    tensor = TensorEntry(name="w", dtype="float32", shape=(8,), shards=(shard,))
    members = {name: Member(step=step) for name in MEMBERS}
    manifest = Manifest(
        run_id=run_id,
        attempt_id=number,
        launch_id=launch_id,
        step=step,
        chunks=(chunk,),
        members={**members, "model": Member(step=step, tensors=(tensor,))},
        metrics={"loss": 5.0 / step},
        config_sha256="c" * 64,
        environment_sha256="e" * 64,
    ).to_bytes()
    ref = CheckpointRef(run_id, number, step, prefix, sha256_hex(manifest))
    store.put(manifest_key(ref), manifest)
    return ref


def step_line(step: int, *, at: str) -> dict[str, Json]:
    """Return the journal's line of a step."""
    return {
        "kind": "step",
        "t": at,
        "step": step,
        "loss": 5.0 / step,
        "metrics": {},
        "step_s": STEP_S,
        "data_s": DATA_S,
        "cursor_to": step * 24,
        "indices_sha256": f"{step:064x}",
    }
