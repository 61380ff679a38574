"""How far a run goes back when its numbers went wrong, and what it passes over on the way. Pure.

Rollback k resumes from the 2^(k-1)-th newest checkpoint before the onset: the 1st, 2nd, 4th. Every
checkpoint from the onset on, and every one between, is quarantined first, a record each, and only then
is the attempt opened. A crash between two of these records changes nothing: the plan counts the
checkpoints as they were when the attempt ended, so the next tick makes the same plan and continues it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tracks_dagster.holds.hold import Hold
from tracks_dagster.retry.limits import Progress, Spent, charged, may_prove_right, spendings
from tracks_dagster.retry.policy import Remedy, RetryPolicy, RetryRule
from tracks_dagster.retry.remediation import NothingToChange
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import AttemptState, CheckpointState, RunState

DOUBLINGS_MAX = 20  # 2**20 checkpoints back is further than any run has
CORRUPTION_DEPTH = 2  # silent corruption may have begun before the checkpoint that is newest
STEPS_NAMED_MAX = 8  # in the decision's words

_REMEDIES = frozenset({Remedy.ROLL_BACK, Remedy.ROLL_BACK_ELSEWHERE})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointQuarantine:
    """A checkpoint that the run may not resume from any more, and why.

    is_passed_over: nothing is known to be wrong with it; a run that branched from it may go on.
    """

    ref: CheckpointRef
    why: str
    is_passed_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Where the next attempt resumes, and what is quarantined before it is opened.

    number: of this rollback among those in a row without progress, 1-based. onset: the step at which
    the numbers went wrong; None where nobody can tell. resume: None begins afresh. passed_over: all,
    newest first, those that an earlier tick quarantined as well. words: its part of the decision.
    """

    number: int
    onset: int | None
    resume: CheckpointRef | None
    passed_over: tuple[CheckpointState, ...]
    words: str

    @property
    def resumed_step(self) -> int:
        """The step that the next attempt begins after."""
        return self.resume.step if self.resume else 0

    @property
    def seqs(self) -> tuple[int, ...]:
        """The quarantines that are in the track already."""
        return tuple(c.quarantined_seq for c in self.passed_over if c.quarantined_seq is not None)


def rolls_back(rule: RetryRule) -> bool:
    """Whether a retry under `rule` goes further back than the newest checkpoint."""
    return rule.remedy in _REMEDIES


def onset_of(failed: AttemptState, rule: RetryRule) -> int | None:
    """Return the step at which the numbers of `failed` went wrong; None where nobody can tell.

    What the trainer did not name is the step after the last one that it finished: there it ended.
    Bytes that turned bad in silence may have done so at any step.
    """
    if failed.ended is not None and failed.ended.onset_step is not None:
        return failed.ended.onset_step
    if rule.remedy is Remedy.ROLL_BACK_ELSEWHERE:
        return None
    last_step = failed.ended.last_step if failed.ended else None
    return (failed.resumed_step if last_step is None else last_step) + 1


def plan_rollback(
    state: RunState,
    failed: AttemptState,
    rule: RetryRule,
    policy: RetryPolicy,
    *,
    lost_source: Hold | None = None,
) -> Rollback | NothingToChange:
    """Return how far back the attempt after `failed` begins.

    Where there are fewer checkpoints before the onset than are to be gone back, a branch goes back to
    its source, a run of which retention has deleted some to the oldest that is kept, and any other
    begins afresh: its beginning is the one before its first checkpoint. lost_source: why a branch's
    source may not be resumed from; NothingToChange when it could go nowhere else.
    """
    onset = onset_of(failed, rule)
    row = _row(_at_end(state, failed, rule, unread_too=True), policy)
    number = len(row) + 1
    depth = CORRUPTION_DEPTH
    if rule.remedy is Remedy.ROLL_BACK:
        depth = 2 ** min(number - 1, DOUBLINGS_MAX)
    there = _newest_first(c for c in state.checkpoints if _stood_at_end(c, failed))
    before = _before(there, onset)
    target, how = _target(state, before, depth, lost_source)
    if isinstance(target, NothingToChange):
        return target
    passed_over = tuple(c for c in there if _is_passed_over(c, target, onset))
    words = " ".join(
        part
        for part in (
            _describe_onset(onset),
            how,
            _describe_passed_over(passed_over),
            _describe_test(number, failed, onset, row, rule),
        )
        if part
    )
    return Rollback(number=number, onset=onset, resume=target, passed_over=passed_over, words=words)


