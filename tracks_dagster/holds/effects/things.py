"""Find what a person's `kind:name` names: the one thing, or the nearest names there are.

Names come from the tracks where a run or dataset says which, and from the ledger where nothing does: a
manifest's sha256, a commit, a node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from tracks_dagster.holds.effects.things_by_ledger import (
    AMBIGUOUS_NAMED_MAX,
    find_code,
    find_manifest,
    find_node,
    one_of,
)
from tracks_dagster.holds.lineage import Thing, ThingKind, checkpoint_name, checkpoint_thing
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import EvalOpened, PromotionDecided, SnapshotRef
from tracks_dagster.track.errors import UnknownRun
from tracks_dagster.track.names import parse_attempt_key
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.run_state import CheckpointState, RunState
from tracks_dagster.track.text.nearest import did_you_mean, instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """One thing that there is.

    text: what names it and nothing else, as a record of a quarantine does; called: as people name it.
    state: of the run that it belongs to; the others: what it is or rests on.
    """

    kind: ThingKind
    text: str
    called: str
    state: RunState | None = None
    attempt_id: int | None = None
    checkpoint: CheckpointRef | None = None
    snapshot: SnapshotRef | None = None
    eval_id: str | None = None
    eval_number: int | None = None
    alias: str | None = None

    @property
    def name(self) -> str:
        """`text` without its kind."""
        return self.text.partition(":")[2]


def find_exact(tracks: Tracks, ledger: Ledger | None, thing: Thing) -> Exact:
    """Return what `thing` names.

    ledger: None where there is none; then only runs, their attempts, steps, evals and promotions, and
    snapshots are found. Raises UnknownRun naming the nearest, InvalidInput for what is ambiguous.
    """
    match thing.kind:
        case ThingKind.SNAPSHOT:
            return _snapshot(tracks, thing.name)
        case ThingKind.CHECKPOINT:
            return _checkpoint(tracks, ledger, thing.name)
        case ThingKind.NODE:
            name = f"{thing.kind}:{find_node(ledger, thing.name)}"
            return Exact(kind=thing.kind, text=name, called=name)
        case ThingKind.CODE:
            name = f"{thing.kind}:{find_code(ledger, thing.name)}"
            return Exact(kind=thing.kind, text=name, called=name)
        case ThingKind.ATTEMPT:
            return _attempt(tracks, thing)
        case ThingKind.RUN:
            return _of_run(thing, tracks.run(thing.name))
        case ThingKind.EVAL:
            return _eval(tracks, thing)
        case ThingKind.PROMOTION:
            return _promotion(tracks, thing)


def as_it_was(thing: Exact, until: datetime) -> Exact | None:
    """Return what `thing` named then: of an eval or a promotion the newest one by then, not of now.

    None for a checkpoint, an eval or a promotion that was not there yet.
    """
    state, was = thing.state, thing
    if state is None:
        return thing
    if thing.kind is ThingKind.PROMOTION:
        by_then = [p.body for p in state.promotions if p.at <= until and p.body.promoted]
        of_alias = [body for body in by_then if body.alias == thing.alias]
        if not of_alias:
            return None
        was = _as_promotion(thing, of_alias[-1])
    if thing.kind is ThingKind.EVAL:
        opened = [e.opened for e in state.evals if e.opened_at <= until]
        tries = [each for each in opened if each.eval_id == thing.eval_id]
        if not tries:
            return None
        was = _as_eval(thing, tries[-1])
    found = state.checkpoint(was.checkpoint.manifest_sha256) if was.checkpoint else None
    return was if found is None or found.at <= until else None


def _snapshot(tracks: Tracks, name: str) -> Exact:
    dataset, _, prefix = name.rpartition("@")
    state = tracks.find_dataset(dataset)
    if state is None:
        known = [each.rstrip("/") for each in tracks.store.folders("datasets/")]
        raise UnknownRun(
            f"There is no dataset {dataset!r}; {did_you_mean(dataset, known)}"
            "`tracks snapshots list` names them."
        )
    found = [s.body.snapshot_id for s in state.snapshots if s.body.snapshot_id.startswith(prefix)]
    if not found:
        newest = [s.body.snapshot_id for s in state.snapshots]
        raise UnknownRun(
            f"There is no snapshot {prefix!r} of dataset {dataset}; "
            f"{did_you_mean(prefix, [each[: len(prefix)] for each in newest])}"
            f"`tracks snapshots list {dataset}` names them."
        )
    one_of(f"snapshot:{name}", found)
    ref = SnapshotRef(dataset=dataset, snapshot_id=found[0])
    called = f"snapshot:{dataset}@{found[0][:12]}"
    return Exact(
        kind=ThingKind.SNAPSHOT,
        text=f"snapshot:{dataset}@{found[0]}",
        called=called,
        snapshot=ref,
    )


def _attempt(tracks: Tracks, thing: Thing) -> Exact:
    run_id, attempt_id = parse_attempt_key(thing.name)
    state = tracks.run(run_id)
    if state.attempt(attempt_id) is None:
        count = len(state.attempts)
        has = f"a01 to a{count:02d}" if count > 1 else "a01" if count else "none yet"
        raise UnknownRun(f"{run_id} has no attempt {attempt_id}; it has: {has}.")
    return replace(_of_run(thing, state), attempt_id=attempt_id)


def _checkpoint(tracks: Tracks, ledger: Ledger | None, name: str) -> Exact:
    where, separator, step = name.partition("@")
    if separator:
        run_id, attempt_id = parse_attempt_key(where) if "/" in where else (where, None)
        state = tracks.run(run_id)
        found = [
            c
            for c in state.checkpoints
            if c.ref.step == int(step) and attempt_id in (None, c.ref.attempt_id)
        ]
        if not found:
            raise UnknownRun(_no_step(state, int(step), attempt_id))
        names = [checkpoint_name(run_id, c.ref.attempt_id, c.ref.step) for c in found]
        one_of(f"checkpoint:{name}", names)
        return _of_checkpoint(state, found[0])
    run_id, manifest_sha256 = find_manifest(ledger, name)
    state = tracks.run(run_id)
    committed = state.checkpoint(manifest_sha256)
    if committed is None:
        raise UnknownRun(
            f"{state.run_id} has no checkpoint {name!r}, though the ledger says so: `tracks fsck`."
        )
    return _of_checkpoint(state, committed)


def _eval(tracks: Tracks, thing: Thing) -> Exact:
    run_id, _, eval_id = thing.name.partition("/")
    state = tracks.run(run_id)
    found = [each.opened for each in state.evals if each.opened.eval_id == eval_id]
    if not found:
        known = sorted({each.opened.eval_id for each in state.evals})
        raise UnknownRun(
            f"{run_id} has no eval {eval_id!r}; "
            + instead(
                eval_id, known, f"it has: {', '.join(known[:AMBIGUOUS_NAMED_MAX]) or 'none'}."
            )
        )
    return _as_eval(_of_run(thing, state), found[-1])


def _promotion(tracks: Tracks, thing: Thing) -> Exact:
    run_id, _, alias = thing.name.partition("/")
    state = tracks.run(run_id)
    found = [p.body for p in state.promotions if p.body.promoted and p.body.alias == alias]
    if not found:
        known = sorted({p.body.alias for p in state.promotions if p.body.promoted})
        raise UnknownRun(
            f"Nothing of {run_id} was promoted to {alias!r}; "
            + instead(alias, known, f"promoted were: {', '.join(known) or 'none'}.")
        )
    return _as_promotion(_of_run(thing, state), found[-1])


def _of_run(thing: Thing, state: RunState) -> Exact:
    return Exact(kind=thing.kind, text=str(thing), called=str(thing), state=state)


def _as_eval(thing: Exact, opened: EvalOpened) -> Exact:
    return replace(
        thing,
        checkpoint=opened.checkpoint,
        snapshot=opened.snapshot,
        eval_id=opened.eval_id,
        eval_number=opened.number,
    )


def _as_promotion(thing: Exact, decided: PromotionDecided) -> Exact:
    return replace(
        thing,
        checkpoint=decided.checkpoint,
        snapshot=decided.snapshot,
        eval_id=decided.eval_id,
        eval_number=decided.eval_number,
        alias=decided.alias,
    )


def _of_checkpoint(state: RunState, checkpoint: CheckpointState) -> Exact:
    ref = checkpoint.ref
    return Exact(
        kind=ThingKind.CHECKPOINT,
        text=str(checkpoint_thing(ref)),
        called=checkpoint_name(state.run_id, ref.attempt_id, ref.step),
        state=state,
        attempt_id=ref.attempt_id,
        checkpoint=ref,
    )


def _no_step(state: RunState, step: int, attempt_id: int | None) -> str:
    of = "" if attempt_id is None else f" by attempt {attempt_id}"
    there = sorted(
        {c.ref.step for c in state.checkpoints}, key=lambda each: (abs(each - step), each)
    )
    nearest = ", ".join(str(each) for each in sorted(there[:AMBIGUOUS_NAMED_MAX])) or "none"
    return (
        f"{state.run_id} committed no checkpoint of step {step}{of}; the nearest are: {nearest}. "
        f"`tracks checkpoints list {state.run_id}` shows all."
    )
