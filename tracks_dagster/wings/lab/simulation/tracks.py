"""The track of a simulated run: real bodies, folded as a real track is. Nothing is stored or hashed.

So `decide` sees in a simulation what it would see in life. Of an attempt's commits only the newest are
recorded, and old ones are forgotten again: they are enough for `decide`, which asks whether a run came
further and how far it can go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tracks_dagster.reasons.fingerprints import fingerprint
from tracks_dagster.track.bodies import (
    AttemptEnded,
    AttemptOpened,
    AttemptPlaced,
    AttemptRestored,
    CheckpointCadence,
    CheckpointCommitted,
    CheckpointVerified,
    CodeVersion,
    ComputeRequest,
    RankPlace,
    RunDeclared,
    SnapshotRef,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.names import AttemptRef, check_run_id
from tracks_dagster.track.records import Json, Kind, Record, format_time, sha256_hex
from tracks_dagster.track.roles import Roles
from tracks_dagster.track.states.checkpoints import CheckpointRef, object_prefix
from tracks_dagster.track.states.run_fold import apply
from tracks_dagster.track.states.run_state import AttemptState, RunState
from tracks_dagster.wings.lab.simulation.world import End, Launch

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)  # any time: only differences count
COMMITS_RECORDED_MAX = 32  # of one attempt: a rollback goes back 1, 2 or 4 from where it went wrong
# Of all attempts: rollbacks in a row, for two reasons apart, pass over what each attempt between them
# has saved, so more than they go back by has to be there.
COMMITS_KEPT_MAX = 4 * COMMITS_RECORDED_MAX
SNAPSHOT = SnapshotRef(dataset="simulated", snapshot_id=sha256_hex(b"simulated"))
CODE = CodeVersion(git_commit=None, branch=None, dirty=None, package_version="simulated")
LAUNCHER = "simulated"  # a cluster of one-node gangs, as far as a remedy can tell
MEMORY_BYTES = 2**30  # any amount: a remedy only multiplies it
BY = "simulate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run. steps: None runs as long as it is let; devices: all of one gang.

    estimated_s: how long it takes undisturbed, which the policy's cap in device-hours rests on. pool:
    the one that it is declared for; None: the launcher's own.
    """

    run_id: str
    devices: int
    estimated_s: float | None
    steps: int | None = None
    config: Mapping[str, Json]
    roles: Roles = field(default_factory=dict)
    pool: str | None = None

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        if self.devices < 1 or (self.estimated_s or 0) < 0:
            raise ValueError(f"A run has 1 device or more and a time from 0 s on, not {self}.")


def at(time_s: float) -> datetime:
    """Return a simulated time as records have it."""
    return BEGIN + timedelta(seconds=time_s)


def seconds(when: datetime) -> float:
    """Return what `at` was made of."""
    return (when - BEGIN).total_seconds()


