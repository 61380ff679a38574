"""Tracks for tests, built one legal record at a time.

    history = History("r-1").declare().open().place().restore().commit(20)
    history.end("preempted", last_step=23)
    history.state, history.records, history.drafts; history.write_to(store)

A record that the state does not allow raises TrackBroken, as it would for a reader of the track.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Self

from tests.bodies import BEGIN, FREE, HELDOUT, declared, ended, placed
from tracks_dagster.track.bodies import (
    Alert,
    AttemptOpened,
    AttemptReclassified,
    AttemptRestored,
    AttemptSupervised,
    CheckpointCommitted,
    CheckpointDecision,
    CheckpointVerified,
    DatasetDeclared,
    EvalEnded,
    EvalOpened,
    EvalWaived,
    Note,
    PromotionDecided,
    RetryRefused,
    RunFinished,
    SnapshotCommitted,
    SnapshotDecision,
    SnapshotRef,
    StageJudged,
    StopRequested,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import AttemptRef, dataset_track, run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, Record, format_time, parse, seal, sha256_hex
from tracks_dagster.track.states import dataset_state, run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef, object_prefix, resume_target
from tracks_dagster.track.states.dataset_state import DatasetState
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import log_key


class Grown:
    """Records of one track, sealed one after the other, a few seconds apart."""

    def __init__(self, name: str, *, begin: datetime = BEGIN) -> None:
        self.name = name
        self.at = begin
        self.drafts: list[Draft] = []
        self.records: list[Record] = []
        self.stored: list[bytes] = []

    def add(self, kind: Kind, body: object, *, attempt_id: int | None = None) -> Self:
        """Append a record with this body."""
        uid = sha256_hex(f"{self.name} {len(self.drafts)}".encode())[:32]
        self.add_draft(Draft(uid=uid, kind=kind, body=to_json(body), attempt_id=attempt_id))
        return self

    def add_draft(self, draft: Draft) -> None:
        """Append a record made of `draft`."""
        previous = self.records[-1].sha256 if self.records else None
        data = seal(draft, seq=len(self.records), at=self.at, prev_sha256=previous)
        record = parse(data, seq=len(self.records))
        self._fold(record)
        self.drafts.append(draft)
        self.records.append(record)
        self.stored.append(data)
        self.at += timedelta(seconds=7)

    def write_to(self, store: ObjectStore, *, count: int | None = None) -> None:
        """Store the first `count` records (all of them by default); what is there already stays."""
        for seq, data in enumerate(self.stored[:count]):
            store.create(log_key(self.name, seq), data)

    def _fold(self, record: Record) -> None:
        raise NotImplementedError


class History(Grown):
    """A training run's track. Every method appends one record and returns the history."""

    def __init__(self, run_id: str = "r-1", *, begin: datetime = BEGIN) -> None:
        super().__init__(run_track(run_id), begin=begin)
        self.run_id = run_id
        self._state: RunState | None = None

    @property
    def state(self) -> RunState:
        """The state after the last record."""
        assert self._state is not None, "declare() comes first"
        return self._state

    def declare(self, **changes: Any) -> Self:
        """`run_declared`; `changes` replace fields of the body."""
        return self.add(Kind.RUN_DECLARED, declared(self.run_id, **changes))

    def open(self, **changes: Any) -> Self:
        """`attempt_opened` of the next attempt, resuming from what the state says."""
        number = len(self.state.attempts) + 1
        fields: dict[str, Any] = {
            "cause": "first" if number == 1 else "retry",
            "decided_by": "tests",
            "decision": f"Open attempt {number}.",
            "config": self.state.declared.config,
            "compute": self.state.declared.compute,
            "snapshot": self.state.declared.snapshot,
            "resume": self.state.resumes_from,
        }
        opened = AttemptOpened(**fields | changes)
        if opened.cause == "retry" and "debit" not in changes:
            opened = replace(opened, debit=FREE)
        return self.add(Kind.ATTEMPT_OPENED, opened, attempt_id=number)

    def supervise(self, dagster_run_id: str = "dagster-1", **changes: Any) -> Self:
        """`attempt_supervised` of the newest attempt; `changes`: fields of the body."""
        body = AttemptSupervised(dagster_run_id=dagster_run_id, host="node-1", **changes)
        return self.add(Kind.ATTEMPT_SUPERVISED, body, attempt_id=self._newest)

    def place(self, launch_id: str | None = None, **changes: Any) -> Self:
        """`attempt_placed` of the newest attempt."""
        body = placed(launch_id or self.launch_id, **changes)
        return self.add(Kind.ATTEMPT_PLACED, body, attempt_id=self._newest)

    def restore(self, checkpoint: CheckpointRef | None = None, **changes: Any) -> Self:
        """`attempt_restored`: `checkpoint`, by default the one the attempt was opened with."""
        source = checkpoint or self.state.attempts[-1].opened.resume
        step = source.step if source else 0
        fields: dict[str, Any] = {
            "launch_id": self.launch_id,
            "step": step,
            "checkpoint": source,
            "cursor": 24 * step,
        }
        body = AttemptRestored(**fields | changes)
        return self.add(Kind.ATTEMPT_RESTORED, body, attempt_id=self._newest)

    def commit(self, step: int, **changes: Any) -> Self:
        """`checkpoint_committed` of `step` by the newest attempt's launch."""
        prefix = object_prefix(AttemptRef(self.run_id, self._newest), self.launch_id, step)
        fields: dict[str, Any] = {
            "launch_id": self.launch_id,
            "ref": CheckpointRef(
                self.run_id, self._newest, step, prefix, sha256_hex(prefix.encode())
            ),
            "cursor": 24 * step,
            "epoch": 0,
            "trigger": "interval",
            "total_bytes": 1000,
            "written_bytes": 900,
            "blocking_s": 0.25,
            "metrics": {"loss": 3.5},
        }
        body = CheckpointCommitted(**fields | changes)
        return self.add(Kind.CHECKPOINT_COMMITTED, body, attempt_id=self._newest)

    def end(
        self, reason: str = "completed", *, last_step: int | None = None, **changes: Any
    ) -> Self:
        """`attempt_ended` of the newest attempt."""
        body = ended(reason, last_step=last_step, at=self.at, **changes)
        return self.add(Kind.ATTEMPT_ENDED, body, attempt_id=self._newest)

    def reclassify(self, attempt_id: int, reason: str) -> Self:
        """`attempt_reclassified`."""
        body = AttemptReclassified(
            reason=reason,
            confidence=0.9,
            rule="later-evidence",
            lines=("a later line",),
            classifier_version="2",
            evidence_sha256=sha256_hex(b"later"),
            why="The node's log came in late.",
            fingerprint=f"{reason}:later",
        )
        return self.add(Kind.ATTEMPT_RECLASSIFIED, body, attempt_id=attempt_id)

    def refuse(self, limit: str = "reason") -> Self:
        """`retry_refused` after the newest attempt."""
        body = RetryRefused(
            reason=str(self.state.attempts[-1].reason),
            limit=limit,
            decision="The budget is used up.",
            counted_seqs=(1,),
            what_to_do="Look at the traceback, then `tracks retry`.",
            decided_by="tests",
        )
        return self.add(Kind.RETRY_REFUSED, body, attempt_id=self._newest)

    def stop(self, mode: str = "stop") -> Self:
        """`stop_requested`."""
        return self.add(Kind.STOP_REQUESTED, StopRequested(by="ann", why="enough", mode=mode))

    def decide_checkpoint(
        self,
        kind: Kind,
        ref: CheckpointRef,
        *,
        pin: str | None = None,
        is_passed_over: bool = False,
    ) -> Self:
        """`checkpoint_quarantined`, `_superseded`, `_deleted`, `_pinned` or `_unpinned`."""
        body = CheckpointDecision(
            manifest_sha256=ref.manifest_sha256,
            by="tests",
            why="for the test",
            pin=pin,
            is_passed_over=is_passed_over,
        )
        return self.add(kind, body)

    def verify(self, ref: CheckpointRef | None = None) -> Self:
        """`checkpoint_verified` of `ref`, by default of the newest commit."""
        ref = ref or self.state.checkpoints[-1].ref
        body = CheckpointVerified(manifest_sha256=ref.manifest_sha256, by="tests", total_bytes=1000)
        return self.add(Kind.CHECKPOINT_VERIFIED, body)

    def open_eval(
        self,
        ref: CheckpointRef,
        *,
        suite: str = "heldout-loss",
        snapshot: SnapshotRef | None = HELDOUT,
    ) -> Self:
        """`eval_opened`: the next attempt at the eval of `ref`."""
        eval_id = f"{suite}@{ref.step}"
        number = 1 + sum(e.opened.eval_id == eval_id for e in self.state.evals)
        body = EvalOpened(
            eval_id=eval_id,
            number=number,
            checkpoint=ref,
            suite=suite,
            suite_version="1",
            snapshot=snapshot,
            seed=7,
            decision="It is required.",
            decided_by="tests",
        )
        return self.add(Kind.EVAL_OPENED, body)

    def end_eval(self, opened: EvalOpened, reason: str = "completed", **changes: Any) -> Self:
        """`eval_ended` of what `opened` opened; `changes` replace fields of the body."""
        fields: dict[str, Any] = {
            "eval_id": opened.eval_id,
            "number": opened.number,
            "reason": reason,
            "metrics": {"loss": 3.25} if reason == "completed" else {},
            "sample_count": 100,
            "environment": {"python": "3.11"},
            "environment_sha256": sha256_hex(b"environment"),
            "started_at": format_time(self.at - timedelta(seconds=3)),
            "finished_at": format_time(self.at),
            "device_seconds": 3.0,
        }
        return self.add(Kind.EVAL_ENDED, EvalEnded(**fields | changes))

    def waive_eval(self, suite: str = "heldout-loss") -> Self:
        """`eval_waived`."""
        return self.add(Kind.EVAL_WAIVED, EvalWaived(suite=suite, by="ann", why="not needed"))

    def promote(
        self, opened: EvalOpened, *, promoted: bool = True, alias: str = "best", loss: float = 3.25
    ) -> Self:
        """`promotion_decided` on the eval that `opened` opened."""
        body = PromotionDecided(
            alias=alias,
            promoted=promoted,
            checkpoint=opened.checkpoint,
            eval_id=opened.eval_id,
            eval_number=opened.number,
            suite=opened.suite,
            suite_version=opened.suite_version,
            snapshot=opened.snapshot,
            seed=opened.seed,
            environment_sha256=sha256_hex(b"environment"),
            metrics={"loss": loss},
            metric="loss",
            direction="min",
            threshold=5.5,
            decided_by="tests",
            why="The loss is low enough.",
        )
        return self.add(Kind.PROMOTION_DECIDED, body)

    def note(self, text: str = "a note", *, attempt_id: int | None = None) -> Self:
        """`note`."""
        return self.add(Kind.NOTE, Note(by="ann", text=text, data={"n": 1}), attempt_id=attempt_id)

    def alert(self, text: str = "an alert") -> Self:
        """`alert`."""
        return self.add(Kind.ALERT, Alert(rule="slow-saves", text=text))

    def finish(self, stop_cause: str = "step_budget") -> Self:
        """`run_finished`, with what `resume_target` says as its final checkpoint."""
        resumable = self.state.resumable
        body = RunFinished(
            stop_cause=stop_cause,
            why="All steps are done.",
            decided_by="tests",
            final=resume_target(resumable) if resumable else None,
        )
        return self.add(Kind.RUN_FINISHED, body)

    def judge(self, *, passed: bool = True, stage: str = "canary", why: str = "") -> Self:
        """Append the verdict on a finished run of a stage."""
        why = why or ("the median loss fell" if passed else "the loss is flat")
        body = StageJudged(stage=stage, passed=passed, by="watch_attempts", why=why)
        return self.add(Kind.STAGE_JUDGED, body)

    @property
    def launch_id(self) -> str:
        """The launch of the newest attempt, as it was or will be placed."""
        attempt = self.state.attempts[-1]
        return attempt.placed.launch_id if attempt.placed else f"launch-{attempt.attempt_id}"

    @property
    def _newest(self) -> int:
        return len(self.state.attempts)

    def _fold(self, record: Record) -> None:
        self._state = run_fold.apply(self._state, record)


