"""The tracks of a generated fleet: the stored bytes of every record, in order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from benchmarks import history_attempts as attempts
from benchmarks.history_bodies import (
    EVAL_S,
    declared,
    eval_ended,
    eval_opened,
    promotion,
    snapshot_ref,
)
from benchmarks.history_ends import CANCELLED, COMPLETED, STOPPED
from benchmarks.history_plan import (
    DATASETS,
    NODES_OF_POOL,
    POOLS,
    RESTORED_S,
    SNAPSHOT_COUNT,
    SPAN,
    WIDE_SNAPSHOT,
    AttemptPlan,
    Fleet,
    RunPlan,
    checkpoint_ref,
    plan_run,
)
from tracks_dagster.track.bodies import (
    Alert,
    AttemptSupervised,
    CheckpointDecision,
    DatasetDeclared,
    NodeQuarantined,
    NodeReleased,
    NodeStruck,
    Note,
    RetryRefused,
    RunFinished,
    SnapshotCommitted,
    SnapshotRef,
    StopRequested,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import dataset_track, pool_track, run_track
from tracks_dagster.track.records import Draft, Json, Kind, format_time, seal, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef

EVAL_EVERY_ATTEMPTS = NOTE_EVERY_ATTEMPTS = 5
STARTED_S = 5.0  # after it was opened
STRIKES_OF_POOL = 60
QUARANTINE_EVERY_STRIKES = 3
QUARANTINE = timedelta(days=3)


def run_tracks(
    fleet: Fleet, indices: range, *, with_objects: bool = False
) -> Iterator[tuple[RunPlan, Written]]:
    """Yield the tracks of these runs, one after the other."""
    for index in indices:
        run = plan_run(fleet, index)
        track = Written(run_track(run.run_id), with_objects=with_objects)
        _write_run(track, run)
        yield run, track


def _write_run(track: Written, run: RunPlan) -> None:
    spec = declared(run)
    track.add(Kind.RUN_DECLARED, spec, run.declared_at)
    for before, attempt in pairwise((None, *run.attempts)):
        assert attempt is not None
        _open(track, run, attempt, attempts.opened(run, attempt, spec, before))
        _train(track, run, attempt)
        if attempt.end is not None:
            _end(track, run, attempt)
    _conclude(track, run)


def _open(track: Written, run: RunPlan, attempt: AttemptPlan, body: Mapping[str, Json]) -> None:
    number = attempt.attempt_id
    track.add(Kind.ATTEMPT_OPENED, body, _at(run, attempt.opened_s), number)
    claim = AttemptSupervised(
        dagster_run_id=sha256_hex(f"{run.run_id} {number}".encode())[:32], host="daemon-1"
    )
    claimed_at = _at(run, attempt.opened_s + STARTED_S)
    track.add(Kind.ATTEMPT_SUPERVISED, to_json(claim), claimed_at, number)
    placed_at = _at(run, attempt.placed_s)
    track.add(Kind.ATTEMPT_PLACED, attempts.placed(run, attempt), placed_at, number)
    restored_at = _at(run, attempt.placed_s + RESTORED_S)
    track.add(Kind.ATTEMPT_RESTORED, attempts.restored(run, attempt), restored_at, number)


def _train(track: Written, run: RunPlan, attempt: AttemptPlan) -> None:
    begin_s, each_s = attempt.placed_s + RESTORED_S, attempt.between_commits_s
    for place, step in enumerate(attempt.steps, start=1):
        at = _at(run, begin_s + place * each_s)
        body = attempts.committed(run, attempt, step)
        track.add(Kind.CHECKPOINT_COMMITTED, body, at, attempt.attempt_id)
    if attempt.attempt_id % NOTE_EVERY_ATTEMPTS == 0:
        text = f"Watched attempt {attempt.attempt_id} of {run.run_id} for a while: the loss falls."
        at = _at(run, attempt.ended_s - each_s / 2)
        track.add(Kind.NOTE, to_json(Note(by="ann", text=text)), at, attempt.attempt_id)


def _end(track: Written, run: RunPlan, attempt: AttemptPlan) -> None:
    if attempt.end == CANCELLED:
        stop = to_json(StopRequested(**STOPPED))
        track.add(Kind.STOP_REQUESTED, stop, _at(run, attempt.ended_s - 1))
    node = attempts.node_name(run, attempt)
    evidence = attempts.evidence_of(run, attempt, node)
    body = attempts.ended(run, attempt, node, evidence)
    if track.with_objects:
        track.objects[body["evidence_key"]] = evidence
    track.add(Kind.ATTEMPT_ENDED, body, _at(run, attempt.ended_s), attempt.attempt_id)
    after = _at(run, attempt.ended_s + 1)
    if attempt.end == "hang":
        alert = Alert(rule="slow_node", text=f"{node} is slower than its peers by half.")
        track.add(Kind.ALERT, to_json(alert), after, attempt.attempt_id)
    if attempt.rolls_back:
        left = _ref(run, attempt, attempt.steps[-1])
        _decide(track, Kind.CHECKPOINT_QUARANTINED, left, after, is_passed_over=True)
    elif len(attempt.steps) > 1:
        _decide(track, Kind.CHECKPOINT_SUPERSEDED, _ref(run, attempt, attempt.steps[0]), after)
    if attempt.attempt_id % EVAL_EVERY_ATTEMPTS == 0 and attempt.steps:
        _evaluate(track, run, attempt, _ref(run, attempt, attempt.steps[0]))


def _conclude(track: Written, run: RunPlan) -> None:
    last = run.attempts[-1]
    if run.branch is not None:
        first = next(attempt for attempt in run.attempts if attempt.steps)
        ref = _ref(run, first, first.steps[0])
        at = _at(run, last.ended_s + 2)
        _decide(track, Kind.CHECKPOINT_PINNED, ref, at, pin=f"branch:{run.branch}")
    if last.end is None:
        return
    if last.end not in (COMPLETED, CANCELLED):
        _refuse(track, run, last)
        return
    final = _ref(run, last, last.steps[-1])
    if last.end == COMPLETED:
        _evaluate(track, run, last, final)
        promoted_at = _at(run, last.ended_s + 60)
        track.add(Kind.PROMOTION_DECIDED, promotion(run, final), promoted_at)
    finished = RunFinished(
        stop_cause="step_budget" if last.end == COMPLETED else "user",
        why="All steps are done." if last.end == COMPLETED else "ann asked to stop.",
        decided_by="watch_attempts",
        final=final if last.end == COMPLETED else None,
    )
    track.add(Kind.RUN_FINISHED, to_json(finished), _at(run, last.ended_s + 90))


def _refuse(track: Written, run: RunPlan, last: AttemptPlan) -> None:
    refusal = RetryRefused(
        reason=str(last.end),
        limit="reason",
        decision=f"No retry after {last.end}: it would end the same way.",
        counted_seqs=(len(track.stored) - 1,),
        what_to_do="Mend what the root message names, then `tracks retry`.",
        decided_by="watch_attempts",
    )
    at = _at(run, last.ended_s + 5)
    track.add(Kind.RETRY_REFUSED, to_json(refusal), at, last.attempt_id)


def _evaluate(track: Written, run: RunPlan, attempt: AttemptPlan, ref: CheckpointRef) -> None:
    begun_s = attempt.ended_s + 2
    track.add(Kind.EVAL_OPENED, eval_opened(run, ref), _at(run, begun_s))
    body = eval_ended(run, ref, begun_s + 1)
    track.add(Kind.EVAL_ENDED, body, _at(run, begun_s + 2 + EVAL_S))


def _decide(
    track: Written,
    kind: Kind,
    ref: CheckpointRef,
    at: datetime,
    *,
    pin: str | None = None,
    is_passed_over: bool = False,
) -> None:
    decision = CheckpointDecision(
        manifest_sha256=ref.manifest_sha256,
        by="collector",
        why="Retention lets go of it." if pin is None else "A run branches from it.",
        pin=pin,
        is_passed_over=is_passed_over,
    )
    track.add(kind, to_json(decision), at)


def _ref(run: RunPlan, attempt: AttemptPlan, step: int) -> CheckpointRef:
    return checkpoint_ref(run.run_id, run.index, attempt.attempt_id, step)


def _at(run: RunPlan, seconds: float) -> datetime:
    return run.declared_at + timedelta(seconds=seconds)


def other_tracks(fleet: Fleet) -> Iterator[Written]:
    """Yield the tracks of the datasets and of the pools."""
    for dataset in DATASETS.values():
        yield _dataset(fleet, dataset, WIDE_SNAPSHOT + 1)
        yield _dataset(fleet, f"{dataset}-heldout", 1)
    for pool in POOLS:
        yield _pool(fleet, pool)


def _dataset(fleet: Fleet, dataset: str, snapshot_count: int) -> Written:
    """Return the track of a dataset whose snapshots come at even distances."""
    track = Written(dataset_track(dataset))
    begin = fleet.begin_at - timedelta(days=3)
    spec = DatasetDeclared(dataset=dataset, description=f"Samples of {dataset}.", kind="text")
    track.add(Kind.DATASET_DECLARED, to_json(spec), begin)
    for number in range(snapshot_count):
        body = _snapshot(snapshot_ref(dataset, number), number)
        at = begin + timedelta(days=1) + number / SNAPSHOT_COUNT * SPAN
        track.add(Kind.SNAPSHOT_COMMITTED, to_json(body), min(at, fleet.end_at))
    return track


def _snapshot(ref: SnapshotRef, number: int) -> SnapshotCommitted:
    return SnapshotCommitted(
        dataset=ref.dataset,
        snapshot_id=ref.snapshot_id,
        manifest_key=f"datasets/{ref.dataset}/snapshots/{ref.snapshot_id}/manifest.json",
        row_count=1_000_000 + number,
        total_bytes=4_000_000_000,
        shard_count=32,
        logical_sha256=sha256_hex(f"rows {ref.snapshot_id}".encode()),
        source="s3://example/landing",
        checks=("rows_are_unique", "text_is_not_empty"),
    )


def _pool(fleet: Fleet, pool: str) -> Written:
    """Return the track of a pool: strikes at even distances; every third quarantines its node."""
    track = Written(pool_track(pool))
    for number in range(STRIKES_OF_POOL):
        at = fleet.begin_at + (number + 1) / (STRIKES_OF_POOL + 1) * SPAN
        node = f"{pool}-{number * 7 % NODES_OF_POOL:03d}"
        run_index = (fleet.run_count - 1) * number // STRIKES_OF_POOL
        strike = NodeStruck(
            pool=pool,
            node=node,
            run_id=fleet.run_id(run_index),
            attempt_id=1,
            reason="gpu_hardware",
            struck_at=format_time(at),
            exposure_s=86_400.0,
            pool_exposure_s=86_400.0 * NODES_OF_POOL,
            pool_node_count=NODES_OF_POOL,
            why="A device of it reported a hardware fault.",
            by="node_health",
        )
        track.add(Kind.NODE_STRUCK, to_json(strike), at)
        if number % QUARANTINE_EVERY_STRIKES == 0:
            _quarantine(track, pool, node, at=at + timedelta(seconds=1))
    return track


def _quarantine(track: Written, pool: str, node: str, *, at: datetime) -> None:
    until_at = format_time(at + QUARANTINE)
    why = "Three strikes in seven days."
    quarantine = NodeQuarantined(pool=pool, node=node, until_at=until_at, by="node_health", why=why)
    track.add(Kind.NODE_QUARANTINED, to_json(quarantine), at)
    release = NodeReleased(pool=pool, node=node, by="gus", why="The device was replaced.")
    track.add(Kind.NODE_RELEASED, to_json(release), at + timedelta(days=1))


@dataclass(slots=True)
class Written:
    """One track as it grows, sealed and chained.

    stored: the bytes of its records; objects: what they name, by key, where `with_objects` asks for it.
    """

    name: str
    with_objects: bool = False
    stored: list[bytes] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    _head: str | None = None

    def add(
        self, kind: Kind, body: Mapping[str, Json], at: datetime, attempt_id: int | None = None
    ) -> None:
        """Append one record."""
        seq = len(self.stored)
        uid = sha256_hex(f"{self.name} {seq}".encode())[:32]
        draft = Draft(uid=uid, kind=kind, body=body, attempt_id=attempt_id)
        data = seal(draft, seq=seq, at=at, prev_sha256=self._head)
        self._head = sha256_hex(data)
        self.stored.append(data)
