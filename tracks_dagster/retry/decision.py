"""What may follow on the state of a run: a retry, a wait, a refusal, or its end. Plain values.

`decide` gives one of them, `attempts.effects.opening.retry` appends the record that it makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tracks_dagster.retry.rollback import Quarantine
from tracks_dagster.track.bodies import (
    Alert,
    AttemptOpened,
    CheckpointCadence,
    ComputeRequest,
    ConfigChange,
    Debit,
    RetryRefused,
    SnapshotRef,
)
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Open the next attempt; everything that its `attempt_opened` holds, and what comes before it.

    quarantine: a record each, in this order; what stands in the track already is not named again.
    collects_first: superseded checkpoints are removed before it is opened; failing to does not stop it.
    avoided_nodes: as in `AttemptOpened`, once the pool's quarantines were looked at; trainer: likewise.
    """

    decision: str
    debit: Debit
    remediation: tuple[ConfigChange, ...]
    config: Mapping[str, Json]
    compute: ComputeRequest
    snapshot: SnapshotRef
    resume: CheckpointRef | None
    counted_seqs: tuple[int, ...]
    allows_environment_change: bool
    cadence: CheckpointCadence | None = None
    quarantine: tuple[Quarantine, ...] = ()
    collects_first: bool = False
    avoided_nodes: Mapping[str, str] = field(default_factory=dict)
    trainer: str | None = None

    def opened(self, *, decided_by: str, policy_version: str = "") -> AttemptOpened:
        """Return the body of its record."""
        return AttemptOpened(
            cause="retry",
            decided_by=decided_by,
            decision=self.decision,
            config=self.config,
            compute=self.compute,
            snapshot=self.snapshot,
            resume=self.resume,
            debit=self.debit,
            remediation=self.remediation,
            counted_seqs=self.counted_seqs,
            policy_version=policy_version,
            allows_environment_change=self.allows_environment_change,
            cadence=self.cadence,
            avoided_nodes=self.avoided_nodes,
            trainer=self.trainer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing is decided now. until: when to decide again by itself; None: something has to happen.

    verify: a checkpoint whose bytes have to be read first: if they are right, a limit is not exhausted.
    alert: what a person should be told, once.
    """

    why: str
    until: datetime | None = None
    verify: CheckpointRef | None = None
    alert: Alert | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """No automatic retry. limit: as in `RetryRefused`, the first of those that are exhausted.

    quarantine: checkpoints that a person's retry may not resume from either, a record each before.
    quarantines_snapshot: the snapshot that it trained on is quarantined before, whose rows are bad.
    """

    reason: TerminationReason
    limit: str
    decision: str
    what_to_do: str
    counted_seqs: tuple[int, ...]
    quarantine: tuple[Quarantine, ...] = ()
    quarantines_snapshot: SnapshotRef | None = None

    def refused(self, *, decided_by: str, policy_version: str = "") -> RetryRefused:
        """Return the body of its record."""
        return RetryRefused(
            reason=self.reason.value,
            limit=self.limit,
            decision=self.decision,
            counted_seqs=self.counted_seqs,
            what_to_do=self.what_to_do,
            decided_by=decided_by,
            policy_version=policy_version,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The run is over. stop_cause: as in `RunFinished`.

    quarantine: what was saved after the numbers of a stopped run went wrong, a record each before.
    """

    stop_cause: str
    why: str
    final: CheckpointRef | None
    quarantine: tuple[Quarantine, ...] = ()


Decision = Retry | Wait | Refuse | Finish
