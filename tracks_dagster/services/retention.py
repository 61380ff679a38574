"""One pass of collection over a run's checkpoints: verify the newest, supersede, delete, tidy up.

The rules are `core.retention`'s and the same whoever calls: the schedule, or a person with `tracks
checkpoints gc`. Each decision is a record at exactly the state it was made on; a pass that crashed
anywhere is taken up by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracks_dagster.core.bodies import CheckpointDecision
from tracks_dagster.core.checkpoints import CheckpointRef
from tracks_dagster.core.ports import CheckpointReader
from tracks_dagster.core.protection import newest
from tracks_dagster.core.records import Draft, Kind
from tracks_dagster.core.retention import Deletion, Fate, Judged, judge
from tracks_dagster.core.run_state import RunState
from tracks_dagster.services.deletion import (
    FINISHED_AGAIN_MAX,
    decide_deletion,
    finish_deletions,
    next_deletion,
)
from tracks_dagster.services.leftovers import leftover_keys
from tracks_dagster.services.manifests import Manifests
from tracks_dagster.services.pins import release_branches
from tracks_dagster.services.tracks import Tracks
from tracks_dagster.services.verification import Verified, verify

DECISIONS_MAX = 500  # of each kind in one pass over one run; the next pass goes on


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


def collect(tracks: Tracks, reader: CheckpointReader, run_id: str, *, by: str) -> Collected:
    """Do one pass over a run. Safe to repeat, and from two processes at once.

    Raises UnknownRun, StoreUnavailable, TrackBroken, and CheckpointMismatch when the newest commit is
    of another format; what was decided before stands, the rest is left to the next pass.
    """
    finish_deletions(tracks.store, tracks.run(run_id))
    release_branches(tracks, run_id, by=by)
    read = _verify_newest(tracks, reader, run_id, by=by)
    superseded = _supersede(tracks, run_id, by=by)
    manifests = Manifests(tracks, reader, by=by)
    deleted, waiting = _delete(tracks, manifests, run_id, by=by)
    unfinished = finish_deletions(tracks.store, tracks.run(run_id))
    leftover_count = _remove_leftovers(tracks, manifests, run_id)
    return Collected(
        run_id=run_id,
        read=(*read, *manifests.corrupt),
        superseded=superseded,
        deleted=deleted,
        waiting=(*waiting, *unfinished),
        kept=judge(tracks.run(run_id), tracks.now()),
        leftover_count=leftover_count,
    )


def _verify_newest(
    tracks: Tracks, reader: CheckpointReader, run_id: str, *, by: str
) -> tuple[Verified, ...]:
    """Read the newest commit in full, once; after a corrupt one also what a resume falls back to.

    The fallback is read even if it was verified before: the two may share the chunk that rotted.
    """
    read: list[Verified] = []
    for _ in range(DECISIONS_MAX):
        target = newest(tracks.run(run_id))
        if target is None or (target.verified_at is not None and not read):
            break
        read.append(verify(tracks, reader, target.ref, by=by))
        if read[-1].problem is None:
            break
    return tuple(read)


def _supersede(tracks: Tracks, run_id: str, *, by: str) -> tuple[Superseded, ...]:
    """Let go of everything that the rule lets go, a record each."""
    done: list[Superseded] = []

    def choose(state: RunState | None) -> Draft | None:
        judged_all = judge(state, tracks.now()) if state is not None else ()
        for judged in judged_all:
            if judged.fate is Fate.SUPERSEDE:
                body = CheckpointDecision(
                    manifest_sha256=judged.checkpoint.ref.manifest_sha256,
                    by=by,
                    why="; ".join(judged.why),
                )
                return tracks.draft(Kind.CHECKPOINT_SUPERSEDED, body)
        return None

    for _ in range(DECISIONS_MAX):
        record = tracks.decide_run(run_id, choose)
        if record is None:
            break
        checkpoint = tracks.run(run_id).checkpoint(record.body["manifest_sha256"])
        if checkpoint is not None:
            done.append(Superseded(ref=checkpoint.ref, why=record.body["why"]))
    return tuple(done)


def _delete(
    tracks: Tracks, manifests: Manifests, run_id: str, *, by: str
) -> tuple[tuple[Deletion, ...], tuple[str, ...]]:
    """Decide every deletion that is due; return them, and why others have to wait."""
    done: list[Deletion] = []
    for _ in range(FINISHED_AGAIN_MAX):  # the bytes of all of them are removed in this pass
        now, state = tracks.now(), tracks.run(run_id)
        if not any(each.fate is Fate.DELETE for each in judge(state, now)):
            return tuple(done), ()
        named = manifests.read(state)
        due = next_deletion(state, now, named)
        if not isinstance(due, Deletion):
            return tuple(done), due
        if decide_deletion(tracks, due, named, by=by, now=now):
            done.append(due)
    return tuple(done), ("more deletions are due than one pass makes; the next one goes on",)


def _remove_leftovers(tracks: Tracks, manifests: Manifests, run_id: str) -> int:
    """Remove what no record names, unless a manifest names it; nothing while one cannot be read."""
    state = tracks.run(run_id)
    keys = leftover_keys(tracks.store, state)
    if not keys:
        return 0
    named = manifests.read(state)
    if any(c.ref.manifest_sha256 not in named for c in state.checkpoints if not c.deleted):
        return 0
    needed = {key for chunks in named.values() for key in chunks}
    gone = [key for key in keys if key not in needed]
    for key in gone:
        tracks.store.delete(key)
    return len(gone)