def quarantines(
    failed: AttemptState,
    onset: int | None,
    resume: CheckpointRef | None,
    passed_over: Iterable[CheckpointState],
) -> tuple[CheckpointQuarantine, ...]:
    """Return what is still to be quarantined of `passed_over`, each with its why."""
    where = "the beginning" if resume is None else checkpoint_at(resume)
    ended = f"Attempt {failed.attempt_id} ended as {failed.reason}"

    def quarantine(checkpoint: CheckpointState) -> CheckpointQuarantine:
        if onset is not None and checkpoint.ref.step >= onset:
            why = f"{ended}: its numbers went wrong at step {onset}, and this was saved after it."
            return CheckpointQuarantine(ref=checkpoint.ref, why=why, is_passed_over=False)
        why = f"{ended}: the rollback to {where} passes over it."
        # Bytes that turned bad at a step that nobody knows may be these.
        return CheckpointQuarantine(ref=checkpoint.ref, why=why, is_passed_over=onset is not None)

    return tuple(quarantine(c) for c in passed_over if c.is_resumable)


def from_onset_on(
    state: RunState, failed: AttemptState, policy: RetryPolicy
) -> tuple[CheckpointQuarantine, ...]:
    """Return what no attempt may resume from, by anybody: saved after the numbers went wrong."""
    rule = policy.rule(failed.reason or TerminationReason.UNKNOWN)
    onset = onset_of(failed, rule) if failed.reason and rolls_back(rule) else None
    if onset is None:
        return ()
    tainted = _newest_first(c for c in state.checkpoints if c.ref.step >= onset)
    return quarantines(failed, onset, None, tainted)


def as_counted(state: RunState, failed: AttemptState, rule: RetryRule) -> RunState:
    """Return `state` as the limits count it: neither before nor after the rollback's own quarantines.

    What was saved from the onset on is not progress, whether its quarantine is in the track yet or not.
    What was read and right, and only the rollback passes over, is progress until the next attempt is
    opened. What a read found corrupt since stays quarantined.
    """
    if not rolls_back(rule):
        return state
    return _at_end(state, failed, rule, unread_too=False)


def _at_end(
    state: RunState, failed: AttemptState, rule: RetryRule, *, unread_too: bool
) -> RunState:
    """Return `state` with the checkpoints as they stood when `failed` ended, but for those from the
    onset on, which are quarantined."""
    onset = onset_of(failed, rule)

    def then(checkpoint: CheckpointState) -> CheckpointState:
        if onset is not None and checkpoint.ref.step >= onset:
            return replace(checkpoint, quarantined_at=checkpoint.quarantined_at or state.head.at)
        is_known = unread_too or checkpoint.verified_at is not None
        if checkpoint.quarantined and is_known and _stood_at_end(checkpoint, failed):
            return replace(checkpoint, quarantined_at=None)
        return checkpoint

    return replace(state, checkpoints=tuple(then(c) for c in state.checkpoints))


def _row(state: RunState, policy: RetryPolicy) -> list[Spent]:
    """Return the rollbacks after which no step past the onset was saved, for either reason.

    A save counts before it was read: it only shows that the run came past the onset.
    """
    progress = Progress(state.checkpoints, may_prove_right)
    return [
        spent
        for spent in spendings(state, policy)
        if (rule := policy.rule(spent.budget)).remedy is Remedy.ROLL_BACK
        and charged(spent, rule, progress) > 0
    ]


def _stood_at_end(checkpoint: CheckpointState, failed: AttemptState) -> bool:
    """Whether it could be resumed from when `failed` ended."""
    end = failed.ended_seq if failed.ended_seq is not None else failed.opened_seq
    gone = [checkpoint.quarantined_seq, checkpoint.deleted_seq]
    return all(seq is None or seq > end for seq in gone)


