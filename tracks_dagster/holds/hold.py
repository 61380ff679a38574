"""A hold: why nothing new starts from one thing, and until when. Pure.

*Quarantine* is an act: a person, a rule or a machine records that something is not to be trusted. A
*hold* is the effect of an act: of a quarantine on the thing and on all that descends from it, of a
loss on branches, of a stop on its run, of a storm on its pool. A hold is never recorded: each reading
derives it from the record that it names, so one release undoes all that came of one quarantine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.names import pool_track, run_track
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at, resume_target
from tracks_dagster.track.states.pool_state import PoolState
from tracks_dagster.track.states.run_state import RunState

ID_CHARACTERS = 12  # of a snapshot's id, in a name or a sentence
WHY_CHARACTERS_MAX = 300  # of a quarantine's why, in a sentence that goes into a record


class ThingKind(StrEnum):
    """What can be asked about."""

    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    NODE = "node"
    CODE = "code"
    ATTEMPT = "attempt"
    RUN = "run"
    EVAL = "eval"
    PROMOTION = "promotion"


class HoldAct(StrEnum):
    """What led to a hold, and so what ends it."""

    QUARANTINE = "quarantine"  # a release, or its time
    LOSS = "loss"  # nothing: the bytes are gone, or their own run quarantined them
    STOP = "stop"  # nothing: the run is finished
    STORM = "storm"  # a quiet pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One veto: nothing new starts from `what`.

    what: `kind:name`, as the functions `key_of_…` make it; called: the same as people name it.
    why: in the words of the person or part that decided it; by: empty where no record says who.
    at: when that was, of a storm its newest end; track, seq: the record; None where there is none.
    until: when it ends by itself; None: never.
    source: what was put in quarantine, as `tracks release` takes it; empty for any other act, and for
    a node that its pool quarantined. through: how `what` comes from it; empty where the name says so.
    """

    what: str
    called: str
    act: HoldAct
    why: str
    by: str = ""
    at: datetime | None = None
    track: str = ""
    seq: int | None = None
    until: datetime | None = None
    source: str = ""
    through: str = ""

    @property
    def name(self) -> str:
        """`what` without its kind."""
        return self.what.partition(":")[2]

    @property
    def release(self) -> str:
        """The command that ends a quarantine."""
        return f'`tracks release {self.source} --why "…"`'

    @property
    def words(self) -> str:
        """The sentence about `what` without its subject: "descends from …", "was deleted and …"."""
        if self.act is not HoldAct.QUARANTINE:
            return self.why
        through = f", through {self.through}" if self.through else ""
        return (
            f"descends from {self.source}, which {self.by} put in quarantine "
            f"({self._short_why}; record {self.seq} of {self.track}){through}. "
            f"{self.release} releases it."
        )

    @property
    def words_of_source(self) -> str:
        """The same about the source itself."""
        return (
            f"is in quarantine: {self._short_why} ({self.by}, record {self.seq} of "
            f"{self.track}). {self.release} releases it."
        )

    @property
    def sentence(self) -> str:
        """What is on hold, and why."""
        is_source = bool(self.source) and self.called == self.source
        return f"{self.called} {self.words_of_source if is_source else self.words}"

    @property
    def _short_why(self) -> str:
        return self.why[:WHY_CHARACTERS_MAX].rstrip(" .")


def key_of_run(run_id: str) -> str:
    """The `what` of a hold on every attempt of a run."""
    return f"{ThingKind.RUN}:{run_id}"


def short_id(ref: SnapshotRef) -> str:
    """Return as much of a snapshot's id as people need to tell it from others."""
    return ref.snapshot_id[:ID_CHARACTERS]


def key_of_snapshot(ref: SnapshotRef) -> str:
    """The `what` of a hold on a snapshot."""
    return f"{ThingKind.SNAPSHOT}:{ref.dataset}@{ref.snapshot_id}"


def key_of_checkpoint(ref: CheckpointRef) -> str:
    """The `what` of a hold on a checkpoint, named by its manifest: no two share that."""
    return f"{ThingKind.CHECKPOINT}:{ref.manifest_sha256}"


def key_of_node(node: str) -> str:
    """The `what` of a hold on a node."""
    return f"{ThingKind.NODE}:{node}"


def key_of_pool(pool: str) -> str:
    """The `what` of a hold on every start in a compute pool."""
    return f"pool:{pool}"


def called_checkpoint(ref: CheckpointRef) -> str:
    """Return a checkpoint as a sentence names it: `r-1@20 (attempt 1)`."""
    return f"{checkpoint_at(ref)} (attempt {ref.attempt_id})"


def find_hold(holds: Iterable[Hold], act: HoldAct, what: str) -> Hold | None:
    """Return the first hold of that act on `what`; None where there is none."""
    return next((hold for hold in holds if hold.act is act and hold.what == what), None)


def loss_of_source(state: RunState, holds: Iterable[Hold]) -> Hold | None:
    """Return the hold for the loss of what the run branched from; None where it is not lost."""
    source = state.declared.branched_from
    return find_hold(holds, HoldAct.LOSS, key_of_checkpoint(source)) if source is not None else None


