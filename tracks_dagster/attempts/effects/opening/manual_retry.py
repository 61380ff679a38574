"""Open an attempt in a person's name, outside of the automatic budget: recorded, and never a debit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tracks_dagster.attempts.effects.opening.attempt_changes import (
    NO_CHANGES,
    AttemptChanges,
    AttemptPlan,
    differences,
    plan_attempt,
)
from tracks_dagster.attempts.effects.opening.remedying import quarantine_all
from tracks_dagster.attempts.effects.opening.run_config import CheckGang
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.data.effects.own_trainer import FAMILY
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.starts import start_or_refuse
from tracks_dagster.holds.hold import CleanStart, loss_of_source, stop_of
from tracks_dagster.ledger.deciding import Answer, Append, First
from tracks_dagster.ledger.effects.deciding import settle
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.effects.node_health import avoid_now
from tracks_dagster.retry.rollback import CheckpointQuarantine, from_onset_on
from tracks_dagster.track.bodies import AttemptOpened
from tracks_dagster.track.errors import Contended, InvalidInput
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, Kind, Record
from tracks_dagster.track.states.run_state import AttemptState, RunState, trainer_of

ENDED_WITH_ALL_STEPS = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})
SAME_AGAIN = frozenset({TerminationReason.CODE_ERROR, TerminationReason.CONFIG_ERROR})
CODE = "code_sha256"  # of the training code, in an environment

Foresee = Callable[[str], Mapping[str, Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualRetry:
    """Decides the next attempt in a person's name, with `changes`; no budget is spent.

    What was saved after the numbers went wrong (the policy says for which reasons) is quarantined
    first: no attempt resumes from it, whoever opens it. The node that the newest attempt ended on is
    struck, where no sensor has come to it.

    allows_environment_change: it may resume with other libraries than those that wrote its
    checkpoint. is_forced: also where nothing was changed and the same attempt would end the same.
    check_gang: refuses what the launcher could not start; asked where what it is asked for changes.
    foresee: the environment of a gang that the launcher of that name would start now, {} where that
    cannot be told.
    """

    name: str  # of the person
    why: str
    changes: AttemptChanges = NO_CHANGES
    allows_environment_change: bool = False
    is_forced: bool = False
    check_gang: CheckGang | None = None
    foresee: Foresee | None = None

    def decide(self, state: RunState, world: World) -> Answer:
        """Return the next attempt, or the work that comes before it; raises InvalidInput."""
        tracks, nodes, changes = world.tracks, world.nodes, self.changes
        last = _retriable(state, changes.config)
        if nodes is not None and nodes.is_due(state):
            return First(do=partial(nodes.look, state, by=self.name))
        plan = plan_attempt(tracks, state, last, changes)
        start = _start(tracks, state, plan)
        changed = differences(state, last, plan, why=f"{self.name}: {self.why}")
        if not (changed or self.allows_environment_change or self.is_forced):
            _refuse_the_same_again(state, last, self.foresee)
        if self.check_gang is not None and changes.compute:
            self.check_gang(_gang(tracks, state, last, plan))
        if tainted := from_onset_on(state, last, world.policy):
            return First(do=partial(_quarantine, tracks, state, tainted, self.name))
        source, key = changes.trainer_source, plan.trainer
        if source is not None and key is not None and tracks.store.get(key) is None:
            return First(do=partial(_store, tracks, key, source))  # before what needs it
        opened = AttemptOpened(
            cause="manual_retry",
            decided_by=self.name,
            decision=f"{self.why} {start.words}".rstrip(),
            config=plan.config,
            compute=plan.compute,
            snapshot=plan.snapshot,
            resume=start.resume,
            remediation=changed,
            counted_seqs=(last.ended_seq,) if last.ended_seq is not None else (),
            allows_environment_change=self.allows_environment_change,
            cadence=plan.cadence,
            trainer=plan.trainer,
        )
        opened = avoid_now(tracks, opened)
        draft = tracks.draft(Kind.ATTEMPT_OPENED, opened, attempt_id=last.attempt_id + 1)
        return Append(draft=draft, what="opened", why=opened.decision)


def retry_by_person(world: World, run_id: str, retry: ManualRetry) -> Record:
    """Open the next attempt, and return its record.

    Raises UnknownRun, and InvalidInput, with nothing opened, when an attempt is open, the run is
    finished, what it branched from, its snapshot or all that it could resume from is on hold, a change
    cannot be used, or one is needed and missing.
    """
    world.tracks.run(run_id)
    try:
        record = settle(world, retry, run_id).record
    except Contended as error:
        raise Contended(f"{error} Give the same command again.") from error
    assert record is not None, "it decides, or raises"
    return record


def _quarantine(
    tracks: Tracks, state: RunState, tainted: Sequence[CheckpointQuarantine], by: str
) -> None:
    quarantine_all(tracks, state, tainted, by=by)


def _store(tracks: Tracks, key: str, source: bytes) -> None:
    tracks.store.create(key, source)


def _start(tracks: Tracks, state: RunState, plan: AttemptPlan) -> CleanStart:
    """Return where the attempt begins.

    Raises InvalidInput when what the run branched from is lost, its snapshot is in quarantine, or
    nothing is left that does not descend from a source in quarantine.
    """
    doing = f"Training run {state.run_id} cannot be retried"
    holds = Holds(tracks).on_run(state, tracks.now(), snapshot=plan.snapshot)
    lost = loss_of_source(state, holds)
    if lost is not None and not state.resumable:
        raise InvalidInput(f"{doing}: {lost.sentence}")
    return start_or_refuse(state, plan.snapshot, holds, doing=doing)


def _retriable(state: RunState, changes: Mapping[str, Json]) -> AttemptState:
    """Return the newest attempt of a run that a person may retry; raises InvalidInput."""
    if state.finished is not None:
        raise InvalidInput(
            f"Training run {state.run_id} is finished ({state.finished.stop_cause}) and cannot be "
            "retried; declare a new one with `tracks run`."
        )
    if stop_of(state) is not None:
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


def _refuse_the_same_again(state: RunState, last: AttemptState, foresee: Foresee | None) -> None:
    """Raise InvalidInput where nothing changed since `last`, which ended before its first step for a
    reason that lies in the code or the config alone."""
    if last.reason not in SAME_AGAIN or last.ended is None or last.ended.last_step is not None:
        return
    script = trainer_of(state, last)
    if script == FAMILY and not _is_same_code(last, foresee):
        return
    what = "its training code" if script == FAMILY else f"the script ({script})"
    change = "correct it first" if script == FAMILY else "give the corrected one: --trainer FILE.py"
    raise InvalidInput(
        f"Attempt {last.attempt_id} of {state.run_id} ended as {last.reason} before its first step, "
        f"and neither {what} nor anything else has changed: the next attempt would end the same. "
        f"Change something (--set KEY=VALUE), or {change}; --force opens it all the same."
    )


def _is_same_code(last: AttemptState, foresee: Foresee | None) -> bool:
    """Whether a gang would run the very training code of `last`; what is not known may differ."""
    ran = last.placed.environment.get(CODE) if last.placed is not None else None
    now = foresee(last.opened.compute.launcher).get(CODE) if foresee is not None else None
    return ran is not None and ran == now


def _gang(tracks: Tracks, state: RunState, last: AttemptState, plan: AttemptPlan) -> GangSpec:
    """Return what the launcher would be asked to start, to see whether it can."""
    return GangSpec(
        run_id=state.run_id,
        attempt_id=last.attempt_id + 1,
        opened_seq=state.head.seq + 1,
        compute=plan.compute,
        store_url=tracks.store.url,
        trainer=plan.trainer or state.declared.trainer,
    )