class SimulatedRun:
    """A run's state, and the facts and decisions that make it grow, one record each."""

    def __init__(self, job: Job) -> None:
        self._job = job
        compute = ComputeRequest(
            launcher=LAUNCHER,
            ranks=job.devices,
            device_class="gpu",
            memory_bytes=MEMORY_BYTES,
            pool=job.pool,
        )
        declared = RunDeclared(
            run_id=job.run_id,
            model_family="simulated",
            config=job.config,
            roles=job.roles,
            snapshot=SNAPSHOT,
            code=CODE,
            owner=BY,
            team=BY,
            stage="full",
            intent="See what a policy makes of what happened.",
            compute=compute,
            cadence=CheckpointCadence(),
            estimated_device_s=None if job.estimated_s is None else job.estimated_s * job.devices,
        )
        self._seq = 0
        self.state = apply(None, self._record(Kind.RUN_DECLARED, to_json(declared), 0.0, None))

    @property
    def newest(self) -> AttemptState:
        """The newest attempt."""
        return self.state.attempts[-1]

    def add(self, kind: Kind, body: object, time_s: float, attempt_id: int | None = None) -> None:
        """Append a record and fold it."""
        self.state = apply(self.state, self._record(kind, to_json(body), time_s, attempt_id))

    def open(self, opened: AttemptOpened, time_s: float) -> None:
        """Append `attempt_opened` of the next attempt."""
        self.state = _forget_old_commits(self.state)
        self.add(Kind.ATTEMPT_OPENED, opened, time_s, len(self.state.attempts) + 1)

    def open_again(self, *, cause: str, why: str, time_s: float) -> None:
        """Open the first attempt, or one that a person opens: what ran last, with nothing changed."""
        declared, last = self.state.declared, self.state.last_attempt
        opened = AttemptOpened(
            cause=cause,
            decided_by=BY,
            decision=why,
            config=declared.config if last is None else last.opened.config,
            compute=declared.compute if last is None else last.opened.compute,
            snapshot=declared.snapshot,
            resume=self.state.resumes_from,
            cadence=None if last is None else last.opened.cadence,
        )
        self.open(opened, time_s)

    def start(self, launch: Launch) -> None:
        """Append `attempt_placed`."""
        number = self.newest.attempt_id
        node = RankPlace(
            rank=0,
            node=launch.node,
            pid=1,
            pid_started=0.0,
            boot_id=launch.node,
            device="gpu-0",
            accelerator="gpu",
        )
        placed = AttemptPlaced(
            launch_id=_launch_id(number),
            world_size=self._job.devices,
            ranks=(node,),
            image=None,
            environment={},
            environment_sha256="",
        )
        self.add(Kind.ATTEMPT_PLACED, placed, launch.at_s, number)

    def restored(self, time_s: float) -> None:
        """Append `attempt_restored`: a restore reads, and so verifies, what it resumes from."""
        attempt = self.newest
        resume = attempt.opened.resume
        body = AttemptRestored(
            launch_id=_launch_id(attempt.attempt_id),
            step=resume.step if resume else 0,
            checkpoint=resume,
            cursor=0,
        )
        self.add(Kind.ATTEMPT_RESTORED, body, time_s, attempt.attempt_id)

    def commit(self, step: int, time_s: float, *, blocking_s: float) -> None:
        """Append `checkpoint_committed` of the newest attempt."""
        number = self.newest.attempt_id
        launch_id = _launch_id(number)
        body = CheckpointCommitted(
            launch_id=launch_id,
            ref=CheckpointRef(
                run_id=self._job.run_id,
                attempt_id=number,
                step=step,
                object_prefix=object_prefix(AttemptRef(self._job.run_id, number), launch_id, step),
                manifest_sha256=f"{number}-{step}",
            ),
            cursor=step,
            epoch=0,
            trigger="time",
            total_bytes=0,
            written_bytes=0,
            blocking_s=blocking_s,
        )
        self.add(Kind.CHECKPOINT_COMMITTED, body, time_s, number)

    def verify(self, ref: CheckpointRef, time_s: float) -> None:
        """Append `checkpoint_verified`: what a sensor does when a limit depends on it."""
        body = CheckpointVerified(manifest_sha256=ref.manifest_sha256, by=BY, total_bytes=0)
        self.add(Kind.CHECKPOINT_VERIFIED, body, time_s)

    def end(self, end: End, time_s: float, *, last_step: int | None, ran_s: float) -> None:
        """Append `attempt_ended`. ran_s: from its launch to its end."""
        attempt = self.newest
        nodes = [place.node for place in attempt.placed.ranks] if attempt.placed else []
        body = AttemptEnded(
            reason=end.reason.value,
            confidence=1.0,
            rule="condition",  # what ends an attempt of a play, its control plane recorded
            lines=(),
            classifier_version=BY,
            evidence_key="",
            evidence_sha256="",
            device_seconds=ran_s * self._job.devices,
            accelerator="gpu",
            started_at=format_time(at(time_s - ran_s)),
            finished_at=format_time(at(time_s)),
            last_step=last_step,
            first_line_ran=True,
            root_message=end.message,
            fingerprint=end.fingerprint
            or fingerprint(end.reason, end.message, attempt.opened.config, SNAPSHOT, nodes),
            closed_by=BY,
            onset_step=end.onset_step,
            blamed_node=end.blamed_node,
        )
        self.add(Kind.ATTEMPT_ENDED, body, time_s, attempt.attempt_id)

    def _record(self, kind: Kind, body: Json, time_s: float, attempt_id: int | None) -> Record:
        record = Record(
            seq=self._seq,
            uid="",
            at=at(time_s),
            kind=kind,
            attempt_id=attempt_id,
            prev_sha256=None,
            body=body,
            sha256="",
        )
        self._seq += 1
        return record


def _launch_id(attempt_id: int) -> str:
    return f"launch-{attempt_id}"


def _forget_old_commits(state: RunState) -> RunState:
    """Keep what a decision may still ask for: what a rollback can reach, what was read, what is
    quarantined, and how far each attempt came. `decide` looks through all of them for each retry that
    it counts, so thousands would make a simulation take minutes."""
    resumable = [c for c in state.checkpoints if c.is_resumable]
    furthest = {c.ref.attempt_id: c for c in resumable}
    near = resumable[-COMMITS_KEPT_MAX:]
    asked_for = {id(c) for c in (*near, *furthest.values())}
    kept = tuple(
        c
        for c in state.checkpoints
        if c.quarantined or c.verified_at is not None or id(c) in asked_for
    )
    return replace(state, checkpoints=kept)