def oldest(holds: Iterable[Hold]) -> Hold | None:
    """Return the hold to name first; the others appear once it is released. None without one."""
    return min(holds, key=age, default=None)


def age(hold: Hold) -> tuple[datetime, str, int]:
    """Return what sorts holds, the oldest record first, the same at each reading."""
    return hold.at or datetime.max.replace(tzinfo=UTC), hold.track, hold.seq or 0


def stop_of(state: RunState) -> Hold | None:
    """Return the stop that ends the run; None without one. A drain ends one attempt only."""
    stop = next((each for each in state.stops if each.body.mode == "stop"), None)
    if stop is None:
        return None
    return Hold(
        what=key_of_run(state.run_id),
        called=state.run_id,
        act=HoldAct.STOP,
        why=stop.body.why,
        by=stop.body.by,
        at=stop.at,
        track=run_track(state.run_id),
        seq=stop.seq,
    )


def loss_for_branch(state: RunState | None, ref: CheckpointRef) -> Hold | None:
    """Return why a run that branched from `ref` may not resume from it; None where it may.

    state: of the run that `ref` is of. Its rollback, which only leaves `ref` behind, takes nothing from
    its branches.
    """
    checkpoint = state.checkpoint(ref.manifest_sha256) if state is not None else None
    if checkpoint is not None and checkpoint.holds_for_branches:
        return None
    return loss(state, ref)


def loss(state: RunState | None, ref: CheckpointRef) -> Hold | None:
    """Return why nothing new may start from `ref`, by the track of its own run; None where it may."""
    checkpoint = state.checkpoint(ref.manifest_sha256) if state is not None else None
    if checkpoint is not None and checkpoint.is_resumable:
        return None
    what = "is not in that run's track" if checkpoint is None else f"was {checkpoint.status}"
    return Hold(
        what=key_of_checkpoint(ref),
        called=called_checkpoint(ref),
        act=HoldAct.LOSS,
        why=(
            f"{what} and cannot be branched from or pinned; `tracks checkpoints list {ref.run_id}` "
            "shows others."
        ),
        by=checkpoint.deletion.by if checkpoint is not None and checkpoint.deletion else "",
        at=checkpoint.unusable_at if checkpoint is not None else None,
        track=run_track(ref.run_id),
        seq=(checkpoint.deleted_seq or checkpoint.quarantined_seq) if checkpoint else None,
    )


def nodes_in_quarantine(state: PoolState, now: datetime) -> tuple[Hold, ...]:
    """Return the holds on a pool's nodes at `now`, the newest decision first."""
    return tuple(
        Hold(
            what=key_of_node(each.body.node),
            called=each.body.node,
            act=HoldAct.QUARANTINE,
            why=each.body.why,
            by=each.body.by,
            at=each.at,
            track=pool_track(state.pool),
            seq=each.seq,
            until=each.until_at,
        )
        for each in state.quarantined_at(now)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStart:
    """Where an attempt may start: at step 0 where resume is None. words: what was left out, or empty.

    hold: why it may start nowhere, in `words` too; None where it may.
    """

    resume: CheckpointRef | None
    words: str = ""
    hold: Hold | None = None


def clean_start(
    state: RunState,
    asked: CheckpointRef | None,
    holds: Sequence[Hold],
    *,
    given_up: Collection[CheckpointRef] = (),
) -> CleanStart:
    """Return `asked`, or the newest checkpoint before it that descends from nothing in quarantine.

    Else what the run branched from, where that is still there. Never restarts a run from step 0 by
    itself: discarding progress needs a person. given_up: what a rollback passes over.
    """
    quarantined = {hold.what: hold for hold in holds if hold.act is HoldAct.QUARANTINE}
    hold = quarantined.get(key_of_checkpoint(asked)) if asked is not None else None
    if asked is None or hold is None:
        return CleanStart(resume=asked)
    is_own = asked.run_id == state.run_id
    left_out = f"Step {asked.step} (attempt {asked.attempt_id})" if is_own else hold.called
    left_out = f"{left_out} {hold.words}"
    before = [
        ref
        for ref in state.resumable
        if is_own
        and (ref.attempt_id, ref.step) < (asked.attempt_id, asked.step)
        and ref.step <= asked.step
        and ref not in given_up
        and key_of_checkpoint(ref) not in quarantined
    ]
    if before:
        found = resume_target(before)
        return CleanStart(
            resume=found,
            words=f"{left_out} It goes back to step {found.step} of attempt {found.attempt_id}, the "
            "newest before it that does not.",
        )
    source, lost = state.declared.branched_from, loss_of_source(state, holds)
    if (
        source not in (None, asked)
        and lost is None
        and key_of_checkpoint(source) not in quarantined
    ):
        return CleanStart(
            resume=source,
            words=f"{left_out} It goes back to {checkpoint_at(source)}, where it branched.",
        )
    words = f"{left_out} No checkpoint before it is left that does not."
    return CleanStart(resume=None, words=words, hold=hold)
