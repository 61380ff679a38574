"""What a person must learn to understand an attempt, as data: the shape of `tracks explain --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracks_dagster.attempts.continuity import Continuity
from tracks_dagster.ledger.facts.attempt import AttemptView
from tracks_dagster.ledger.prices import Money
from tracks_dagster.review.completeness import Completeness
from tracks_dagster.track.bodies import CodeVersion, ConfigChange, Debit, RankPlace
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef

FAILED_FIRST = "which failed first"
NOT_KNOWN = "not known"  # what the record breaks before


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a track breaks. seq: of the first record that cannot be believed.

    is_newer: it can be believed, and only a newer version can read it.
    """

    seq: int
    meaning: str
    to_do: str
    is_newer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What the attempt was for, beside its facts: what differs from the config of the one before."""

    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSeen:
    """Which data, beside its facts. skipped: (from, to) of samples that skip windows left out."""

    skipped: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """On which machines, beside its facts. ranks: also those that a record has no room for.

    nodes: all of them, by name. out: a sentence for each that, by an imported list, took no job while
    the attempt ran, or soon after.
    """

    ranks: tuple[RankPlace, ...]
    nodes: tuple[str, ...] = ()
    out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """From where it began, beside its facts. continuity: None where it began at step 0.

    passed_over: the records that quarantined what a fallback passed over, a sentence each.
    """

    passed_over: tuple[str, ...]
    continuity: Continuity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMade:
    """One checkpoint that the attempt committed, and what became of it."""

    step: int
    manifest_sha256: str
    status: str
    trigger: str
    committed_at: str
    total_bytes: int
    pins: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Why it ended: the verdict, what decided, and what speaks against it.

    ranks: how each rank ended, the earliest first; late: messages of ranks after the end was recorded.
    """

    reason: str
    sentence: str
    confidence: float
    rule: str
    lines: tuple[str, ...]
    against: tuple[str, ...]
    root_message: str
    traceback_tail: tuple[str, ...]
    evidence_key: str
    ended_at: str
    closed_by: str
    reclassified_why: str | None
    ranks: tuple[str, ...]
    late: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an attempt is that has not ended. sentence: the same in words.

    step, at: of the newest line of its journal that was shipped; steps: how many the run is to have.
    """

    step: int | None
    steps: Json
    at: str | None
    last_committed_step: int | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What it cost. device_seconds: devices times seconds; wall_s: from its opening to its end.

    debit: what it spent from the retry budget when it was opened; None: nothing. seconds: its wall
    time by bucket (`time_buckets.BUCKETS`), which sums to wall_s; device_seconds_by: those of each.
    money: at the prices of the table that is there when this is read, or why it is not known.
    """

    kept_steps: int
    lost_steps: int
    device_seconds: float | None
    accelerator: str | None
    wall_s: float | None
    debit: Debit | None
    seconds: Mapping[str, float]
    device_seconds_by: Mapping[str, float]
    money: Money


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRecord:
    """A record that a decision counted, in words."""

    seq: int
    kind: str
    at: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """What was decided after its end: "retried", "refused", "finished", "undecided" or "not known"."""

    what: str
    decided_by: str | None
    decision: str
    counted: tuple[CountedRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDone:
    """One attempt at an eval of a checkpoint that this attempt made."""

    eval_id: str
    number: int
    checkpoint_step: int
    reason: str | None
    metrics: Mapping[str, float]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One attempt of the run's history, or consecutive ones in one line.

    reason: None while open; "several reasons" where a stretch had to take in different ends.
    from_step: what its first attempt resumed from; to_step: the last step that any of them ran.
    repeats: of a single attempt, the earlier one that failed with the same fingerprint and after which
    nothing was kept; repeat_count: how many of these attempts failed so.
    """

    first: int
    last: int
    reason: str | None
    from_step: int
    to_step: int
    kept_steps: int
    lost_steps: int
    repeats: int | None
    repeat_count: int

    @property
    def count(self) -> int:
        """How many attempts these are."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UiLink:
    """A page of Dagster's UI; address: a path where the UI's own address is not set."""

    what: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Where to look up what an explanation names."""

    what: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A note, stop or alert while the attempt was the newest."""

    seq: int
    at: str
    by: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptExplanation:
    """Everything of one attempt. view: its record, which prose reads; facts: what JSON has of it, its
    checkpoints and its evals. missing: what the record does not hold, a sentence each.

    failed_saves: a sentence for each save that failed while training went on. progress: of an attempt
    that has not ended. resumes_from: what the run's next attempt would resume from, no matter who made
    it; of a finished run its final weights. rests_on: the same in words, with what became of it.
    evals_owed: a sentence on the state of each required eval. history: every attempt of
    the run, oldest first. quarantined: a sentence for each source in quarantine that it descends
    from. broken: where the track breaks; nothing after it is explained. waits_for: what the run waits
    for that is late or will not come by itself.
    """

    key: str
    run_id: str
    attempt_id: int
    view: AttemptView
    facts: Mapping[str, Json]
    tried: Tried
    data: DataSeen
    code: CodeVersion
    where: Where
    resumed: Resumed
    checkpoints: tuple[CheckpointMade, ...]
    failed_saves: tuple[str, ...]
    ended: Ended | None
    progress: Progress | None
    cost: Cost
    next: Next
    resumes_from: CheckpointRef | None
    rests_on: str
    evals: tuple[EvalDone, ...]
    evals_owed: tuple[str, ...]
    history: tuple[Stretch, ...]
    quarantined: tuple[str, ...]
    words: tuple[Remark, ...]
    missing: tuple[str, ...]
    completeness: Completeness
    what_to_do: str
    links: tuple[UiLink, ...]
    references: tuple[Reference, ...]
    broken: Break | None
    waits_for: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExplanation:
    """A run and its newest attempts, oldest first. facts: of the run, as `explanation_json` has them.
    promotions: a sentence each.

    history: all of its attempts; left_out: how many older ones are only there. cost: of all of
    them, without a debit. waits_for: what is late or will not come by itself. expectation: what its
    owner expected, and what came of it; empty where nobody said. gates: what it was declared without,
    what it stands on and what it shows, by its stage. inexact: a sentence for each of all its attempts
    that ran steps again and came to another loss. cap: in money, as it is in force.
    """

    run_id: str
    facts: Mapping[str, Json]
    state: str
    why: str
    attempts: tuple[AttemptExplanation, ...]
    promotions: tuple[str, ...]
    history: tuple[Stretch, ...]
    left_out: int
    cost: Cost
    broken: Break | None
    waits_for: str | None
    expectation: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    inexact: tuple[str, ...] = ()
    cap: float | None = None


def explanation_json(explanation: RunExplanation | AttemptExplanation) -> dict[str, Json]:
    """Return an explanation as `tracks explain --json` prints it, every fact in its group."""
    parts = to_json(explanation)
    if isinstance(explanation, RunExplanation):
        parts["attempts"] = [explanation_json(each) for each in explanation.attempts]
    parts.pop("view", None)
    for name, value in parts.pop("facts").items():
        if not isinstance(value, dict) or name not in parts:
            parts[name] = value
        elif parts[name] is not None:  # a group is null where nothing of it is known
            parts[name] |= value
    return parts
