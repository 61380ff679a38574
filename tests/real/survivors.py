"""What must hold of a run's store whenever and wherever somebody was killed; problems in words."""

from __future__ import annotations

from collections.abc import Iterator

from tests.real.checkpoint_life import EVERY_STEPS, GLOBAL_BATCH, RUN_ID
from tests.real.said import Said
from tracks_dagster.track.errors import CheckpointError, TrackError
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.track.states import run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import log_key, read_records
from tracks_dagster.training.saves.manifest import MEMBERS, read_manifest, read_tensors


def problems(store: ObjectStore, said: Said) -> Iterator[str]:
    """Yield what is wrong: with what the store promised, the track, or any checkpoint.

    Every checkpoint that is not deleted is read in full and holds exactly what was to be saved at its
    step; a resume takes the newest that was reported as committed, or the one whose save was under way.
    """
    for key, sha256 in said.stands.items():
        data = store.get(key)
        if data is None or sha256_hex(data) != sha256:
            yield f"{key} is {'missing' if data is None else 'not what was written'}"
    try:
        records = list(read_records(store, run_track(RUN_ID)))
        state = run_fold.fold(records)
    except TrackError as error:
        yield str(error)
        return
    assert state is not None
    keys = [log_key(run_track(RUN_ID), record.seq) for record in records]
    if list(store.list(f"{run_track(RUN_ID)}/log/")) != keys:
        yield "a record stands and one before it does not"
    yield from (f"the track has the alert: {alert.body.text}" for alert in state.alerts)
    yield from _wrong_commits(state, said)
    for checkpoint in state.checkpoints:
        if checkpoint.quarantined:
            yield f"{_name(checkpoint.ref)} was quarantined"
        if not checkpoint.deleted:
            yield from _wrong_bytes(store, checkpoint.ref, said)


def unclean(store: ObjectStore, state: RunState) -> Iterator[str]:
    """Yield what is left to do after a collection: objects that no checkpoint needs."""
    needed = set()
    for checkpoint in state.checkpoints:
        if not checkpoint.deleted:
            chunks = read_manifest(store, checkpoint.ref).chunks
            needed |= {manifest_key(checkpoint.ref), *(chunk.key for chunk in chunks)}
    there = {key for key in store.list(f"runs/{RUN_ID}/attempts/") if "/step-" in key}
    for key in sorted(there - needed):
        yield f"{key} was left behind"


def not_resumed(state: RunState, expected: CheckpointRef) -> Iterator[str]:
    """Yield how the newest attempt differs from one that resumed from `expected` and saved again."""
    restored, target = state.attempts[-1].restored, state.resumes_from
    if restored is None or restored.checkpoint != expected or restored.fallback_why is not None:
        yield f"the sequel resumed from {restored}, not from {_name(expected)}"
    elif target is None or (target.attempt_id, target.step) != (
        state.attempts[-1].attempt_id,
        expected.step + EVERY_STEPS,
    ):
        yield f"the sequel saved nothing that a resume takes; it takes {target}"


def _wrong_commits(state: RunState, said: Said) -> Iterator[str]:
    """At most the last commit of an attempt may stand without a word of it: its teller was killed."""
    newest = {checkpoint.ref.attempt_id: checkpoint.ref for checkpoint in state.checkpoints}
    for checkpoint in state.checkpoints:
        ref = checkpoint.ref
        if log_key(run_track(RUN_ID), checkpoint.seq) in said.stands:
            continue
        # The next save is written down before the one under way has ended.
        begun = [step for attempt_id, step in said.states if attempt_id == ref.attempt_id][-2:]
        if ref != newest[ref.attempt_id] or ref.step not in begun:
            yield f"{_name(ref)} was committed, and never reported"
    expected = newest[max(newest)]
    if state.resumes_from != expected:
        yield f"a resume takes {state.resumes_from}, not {_name(expected)}"


def _wrong_bytes(store: ObjectStore, ref: CheckpointRef, said: Said) -> Iterator[str]:
    try:
        manifest = read_manifest(store, ref)
        found = {
            f"{member}.{entry.name}": sha256_hex(data)
            for member in MEMBERS
            for entry, data in read_tensors(store, manifest, member)
        }
    except CheckpointError as error:
        yield f"{_name(ref)} cannot be read: {error}"
        return
    if found != said.states.get((ref.attempt_id, ref.step)):
        yield f"{_name(ref)} does not hold the tensors of its step"
    cursor = manifest.members["data"].values["cursor"]
    if cursor != ref.step * GLOBAL_BATCH:
        yield f"{_name(ref)} has the data cursor {cursor}"


def _name(ref: CheckpointRef) -> str:
    return f"step {ref.step} of attempt {ref.attempt_id}"