def _newest_first(checkpoints: Iterable[CheckpointState]) -> list[CheckpointState]:
    """Sort as `resume_target` chooses."""
    return sorted(checkpoints, key=lambda c: (c.ref.attempt_id, c.ref.step), reverse=True)


def _before(there: Sequence[CheckpointState], onset: int | None) -> list[CheckpointState]:
    """Return those before the onset, newest first, each of an earlier step than the one before it.

    An older attempt's higher step was given up before; to go there would be no way back.
    """
    chain: list[CheckpointState] = []
    for checkpoint in there:
        limit = chain[-1].ref.step if chain else onset
        if limit is None or checkpoint.ref.step < limit:
            chain.append(checkpoint)
    return chain


def _target(
    state: RunState,
    before: Sequence[CheckpointState],
    depth: int,
    lost_source: Hold | None,
) -> tuple[CheckpointRef | NothingToChange | None, str]:
    """Return what to resume from, None for the beginning, and how far back that is, in words."""
    wanted = "The newest checkpoint before it" if depth == 1 else f"Checkpoint {depth} before it"
    usable = [c for c in before[depth - 1 :] if c.is_resumable]
    if usable:
        return usable[0].ref, f"{wanted} is resumed from."
    kept = [c for c in before if c.is_resumable]
    fewer = f"Of {depth} checkpoints to go back {len(before)} are there"
    source = state.declared.branched_from
    if source is not None and lost_source is None:
        return source, f"{fewer}: it goes back to {checkpoint_at(source)}, where it branched."
    if lost_source is not None and not kept:
        why = f"no checkpoint of its own is left before the onset, and {lost_source.sentence}"
        return NothingToChange(why=why), ""
    if lost_source is not None:
        return kept[-1].ref, f"{fewer}: it goes back to the oldest; {lost_source.sentence}"
    if kept and _retention_took_some(state, kept[-1]):
        return kept[
            -1
        ].ref, f"{fewer}, others are deleted: it goes back to the oldest that is kept."
    return None, f"{fewer}: it begins afresh."


def _retention_took_some(state: RunState, oldest: CheckpointState) -> bool:
    """Whether there was a checkpoint before `oldest` that retention let go of.

    Then the beginning is not the next one back, but perhaps weeks.
    """
    return any(
        c.superseded and c.deleted and c.ref.step < oldest.ref.step for c in state.checkpoints
    )


def _is_passed_over(
    checkpoint: CheckpointState, target: CheckpointRef | None, onset: int | None
) -> bool:
    """Whether it was saved from the onset on, or is beyond the target: a resume would take it first, or
    fall back to a step that the attempt has other samples for."""
    ref = checkpoint.ref
    if onset is not None and ref.step >= onset:
        return True
    if target is None or target.run_id != ref.run_id:
        return True
    is_newer = (ref.attempt_id, ref.step) > (target.attempt_id, target.step)
    return is_newer or ref.step > target.step


def _describe_onset(onset: int | None) -> str:
    if onset is None:
        return "It is not known at which step it began."
    return f"Its numbers went wrong at step {onset}."


def _describe_passed_over(passed_over: Sequence[CheckpointState]) -> str:
    if not passed_over:
        return ""
    steps = [f"{c.ref.step} (attempt {c.ref.attempt_id})" for c in passed_over[:STEPS_NAMED_MAX]]
    more = len(passed_over) - len(steps)
    listed = ", ".join(steps) + (f" and {more} more" if more else "")
    return f"Quarantined on the way: step {listed}."


def _describe_test(
    number: int, failed: AttemptState, onset: int | None, row: Sequence[Spent], rule: RetryRule
) -> str:
    """Describe what this rollback will show, or what the one before it has shown."""
    if rule.remedy is Remedy.ROLL_BACK_ELSEWHERE:
        return "The losses of the steps that it repeats are compared with those that it ran before."
    if number == 1:
        return (
            "Nothing else is changed: resume is exact to the bit, so the same end at the same step "
            "would show a deterministic cause, and its absence a transient one."
        )
    if number > 2:
        return "Leaving out the data did not help."
    before = onset_of(row[-1].failed, rule)
    if before == onset:
        return "The exact repeat went wrong at the same step: the cause is deterministic."
    return f"The repeat went wrong at another step than the {before} of the attempt before it."
