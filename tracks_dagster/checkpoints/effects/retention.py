"""One pass of collection over a run's checkpoints: verify the newest, supersede, delete, tidy up.

The rules are `checkpoints.retention`'s and the same for every caller: the schedule, or a person with
`tracks checkpoints gc`. Each decision is a record at exactly the state it was made on; a pass that
crashed anywhere is taken up by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import partial

from tracks_dagster.checkpoints.effects.deletion import (
    FINISHED_AGAIN_MAX,
    decide_deletion,
    finish_deletions,
    leftover_keys,
    unnamed_lists,
)
from tracks_dagster.checkpoints.effects.pins import release_branches
from tracks_dagster.checkpoints.effects.verification import Verified, quarantine, verify
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.checkpoints.retention import (
    ChunkSizes,
    Deletion,
    Fate,
    Judged,
    judge,
    judge_one,
    plan_deletions,
)
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.bodies import CheckpointDecision
from tracks_dagster.track.errors import CheckpointCorrupt, CheckpointMismatch
from tracks_dagster.track.records import Draft, Kind
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.protection import newest
from tracks_dagster.track.states.run_state import CheckpointState, RunState

DECISIONS_MAX = 500  # of each kind in one pass over one run; the next pass goes on
PLANS_MAX = 20  # of deletions in one pass; each further one is somebody else's record in between


ROUNDS_MAX = 8  # of reading what was committed while the others were read


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """A checkpoint that retention let go, and why."""

    ref: CheckpointRef
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one pass over a run did.

    read: the checkpoints that were read in full, corrupt ones among them. waiting: why a deletion
    that is due did not happen. kept: what is still there, each with the reasons. leftover_count:
    objects removed that no record names. freed_bytes: of the chunks that the deletions removed.
    """

    run_id: str
    read: tuple[Verified, ...]
    superseded: tuple[Superseded, ...]
    deleted: tuple[Deletion, ...]
    waiting: tuple[str, ...]
    kept: tuple[Judged, ...]
    leftover_count: int

    @property
    def freed_bytes(self) -> int:
        """Bytes of the chunks that the deletions removed."""
        return sum(sum(deletion.chunks.values()) for deletion in self.deleted)

    @property
    def corrupt(self) -> tuple[Verified, ...]:
        """What was quarantined."""
        return tuple(each for each in self.read if each.problem is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """What every part of a pass needs."""

    tracks: Tracks
    reader: CheckpointReader
    run_id: str
    by: str
    until: datetime | None
    ignores_grace: bool
    read_bytes_max: int | None

    @property
    def state(self) -> RunState:
        """Return the run as its track is now."""
        return self.tracks.run(self.run_id)

    def judged(self, now: datetime) -> tuple[Judged, ...]:
        """The fate of every checkpoint at that time."""
        return judge(self.state, now, ignores_grace=self.ignores_grace)

    def has_time(self) -> bool:
        """Whether a further step of the pass may begin."""
        return self.until is None or self.tracks.now() < self.until


def collect(
    tracks: Tracks,
    reader: CheckpointReader,
    run_id: str,
    *,
    by: str,
    until: datetime | None = None,
    ignores_grace: bool = False,
    read_bytes_max: int | None = None,
) -> Collected:
    """Do one pass over a run. Safe to repeat, and from two processes at once.

    ignores_grace: what is superseded is deleted at once; a quarantine keeps its grace, and what is
    pinned or in use stays either way.

    read_bytes_max: a larger checkpoint is not read in this pass, so nothing is let go because of it;
    None: any size is read.

    until: no further checkpoint is read, decided about or removed from then on, the next pass goes
    on; None: only the counts bound the pass. Raises UnknownRun, StoreUnavailable, TrackBroken, and
    CheckpointMismatch when the newest commit is of another format; what was decided before stays,
    the rest is left to the next pass.
    """
    this = _Pass(
        tracks=tracks,
        reader=reader,
        run_id=run_id,
        by=by,
        until=until,
        ignores_grace=ignores_grace,
        read_bytes_max=read_bytes_max,
    )
    finish_deletions(tracks.store, this.state, this.has_time)
    release_branches(tracks, run_id, by=by)
    read = _verify_newest(this)
    superseded = _supersede(this)
    manifests = Manifests(tracks, reader, by=by)
    deleted, waiting = _delete(this, manifests)
    unfinished = finish_deletions(tracks.store, this.state, this.has_time)
    leftover_count = _remove_leftovers(this, manifests)
    return Collected(
        run_id=run_id,
        read=(*read, *manifests.corrupt),
        superseded=superseded,
        deleted=deleted,
        waiting=(*waiting, *unfinished),
        kept=judge(this.state, tracks.now()),
        leftover_count=leftover_count,
    )


def _verify_newest(this: _Pass) -> tuple[Verified, ...]:
    """Read the newest commit in full, once; after a corrupt one also what a resume falls back to.

    The fallback is read even if it was verified before: the two may share the chunk that rotted.
    """
    read: list[Verified] = []
    for _ in range(DECISIONS_MAX):
        target = newest(this.state)
        if target is None or (target.verified_at is not None and not read) or not this.has_time():
            break
        if this.read_bytes_max is not None and target.body.total_bytes > this.read_bytes_max:
            break
        read.append(verify(this.tracks, this.reader, target.ref, by=this.by))
        if read[-1].problem is None:
            break
    return tuple(read)


def _supersede(this: _Pass) -> tuple[Superseded, ...]:
    """Let go of everything that the rule lets go, a record each."""
    candidates = [j for j in judge(this.state, this.tracks.now()) if j.fate is Fate.SUPERSEDE]
    done: list[Superseded] = []
    for judged in candidates[:DECISIONS_MAX]:
        if not this.has_time():
            break
        ref = judged.checkpoint.ref
        record = this.tracks.decide_run(this.run_id, partial(_superseding, this, ref))
        if record is not None:
            done.append(Superseded(ref=ref, why=record.body["why"]))
    return tuple(done)


def _superseding(this: _Pass, ref: CheckpointRef, state: RunState | None) -> Draft | None:
    """Return the decision to let go of `ref`; None when the state asks for it no longer."""
    judged = judge_one(state, ref.manifest_sha256, this.tracks.now()) if state is not None else None
    if judged is None or judged.fate is not Fate.SUPERSEDE:
        return None
    body = CheckpointDecision(
        manifest_sha256=ref.manifest_sha256, by=this.by, why="; ".join(judged.why)
    )
    return this.tracks.draft(Kind.CHECKPOINT_SUPERSEDED, body)


def _delete(this: _Pass, manifests: Manifests) -> tuple[tuple[Deletion, ...], tuple[str, ...]]:
    """Decide every deletion that is due; return them, and why others have to wait."""
    done: list[Deletion] = []
    for _ in range(PLANS_MAX):
        now = this.tracks.now()
        if not any(each.fate is Fate.DELETE for each in this.judged(now)):
            return tuple(done), ()
        if len(done) == FINISHED_AGAIN_MAX:  # the bytes of all of them are removed in this pass
            break
        state, named = manifests.read(this.run_id)
        plans = plan_deletions(state, now, named, ignores_grace=this.ignores_grace)
        due = [each for each in plans if isinstance(each, Deletion)]
        if not due:
            return tuple(done), tuple(each for each in plans if isinstance(each, str))
        for deletion in due[: FINISHED_AGAIN_MAX - len(done)]:
            if not this.has_time():
                return tuple(done), ("no time was left in this pass; the next one goes on",)
            if not decide_deletion(
                this.tracks,
                deletion,
                named,
                by=this.by,
                now=now,
                ignores_grace=this.ignores_grace,
            ):
                break  # somebody committed, pinned or deleted in between: plan again
            named.pop(deletion.ref.manifest_sha256, None)
            done.append(deletion)
    return tuple(done), ("more deletions are due than one pass makes; the next one goes on",)


def _remove_leftovers(this: _Pass, manifests: Manifests) -> int:
    """Remove what no record names, unless a manifest names it; no bytes while one cannot be read."""
    store, state = this.tracks.store, this.state
    gone = unnamed_lists(store, state, this.tracks.now())
    keys = leftover_keys(store, state)
    if keys:
        state, named = manifests.read(this.run_id)
        if all(c.ref.manifest_sha256 in named for c in state.checkpoints if not c.deleted):
            needed = {key for chunks in named.values() for key in chunks}
            gone += [key for key in keys if key not in needed]
    for count, key in enumerate(gone):
        if not this.has_time():
            return count
        store.delete(key)
    return len(gone)


class Manifests:
    """Reads each manifest of a run once in a pass; a corrupt one quarantines its checkpoint, loudly."""

    def __init__(self, tracks: Tracks, reader: CheckpointReader, *, by: str) -> None:
        self._tracks = tracks
        self._reader = reader
        self._by = by
        self._named: dict[str, ChunkSizes] = {}
        self._unreadable: set[str] = set()
        self.corrupt: list[Verified] = []

    def read(self, run_id: str) -> tuple[RunState, dict[str, ChunkSizes]]:
        """Return the run's state, and manifest sha256 → the chunks it names, of all not deleted.

        Missing are those that cannot be read: corrupt, or of another format. The state was read
        after every manifest: one that was deleted meanwhile is not missing, and one that was
        committed meanwhile was read too, unless more came than the bound allows for. Raises
        StoreUnavailable.
        """
        for _ in range(ROUNDS_MAX):
            state = self._tracks.run(run_id)
            unknown = [c for c in state.checkpoints if not c.deleted and not self._is_known(c)]
            if not unknown:
                break
            for checkpoint in unknown:
                self._read(checkpoint)
        there = (c.ref.manifest_sha256 for c in state.checkpoints if not c.deleted)
        return state, {sha256: self._named[sha256] for sha256 in there if sha256 in self._named}

    def _is_known(self, checkpoint: CheckpointState) -> bool:
        sha256 = checkpoint.ref.manifest_sha256
        return sha256 in self._named or sha256 in self._unreadable

    def _read(self, checkpoint: CheckpointState) -> None:
        ref = checkpoint.ref
        try:
            self._named[ref.manifest_sha256] = self._reader.chunk_sizes(ref)
        except CheckpointMismatch:
            self._unreadable.add(ref.manifest_sha256)
        except CheckpointCorrupt as error:
            self._unreadable.add(ref.manifest_sha256)
            if checkpoint.is_resumable:
                quarantined = quarantine(self._tracks, ref, str(error), by=self._by)
                if quarantined.seq is not None:
                    self.corrupt.append(quarantined)