class DatasetHistory(Grown):
    """A dataset's track. Every method appends one record and returns the history."""

    def __init__(self, dataset: str = "aws-docs", *, begin: datetime = BEGIN) -> None:
        super().__init__(dataset_track(dataset), begin=begin)
        self.dataset = dataset
        self._state: DatasetState | None = None

    @property
    def state(self) -> DatasetState:
        """The state after the last record."""
        assert self._state is not None, "declare() comes first"
        return self._state

    def declare(self) -> Self:
        """`dataset_declared`."""
        body = DatasetDeclared(dataset=self.dataset, description="English text.", kind="text")
        return self.add(Kind.DATASET_DECLARED, body)

    def commit(self, snapshot_id: str | None = None, **changes: Any) -> Self:
        """`snapshot_committed`; `changes` replace fields of the body."""
        known = snapshot_id or sha256_hex(f"{self.dataset} {len(self.records)}".encode())
        body = SnapshotCommitted(
            dataset=self.dataset,
            snapshot_id=known,
            manifest_key=f"datasets/{self.dataset}/manifests/{known}.json",
            row_count=1000,
            total_bytes=123456,
            shard_count=2,
            logical_sha256=sha256_hex(b"rows"),
            source="tests",
            checks=("no_nulls", "utf8"),
        )
        return self.add(Kind.SNAPSHOT_COMMITTED, replace(body, **changes))

    def decide(self, kind: Kind, snapshot_id: str) -> Self:
        """`snapshot_quarantined` or `snapshot_released`."""
        return self.add(kind, SnapshotDecision(snapshot_id=snapshot_id, by="ann", why="bad rows"))

    def note(self, text: str = "a note") -> Self:
        """`note`."""
        return self.add(Kind.NOTE, Note(by="ann", text=text))

    def _fold(self, record: Record) -> None:
        self._state = dataset_state.apply(self._state, record)
