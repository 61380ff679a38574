"""Make a record of what `decide` answers: the next attempt, a refusal, or the end of a run.

The sensors call `settle` for the reasons that are theirs; two of them at once are harmless, because
one loses its place in the track, decides again and finds nothing left to do. `retry_by_person` opens
an attempt in a person's name, outside of the automatic budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tracks_dagster.core.bodies import (
    AttemptOpened,
    ConfigChange,
    RetryRefused,
    RunFinished,
)
from tracks_dagster.core.decide import Decision, Finish, Refuse, Retry, Wait, decide
from tracks_dagster.core.errors import InvalidInput
from tracks_dagster.core.families import FAMILIES, resolve_config
from tracks_dagster.core.policy import RetryPolicy
from tracks_dagster.core.reasons import TerminationReason
from tracks_dagster.core.records import Draft, Json, Kind, Record
from tracks_dagster.core.run_state import AttemptState, RunState
from tracks_dagster.core.track import run_track
from tracks_dagster.services.branch_source import source_withdrawn
from tracks_dagster.services.tracks import Tracks


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What came of a settling: "opened", "refused", "finished" or "waiting".

    record: the one that this call appended; None when it waits, or when another did it before. why:
    the decision's words.
    """

    what: str
    record: Record | None
    why: str


def settle(
    tracks: Tracks,
    run_id: str,
    *,
    reasons: frozenset[TerminationReason] | None,
    decided_by: str,
    policy: RetryPolicy,
) -> Settled:
    """Decide what follows on the run's state, and append it.

    reasons: act only when the newest attempt ended for one of these; None: for any. A stop is obeyed
    whatever the reason. Idempotent and safe from two processes. Raises UnknownRun and Contended.
    """
    tracks.run(run_id)
    decision: Decision = Wait(why="Nothing was decided.")

    def choose(state: RunState | None) -> Draft | None:
        nonlocal decision
        if state is None:
            return None
        decision = _decision(state, reasons, decided_by, policy, tracks)
        return _draft(tracks, state, decision, decided_by, policy)

    record = tracks.decide_run(run_id, choose)
    if record is None:
        why = decision.why if isinstance(decision, Wait) else "Another decided first."
        return Settled(what="waiting", record=None, why=why)
    return Settled(what=_WHAT[record.kind], record=record, why=_why(decision))


def retry_by_person(
    tracks: Tracks,
    run_id: str,
    *,
    by: str,
    why: str,
    changes: Mapping[str, Json],
    allows_environment_change: bool = False,
) -> Record:
    """Open the next attempt in the name of `by`, with `changes` to the config; no budget is spent.

    allows_environment_change: it may resume with other libraries than those that wrote its
    checkpoint. Raises UnknownRun, and InvalidInput, with nothing written, when an attempt is open,
    the run is finished, what it branched from was withdrawn or a change cannot be used.
    """
    tracks.run(run_id)
    tracks.project(run_track(run_id))  # a caller killed right after its append had not come to it

    def choose(state: RunState | None) -> Draft | None:
        if state is None:
            return None
        last = _retriable(state, changes)
        if (gone := source_withdrawn(tracks, state)) is not None:
            raise InvalidInput(f"Training run {run_id} cannot be retried: {gone}")
        config = _changed_config(state, last, changes)
        opened = AttemptOpened(
            cause="manual_retry",
            decided_by=by,
            decision=why,
            config=config,
            compute=last.opened.compute,
            snapshot=last.opened.snapshot,
            resume=state.resumes_from,
            remediation=_differences(last.opened.config, config, why=f"{by}: {why}"),
            counted_seqs=(last.ended_seq,) if last.ended_seq is not None else (),
            allows_environment_change=allows_environment_change,
        )
        return tracks.draft(Kind.ATTEMPT_OPENED, opened, attempt_id=last.attempt_id + 1)

    record = tracks.decide_run(run_id, choose)
    if record is None:
        raise InvalidInput(f"Training run {run_id} cannot be retried: it has no records.")
    return record


ENDED_WITH_ALL_STEPS = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})

_WHAT = {
    Kind.ATTEMPT_OPENED: "opened",
    Kind.RETRY_REFUSED: "refused",
    Kind.RUN_FINISHED: "finished",
}


