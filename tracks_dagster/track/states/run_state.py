"""What is known of a training run, its attempts, checkpoints and evals: plain values.

`run_fold` makes them of the records of a track; nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import Generic, TypeVar

from tracks_dagster.track.bodies import (
    BUDGET,
    MOVE,
    AttemptEnded,
    AttemptOpened,
    AttemptPlaced,
    AttemptReclassified,
    AttemptRestored,
    AttemptSupervised,
    CheckpointCommitted,
    CheckpointDecision,
    CodeVersion,
    EvalEnded,
    EvalOpened,
    EvalWaived,
    HeldDevices,
    Note,
    Program,
    PromotionDecided,
    RetryRefused,
    RunDeclared,
    RunFinished,
    StageJudged,
    StopRequested,
)
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.names import TRAINER_FAMILY, AttemptRef, attempt_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Record
from tracks_dagster.track.roles import STEPS, value_of
from tracks_dagster.track.states.alerts import Alerts, open_alerts
from tracks_dagster.track.states.checkpoints import CheckpointRef, resume_target

B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """One claim of an attempt by a Dagster run."""

    seq: int
    at: datetime
    body: AttemptSupervised


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """One attempt, folded from its run's track."""

    attempt_id: int
    opened: AttemptOpened
    opened_seq: int
    opened_at: datetime
    claims: tuple[Supervision, ...] = ()
    placed: AttemptPlaced | None = None
    placed_seq: int | None = None
    placed_at: datetime | None = None
    restored: AttemptRestored | None = None
    restored_at: datetime | None = None
    ended: AttemptEnded | None = None
    ended_seq: int | None = None
    ended_at: datetime | None = None
    reclassified: AttemptReclassified | None = None
    reclassified_seq: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether the attempt has not ended."""
        return self.ended is None

    @property
    def devices(self) -> int:
        """How many it had: as its place counted them, else one for each rank."""
        if self.ended is not None and self.ended.devices is not None:
            return self.ended.devices
        return self.opened.compute.ranks if self.placed is None else self.placed.world_size

    @property
    def held(self) -> HeldDevices | None:
        """The devices of a machine that it was given, by the newest claim that says so."""
        found = (claim.body.held for claim in reversed(self.claims))
        return next((each for each in found if each is not None), None)

    @property
    def claimed_at(self) -> datetime | None:
        """When these devices were first claimed for it; None: it was given none."""
        devices = self.held
        since = (claim.at for claim in self.claims if claim.body.held == devices)
        return None if devices is None else next(since)

    @property
    def reason(self) -> TerminationReason | None:
        """The newest reading of why it ended; None while it is open."""
        if self.ended is None:
            return None
        newest = self.reclassified.reason if self.reclassified else self.ended.reason
        return TerminationReason(newest)

    @property
    def rule(self) -> str | None:
        """The rule of the classifier that gave the newest reading; None while it is open."""
        reading = self.reclassified or self.ended
        return None if reading is None else reading.rule

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of its failure, by the newest reading."""
        if self.ended is None:
            return None
        return self.reclassified.fingerprint if self.reclassified else self.ended.fingerprint

    @property
    def resumed_from(self) -> CheckpointRef | None:
        """The checkpoint that it restored; before it has, the one that it was opened with."""
        return self.restored.checkpoint if self.restored is not None else self.opened.resume

    @property
    def resumed_step(self) -> int:
        """The step it really started from: what was restored, else what was asked for, else 0."""
        if self.restored is not None:
            return self.restored.step
        return self.opened.resume.step if self.opened.resume else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """One committed checkpoint and what was decided about it since; the first time of each counts.

    verified_at: when every byte of it was first read and matched. quarantined_seq, deleted_seq: of the
    record that decided it. is_passed_over: quarantined, but only because rollbacks left it behind.
    deletion: the decision that named the chunks that go. pins: who holds it by a record of their own;
    `protection` adds the rest.
    """

    seq: int
    at: datetime
    body: CheckpointCommitted
    verified_at: datetime | None = None
    quarantined_at: datetime | None = None
    superseded_at: datetime | None = None
    deleted_at: datetime | None = None
    deletion: CheckpointDecision | None = None
    quarantined_seq: int | None = None
    is_passed_over: bool = False
    deleted_seq: int | None = None
    pins: frozenset[str] = frozenset()

    @property
    def quarantined(self) -> bool:
        """Whether it was decided that nobody may resume from it."""
        return self.quarantined_at is not None

    @property
    def superseded(self) -> bool:
        """Whether retention has let go of it."""
        return self.superseded_at is not None

    @property
    def deleted(self) -> bool:
        """Whether its deletion was decided; its bytes may be gone or going."""
        return self.deleted_at is not None

    @property
    def ref(self) -> CheckpointRef:
        """Its public reference."""
        return self.body.ref

    @property
    def is_resumable(self) -> bool:
        """Committed (superseded or not), neither quarantined nor deleted."""
        return not self.quarantined and not self.deleted

    @property
    def unusable_at(self) -> datetime | None:
        """When it was first quarantined or deleted; None while it is resumable."""
        return min(filter(None, (self.quarantined_at, self.deleted_at)), default=None)

    @property
    def holds_for_branches(self) -> bool:
        """Whether an existing branch may still resume from it: its bytes are there and trusted."""
        return not self.deleted and (not self.quarantined or self.is_passed_over)

    @property
    def status(self) -> str:
        """One word for people: committed, superseded, quarantined or deleted."""
        if self.deleted:
            return "deleted"
        if self.quarantined:
            return "quarantined"
        return "superseded" if self.superseded else "committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalState:
    """One attempt at one eval."""

    opened: EvalOpened
    opened_seq: int
    opened_at: datetime
    ended: EvalEnded | None = None
    ended_seq: int | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dated(Generic[B]):
    """A body with the seq and the time of its record."""

    seq: int
    at: datetime
    attempt_id: int | None
    body: B


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """How people find a run again. tags: in the order of the alphabet. name: for people, "" for none.
    archived_at: None where it is not; archived_seq: of that record."""

    tags: tuple[str, ...] = ()
    name: str = ""
    archived_at: datetime | None = None
    archived_seq: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A training run, folded from its track. `head` is the last record folded."""

    head: Record
    declared: RunDeclared
    declared_at: datetime
    attempts: tuple[AttemptState, ...] = ()
    checkpoints: tuple[CheckpointState, ...] = ()
    evals: tuple[EvalState, ...] = ()
    waivers: tuple[Dated[EvalWaived], ...] = ()
    promotions: tuple[Dated[PromotionDecided], ...] = ()
    refusals: tuple[Dated[RetryRefused], ...] = ()
    stops: tuple[Dated[StopRequested], ...] = ()
    notes: tuple[Dated[Note], ...] = ()
    alerts: Alerts = ()
    reclassifications: tuple[Dated[AttemptReclassified], ...] = ()
    finished: RunFinished | None = None
    finished_at: datetime | None = None
    judged: Dated[StageJudged] | None = None
    labels: Labels = field(default_factory=Labels)

    @property
    def run_id(self) -> str:
        """The training run's id."""
        return self.declared.run_id

    @property
    def open_alerts(self) -> Alerts:
        """The alerts whose episode is not over, oldest first."""
        return open_alerts(self.alerts)

    @property
    def archived_at(self) -> datetime | None:
        """When it was archived; None where it was not, or where an attempt was opened since."""
        attempt = self.last_attempt
        is_back = attempt is not None and attempt.opened_seq > self.labels.archived_seq
        return None if is_back else self.labels.archived_at

    @property
    def open_attempt(self) -> AttemptState | None:
        """The attempt that has not ended, if there is one; only the newest can be open."""
        if self.attempts and self.attempts[-1].is_open:
            return self.attempts[-1]
        return None

    @property
    def last_attempt(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def resumable(self) -> list[CheckpointRef]:
        """What `resume_target` may choose from."""
        return [c.ref for c in self.checkpoints if c.is_resumable]

    @property
    def resumes_from(self) -> CheckpointRef | None:
        """What the next attempt resumes from: its own `resume_target`, else what it branched from.

        None: it starts at step 0. That run's track has whether the source is still there.
        """
        own = self.resumable
        return resume_target(own) if own else self.declared.branched_from

    @property
    def refusal(self) -> Dated[RetryRefused] | None:
        """The refusal in force: made after the newest attempt ended."""
        if not self.refusals or not self.attempts or self.attempts[-1].is_open:
            return None
        newest = self.refusals[-1]
        return newest if newest.attempt_id == self.attempts[-1].attempt_id else None

    def attempt(self, attempt_id: int) -> AttemptState | None:
        """Return the attempt of that id, or None."""
        if 1 <= attempt_id <= len(self.attempts):
            return self.attempts[attempt_id - 1]
        return None

    def ref(self, attempt: AttemptState) -> AttemptRef:
        """Return an attempt of this run as what names it."""
        return AttemptRef(self.run_id, attempt.attempt_id)

    def checkpoint(self, manifest_sha256: str) -> CheckpointState | None:
        """Return the committed checkpoint with that manifest, or None."""
        return next((c for c in self.checkpoints if c.ref.manifest_sha256 == manifest_sha256), None)

    def stop_for(self, attempt: AttemptState) -> Dated[StopRequested] | None:
        """Return the stop that concerns `attempt`: asked for after it, and before the next, opened.

        One that leaves the run to a person comes before one that only moves it or meets a cap.
        """
        following = self.attempt(attempt.attempt_id + 1)
        until = following.opened_seq if following else self.head.seq + 1
        asked = [stop for stop in self.stops if attempt.opened_seq < stop.seq < until]
        return min(asked, key=lambda s: (s.body.mode in (MOVE, BUDGET), s.seq), default=None)

    def is_moved(self, attempt: AttemptState) -> bool:
        """Whether the attempt was asked to leave its node, and nothing more: the run continues."""
        stop = self.stop_for(attempt)
        return stop is not None and stop.body.mode == MOVE

    def spent_by(self, attempt: AttemptState) -> Dated[StopRequested] | None:
        """Return the stop that ended the attempt because a cap was reached, or None."""
        stop = self.stop_for(attempt)
        return stop if stop is not None and stop.body.mode == BUDGET else None


def trainer_of(state: RunState, attempt: AttemptState) -> str:
    """Return the key of the code that `attempt` runs; "family" of an older version's family."""
    return attempt.opened.trainer or state.declared.trainer


def stored_code_sha256(trainer: str) -> str | None:
    """Return the sha256 of the stored code that `trainer_of` names; None of a family."""
    return None if trainer == TRAINER_FAMILY else PurePosixPath(trainer).stem


def program_of(state: RunState, attempt: AttemptState) -> Program | None:
    """Return how `attempt` starts its code; None of runs of older versions, which had one way each."""
    return attempt.opened.program or state.declared.program


def steps_of(state: RunState) -> int | None:
    """Return how many steps it is to have, as its newest attempt has it; None where no key says."""
    attempt = state.last_attempt
    config = state.declared.config if attempt is None else attempt.opened.config
    found = value_of(config, state.declared.roles, STEPS)
    return found if type(found) is int else None


def code_of(state: RunState, attempt: AttemptState) -> CodeVersion:
    """Return the checkout that the code of `attempt` is of."""
    return attempt.opened.code or state.declared.code


def known_attempt(state: RunState, attempt_id: int) -> AttemptState:
    """Return the attempt; raises UnknownRun naming those that there are."""
    attempt = state.attempt(attempt_id)
    if attempt is not None:
        return attempt
    count = len(state.attempts)
    first, last = attempt_key(state.run_id, 1), attempt_key(state.run_id, count)
    there = {0: "it has none yet", 1: f"it has {first}"}.get(count, f"it has {first} to {last}")
    raise UnknownRun(f"Training run {state.run_id} has no attempt {attempt_id}; {there}.")


def find_at(state: RunState, step: int, *, attempt_id: int | None = None) -> CheckpointState:
    """Return the resumable checkpoint of `step`, of the newest attempt that has one, or of that one.

    Raises UnknownRun naming the steps that there are.
    """
    found = [
        c
        for c in state.checkpoints
        if c.is_resumable and c.ref.step == step and attempt_id in (None, c.ref.attempt_id)
    ]
    if not found:
        there = sorted(
            {(c.ref.step, c.ref.attempt_id) for c in state.checkpoints if c.is_resumable}
        )
        steps = ", ".join(f"{step} (attempt {attempt})" for step, attempt in there) or "none"
        of = "" if attempt_id is None else f" by attempt {attempt_id}"
        raise UnknownRun(
            f"{state.run_id} has no checkpoint of step {step}{of} that can be read; it has: {steps}. "
            f"`tracks checkpoints list {state.run_id}` shows what became of the others."
        )
    return max(found, key=lambda c: c.ref.attempt_id)
