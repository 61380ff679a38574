"""The decider of what follows an attempt's end: the next attempt, a refusal, or the end of the run.

`retry.decide` decides; here it is asked, and its answer becomes a record. A remedy that is work is done
before that: superseded checkpoints are removed before a retry on a full disk, a snapshot whose rows are
bad is quarantined before the refusal. All of it is idempotent: the next tick repeats what a dead one
began. `manual_retry` opens what a person asks for, outside of the automatic budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from tracks_dagster.attempts.effects.caps import spent
from tracks_dagster.attempts.effects.families import with_stored_code
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.checkpoints.effects.retention import collect
from tracks_dagster.checkpoints.effects.verification import (
    READ_BYTES_MAX,
    Unread,
    read_proof,
    refusal_of,
    without_proof,
)
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.holds.effects.quarantines import consumers, quarantine_snapshot
from tracks_dagster.holds.hold import short_id
from tracks_dagster.ledger.deciding import Answer, Append, First, Wait
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.decide import decide
from tracks_dagster.retry.decision import (
    Decision,
    Finish,
    Refuse,
    Retry,
    refuse_at_cap,
    refuse_too_large,
)
from tracks_dagster.retry.effects.due import runs_between_attempts
from tracks_dagster.retry.effects.node_health import avoid_now
from tracks_dagster.retry.next_sensor import next_sensor, reasons_of
from tracks_dagster.retry.rollback import CheckpointQuarantine
from tracks_dagster.track.bodies import CheckpointDecision, RunFinished, SnapshotRef
from tracks_dagster.track.errors import LedgerError, RecordTooLarge, TracksError, UnknownRun
from tracks_dagster.track.names import WATCH_ATTEMPTS, attempt_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Draft, Kind, seal
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.evals import HAS_ALL_STEPS
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.text.units import counted

QUARANTINES_MAX = 250  # of one call, 8 s of a store that takes 30 ms; the next one continues
QUARANTINE_CHARACTERS_MAX = 2000  # of why: a record is at most 16 KiB
COLLECT_S_MAX = 10.0  # of a tick: no further checkpoint is looked at then, and the retry is opened
WHY_CHARACTERS_MAX = 300  # of a failure's own words, in a snapshot's quarantine and in a decision

_WHAT = {
    Kind.ATTEMPT_OPENED: "opened",
    Kind.RETRY_REFUSED: "refused",
    Kind.RUN_FINISHED: "finished",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What was done before a decision is recorded. words: its description."""

    words: str = ""
    unread: Unread | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Decides what follows an attempt that ended for one of `reasons`; None: for any.

    Before the first end nothing is to retry. A stop is obeyed whatever the reason.
    """

    name: str
    reasons: frozenset[TerminationReason] | None = None

    @staticmethod
    def of(sensor: str) -> Retries:
        """Return the decider of the reasons that the policy gives to that sensor."""
        return Retries(name=sensor, reasons=reasons_of(sensor))

    def due(self, world: World) -> list[str]:
        """Runs between two attempts, the oldest end first.

        The watcher looks at those of any reason: it obeys stops, and names the sensors that are off.
        """
        is_watcher = self.name == WATCH_ATTEMPTS
        return runs_between_attempts(world.ledger, None if is_watcher else self.reasons)

    def decide(self, state: RunState, world: World) -> Answer:
        """Return what follows; first of all the strike of the node that the attempt ended on."""
        nodes = world.nodes
        if nodes is not None and self._is_ours(state, world) and nodes.is_due(state):
            return First(do=partial(nodes.look, state, by=self.name))
        return self._decide(state, world)

    def _decide(self, state: RunState, world: World, work: _Work | None = None) -> Answer:
        """Return what follows, once `work` was done; None: none was yet."""
        now = world.tracks.now()
        decision: Decision = decide(state, world.policy, now, world.holds.on_run(state, now))
        is_stop = isinstance(decision, Finish) and decision.stop_cause == "user"
        if not is_stop and not self._is_ours(state, world):
            sensor = next_sensor(state)
            return Wait(why=f"waiting: sensor {sensor} is off") if sensor in world.off else None
        if not state.attempts and isinstance(decision, Wait):
            return None
        do = self._work_first(state, world, decision)
        if work is None and do is not None:
            return First(do=partial(self._after, do))
        decision = _after_work(state, decision, work, now)
        if not isinstance(decision, Wait) and decision.quarantine:
            # The record of the decision names those of the quarantines.
            return First(do=partial(self._quarantine, state, world, decision.quarantine))
        if isinstance(decision, Retry):
            why = spent(state, world)
            failed = state.attempts[-1]
            decision = (
                avoid_now(world.tracks, decision)
                if why is None
                else refuse_at_cap(state, failed, why)
            )
        alert = world.nodes.none_left(state, decision) if world.nodes is not None else None
        if alert is not None:
            draft = world.tracks.draft(Kind.ALERT, alert, attempt_id=len(state.attempts))
            return Append(draft=draft, what="paused", why=alert.text, is_last=False)
        return self._answer(state, world, decision)

    def _is_ours(self, state: RunState, world: World) -> bool:
        """Whether what follows is for this decider; before the first end it is for anybody."""
        reason = state.last_attempt.reason if state.last_attempt is not None else None
        if self.reasons is None or reason is None:
            return True
        return reason in (self.reasons if world.decides_retries else self.reasons & HAS_ALL_STEPS)

    def _work_first(
        self, state: RunState, world: World, decision: Decision
    ) -> Callable[[], _Work] | None:
        """Return the work that `decision` asks for before its record; None where it asks for none."""
        tracks, reader, by = world.tracks, world.checkpoints, self.name
        if reader is None:
            return None
        match decision:
            case Retry(collects_first=True):
                return lambda: _Work(words=free_space(tracks, reader, state.run_id, by=by))
            case Wait(verify=CheckpointRef() as ref):
                return lambda: _Work(unread=read_proof(tracks, reader, state, ref, by=by))
            case Refuse(quarantines_snapshot=SnapshotRef()):
                return lambda: _Work(words=quarantine_its_snapshot(world, state, by=by))
        return None

    def _after(self, do: Callable[[], _Work]) -> Callable[[RunState, World], Answer]:
        """Do the work; return the question with it, for it may have changed what follows."""
        return partial(self._decide, work=do())

    def _quarantine(
        self, state: RunState, world: World, quarantines: Sequence[CheckpointQuarantine]
    ) -> Callable[[RunState, World], Answer] | None:
        quarantine_all(world.tracks, state, quarantines, by=self.name)
        if len(quarantines) <= QUARANTINES_MAX:
            return None
        why = f"{QUARANTINES_MAX} checkpoints were quarantined; the next tick continues."
        return lambda state, world: Wait(why=why)

    def _answer(self, state: RunState, world: World, decision: Decision) -> Answer:
        """Return the record that `decision` makes.

        A decision too large for a record becomes a refusal, which fits: trying again would
        fail for ever.
        """
        if isinstance(decision, Wait):
            return decision
        draft = self._draft(state, world, decision)
        try:
            head = state.head
            seal(draft, seq=head.seq + 1, at=world.tracks.now(), prev_sha256=head.sha256)
        except RecordTooLarge as error:
            if isinstance(decision, Finish):
                raise
            decision = refuse_too_large(state, decision, draft, error)
            draft = self._draft(state, world, decision)
        why = decision.why if isinstance(decision, Finish) else decision.decision
        return Append(draft=draft, what=_WHAT[draft.kind], why=why)

    def _draft(self, state: RunState, world: World, decision: Retry | Refuse | Finish) -> Draft:
        tracks, policy = world.tracks, world.policy
        match decision:
            case Retry():
                opened = decision.opened(decided_by=self.name, policy_version=policy.version)
                opened = with_stored_code(world, state, opened)
                attempt_id = len(state.attempts) + 1
                return tracks.draft(Kind.ATTEMPT_OPENED, opened, attempt_id=attempt_id)
            case Refuse():
                return refusal_of(tracks, state, decision, by=self.name, policy=policy)
            case Finish():
                finished = RunFinished(
                    stop_cause=decision.stop_cause,
                    why=decision.why,
                    decided_by=self.name,
                    final=decision.final,
                )
                return tracks.draft(Kind.RUN_FINISHED, finished)


def _after_work(state: RunState, decision: Decision, work: _Work | None, now: datetime) -> Decision:
    """Return the decision with what was done before it, or could not be."""
    match decision:
        case Retry() if work is not None and work.words:
            return replace(decision, decision=f"{decision.decision} {work.words}")
        case Refuse() if work is not None and work.words:
            return replace(decision, what_to_do=f"{decision.what_to_do} {work.words}")
        case Wait() if work is not None and work.unread is not None and decision.verify:
            return without_proof(state, decision, work.unread, now)
        case _:
            return decision


def free_space(tracks: Tracks, reader: CheckpointReader, run_id: str, *, by: str) -> str:
    """Remove what retention let go of, its grace over or not; describe what that freed.

    As much as a tick has time for: the collector's next pass continues. Never raises a TracksError: a
    store that is full may refuse the records too, and the retry is still worth a try.
    """
    try:
        done = collect(
            tracks,
            reader,
            run_id,
            by=by,
            until=tracks.now() + timedelta(seconds=COLLECT_S_MAX),
            ignores_grace=True,
            read_bytes_max=READ_BYTES_MAX,
        )
    except TracksError as error:
        return f"Collecting checkpoints first failed: {str(error)[:WHY_CHARACTERS_MAX]}"
    steps = ", ".join(str(deletion.ref.step) for deletion in done.deleted)
    named = f" ({'step' if len(done.deleted) == 1 else 'steps'} {steps})" if steps else ""
    return (
        f"Before it {counted(len(done.deleted), 'superseded checkpoint')}{named} and "
        f"{counted(done.leftover_count, 'leftover')} were removed, {done.freed_bytes} bytes in all."
    )


def quarantine_its_snapshot(world: World, state: RunState, *, by: str) -> str:
    """Quarantine the snapshot that the newest attempt trained on; describe what has used it.

    A snapshot unknown to its dataset's track cannot be quarantined; the text says so. Raises
    StoreUnavailable and Contended.
    """
    failed = state.attempts[-1]
    ref = failed.opened.snapshot
    if ref is None:
        return "It trained on no snapshot that could be quarantined."
    key = attempt_key(state.run_id, failed.attempt_id)
    root = failed.ended.root_message if failed.ended else ""
    why = f"{key} ended as {failed.reason} on it, and so did a retry: {root}"
    try:
        quarantine_snapshot(world.tracks, ref, by=by, why=why[:WHY_CHARACTERS_MAX])
    except UnknownRun as error:
        return f"Its snapshot could not be quarantined: {error} {_used(world.ledger, ref)}"
    finally:
        world.holds.ask_again()
    return (
        f"Snapshot {short_id(ref)} of {ref.dataset} is quarantined. {_used(world.ledger, ref)} "
        f'`tracks release snapshot:{ref.dataset}@{short_id(ref)} --why "…"` releases it.'
    )


def quarantine_all(
    tracks: Tracks, state: RunState, quarantines: Sequence[CheckpointQuarantine], *, by: str
) -> bool:
    """Append what was decided on `state`, a record each; whether that was all of it.

    False: another record came in between, or there are more than one call appends. What was appended
    stands, and the caller reads and decides again. Not projected, as of `Tracks.append_to`.
    """
    for quarantine in quarantines[:QUARANTINES_MAX]:
        body = CheckpointDecision(
            manifest_sha256=quarantine.ref.manifest_sha256,
            by=by,
            why=quarantine.why[:QUARANTINE_CHARACTERS_MAX],
            is_passed_over=quarantine.is_passed_over,
        )
        after = tracks.append_to(state, tracks.draft(Kind.CHECKPOINT_QUARANTINED, body))
        if after is None:
            return False
        state = after
    return len(quarantines) <= QUARANTINES_MAX


def _used(ledger: Ledger, ref: SnapshotRef) -> str:
    try:
        return consumers(ledger, ref).sentence
    except LedgerError as error:
        return f"What has used it is not known: {str(error)[:WHY_CHARACTERS_MAX]}"