def _decision(
    state: RunState,
    reasons: frozenset[TerminationReason] | None,
    decided_by: str,
    policy: RetryPolicy,
    tracks: Tracks,
) -> Decision:
    gone = source_withdrawn(tracks, state)
    decision = decide(state, policy, tracks.now(), source_withdrawn=gone)
    last = state.last_attempt
    reason = last.reason if last is not None else None
    is_stop = isinstance(decision, Finish) and decision.stop_cause == "user"
    if reasons is None or is_stop or reason is None or reason in reasons:
        return decision
    return Wait(why=f"{decided_by} does not decide what follows on {reason}.")


def _draft(
    tracks: Tracks, state: RunState, decision: Decision, decided_by: str, policy: RetryPolicy
) -> Draft | None:
    """Return the record that `decision` makes, or None for a wait."""
    attempt_id = len(state.attempts)
    match decision:
        case Retry():
            opened = AttemptOpened(
                cause="retry",
                decided_by=decided_by,
                decision=decision.decision,
                config=decision.config,
                compute=decision.compute,
                snapshot=decision.snapshot,
                resume=decision.resume,
                debit=decision.debit,
                remediation=decision.remediation,
                counted_seqs=decision.counted_seqs,
                policy_version=policy.version,
                allows_environment_change=decision.allows_environment_change,
            )
            return tracks.draft(Kind.ATTEMPT_OPENED, opened, attempt_id=attempt_id + 1)
        case Refuse():
            refused = RetryRefused(
                reason=decision.reason.value,
                limit=decision.limit,
                decision=decision.decision,
                counted_seqs=decision.counted_seqs,
                what_to_do=decision.what_to_do,
                decided_by=decided_by,
                policy_version=policy.version,
            )
            return tracks.draft(Kind.RETRY_REFUSED, refused, attempt_id=attempt_id)
        case Finish():
            finished = RunFinished(
                stop_cause=decision.stop_cause,
                why=decision.why,
                decided_by=decided_by,
                final=decision.final,
            )
            return tracks.draft(Kind.RUN_FINISHED, finished)
        case Wait():
            return None


def _why(decision: Decision) -> str:
    return decision.decision if isinstance(decision, Retry | Refuse) else decision.why


def _retriable(state: RunState, changes: Mapping[str, Json]) -> AttemptState:
    """Return the newest attempt of a run that a person may retry; raises InvalidInput."""
    if state.finished is not None:
        raise InvalidInput(
            f"Training run {state.run_id} is finished ({state.finished.stop_cause}) and cannot be "
            "retried; declare a new one with `tracks run`."
        )
    if any(stop.body.mode == "stop" for stop in state.stops):
        raise InvalidInput(
            f"Training run {state.run_id} was stopped and is about to be finished; declare a new one "
            "with `tracks run`."
        )
    last = state.last_attempt
    if last is None or last.is_open:
        number = 1 if last is None else last.attempt_id
        raise InvalidInput(
            f"Attempt {number} of training run {state.run_id} has not ended; "
            f"`tracks drain {state.run_id}` ends it, then it can be retried."
        )
    if last.reason in ENDED_WITH_ALL_STEPS and "steps" not in changes:
        raise InvalidInput(
            f"Training run {state.run_id} has all its steps (attempt {last.attempt_id} ended as "
            f"{last.reason}) and waits for its evals; `--set steps=N` lets it train on, "
            f"`tracks waive {state.run_id} SUITE` lets an eval go."
        )
    return last


def _changed_config(
    state: RunState, last: AttemptState, changes: Mapping[str, Json]
) -> dict[str, Json]:
    """Return the config of the newest attempt with `changes`, checked as when it was declared."""
    before = dict(last.opened.config)
    if not changes:
        return before
    unknown = sorted(set(changes) - set(before))
    if unknown:
        raise InvalidInput(
            f"The config of {state.run_id} has no key {unknown[0]!r}; it has: "
            f"{', '.join(sorted(before))}."
        )
    if "accumulation" in changes:
        raise InvalidInput(
            "accumulation follows from global_batch, micro_batch and the ranks: change micro_batch."
        )
    family = FAMILIES.get(state.declared.model_family)
    if family is None:
        return {**before, **changes}
    given = {**before, **changes}
    own = {key: given[key] for key in given if key not in family.keys and key != "accumulation"}
    keys = {key: given[key] for key in given if key in family.keys}
    return {**resolve_config(family, keys, ranks=last.opened.compute.ranks), **own}


def _differences(
    before: Mapping[str, Json], after: Mapping[str, Json], *, why: str
) -> tuple[ConfigChange, ...]:
    return tuple(
        ConfigChange(key=key, before=before.get(key), after=value, why=why)
        for key, value in after.items()
        if before.get(key) != value
    )
