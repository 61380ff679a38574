"""Read the holds on a thing: reasons in other tracks, and in the pools, not to start from it.

A quarantine is one record, of a dataset's track for a snapshot, of a pool's for a node that fails too
often, of the track of quarantines for all else. No record says that a checkpoint descends from a source
in quarantine: each reading finds it, so a release undoes it by one record too.

Every decision reads the holds right before it appends. They are in another track than the one that it
appends to, so it misses one that is recorded within that moment: what it started then descends from a
source in quarantine, is shown so from the next reading on, and the next decision about it (a retry, an
eval, a promotion) refuses. What runs continues, and a gang that finds its checkpoint corrupt falls back
by its own run's track alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import takewhile

from tracks_dagster.holds.effects.things import Exact, as_it_was, find_exact
from tracks_dagster.holds.hold import (
    Hold,
    HoldAct,
    ThingKind,
    age,
    called_checkpoint,
    key_of_checkpoint,
    key_of_run,
    key_of_snapshot,
    loss_for_branch,
    nodes_in_quarantine,
    oldest,
    short_id,
)
from tracks_dagster.holds.lineage import (
    Thing,
    attempt_thing,
    carried,
    checkpoint_thing,
    is_code,
    ran_a_step,
)
from tracks_dagster.holds.storm import PoolEnd, PoolView, StormRule, find_storm
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.bodies import CodeVersion, SnapshotRef
from tracks_dagster.track.names import QUARANTINES_TRACK, attempt_key, dataset_track, run_track
from tracks_dagster.track.placement import nodes_of, pool_of
from tracks_dagster.track.reasons import ReasonFamily
from tracks_dagster.track.records import Record, format_time
from tracks_dagster.track.states import dataset_state, quarantine_state, run_fold
from tracks_dagster.track.states.checkpoints import CheckpointRef
from tracks_dagster.track.states.lifecycle import RunLifecycle
from tracks_dagster.track.states.quarantine_state import SourceQuarantine
from tracks_dagster.track.states.run_state import (
    AttemptState,
    CheckpointState,
    RunState,
    code_of,
    stored_code_sha256,
    trainer_of,
)

ENDS_MAX = 1000  # of one pool that are counted, newest first: any storm is clear from them
# A person asked this attempt to leave its node: no interruption.
IS_MOVED = "termination_reason in ('node_drained', 'preempted') and rule = 'stop_requested'"

BySource = Mapping[str, Hold]  # what a thing descends from: the hold of each source, by its name
_Flows = tuple[Mapping[int, BySource], Mapping[str, BySource]]


def quarantined_sources(
    tracks: Tracks, ledger: Ledger | None, thing: Thing, *, as_of: datetime | None = None
) -> tuple[Hold, ...]:
    """Return the sources in quarantine that `thing` descends from, itself included, oldest first.

    as_of: by the records up to then, None for all. Of a run: those of all its attempts. Read from the
    tracks; the ledger is asked only what a shortened id or a manifest's sha256 names, and may be None
    where the name is whole. Raises UnknownRun and InvalidInput as `find_exact`.
    """
    found = Holds(tracks, as_of=as_of).of_exact(find_exact(tracks, ledger, thing))
    return tuple(sorted(found.values(), key=age))


class Holds:
    """Reads each track and each pool once: make one for each decision or tick.

    The next one sees what somebody else decided since. Safe for several threads, which may read the
    same at once. pools: recent ends by pool; without it there are no storms. as_of: count only
    records up to then, where states are not given.
    """

    def __init__(
        self, tracks: Tracks, *, pools: Pools | None = None, as_of: datetime | None = None
    ) -> None:
        self._tracks = tracks
        self._pools = pools
        self._as_of = as_of
        self._in_force: dict[str, SourceQuarantine] | None = None
        self._codes: dict[str, SourceQuarantine] = {}
        self._snapshots: dict[SnapshotRef, Hold | None] = {}
        self._losses: dict[CheckpointRef, Hold | None] = {}
        self._flows: dict[str, tuple[int, _Flows]] = {}

    def on_run(
        self,
        state: RunState,
        now: datetime,
        *,
        snapshot: SnapshotRef | None = None,
        code: CodeVersion | None = None,
        trainer: str | None = None,
    ) -> tuple[Hold, ...]:
        """Return every hold on the run's next attempt, except on nodes and the run's stop.

        Nodes are asked for once its pool is chosen; its state has the stop.

        snapshot: that the attempt would train on; code, trainer: that it would run, as in
        `AttemptOpened`; None: the newest attempt's.
        """
        last = state.last_attempt
        newest = last.opened.snapshot if last is not None else state.declared.snapshot
        found = [self.on_snapshot(snapshot or newest), self.on_source(state)]
        if self._pools is not None and last is not None and not last.is_open:
            found.append(self._pools.storm(pool_of(last.opened.compute), now))
        lineage = self.on_lineage(state, code=code, trainer=trainer)
        return (*(hold for hold in found if hold is not None), *lineage)

    def on_snapshot(self, ref: SnapshotRef | None) -> Hold | None:
        """Return the quarantine of a snapshot, or None.

        None as well without a snapshot, and for one that no track here knows: a store that was moved
        without its datasets.
        """
        if ref is None:
            return None
        if ref not in self._snapshots:
            self._snapshots[ref] = self._snapshot_hold(ref)
        return self._snapshots[ref]

    def on_source(self, state: RunState) -> Hold | None:
        """Return the loss of what the run branched from; None where that is there, or it did not."""
        ref = state.declared.branched_from
        if ref is None:
            return None
        if ref not in self._losses:
            self._losses[ref] = loss_for_branch(self._tracks.find_run(ref.run_id), ref)
        return self._losses[ref]

    def on_lineage(
        self, state: RunState, *, code: CodeVersion | None = None, trainer: str | None = None
    ) -> tuple[Hold, ...]:
        """Return the oldest quarantine of its code and of each checkpoint that it may resume from.

        code, trainer: as in `on_run`.
        """
        by_checkpoint, source = self.of_checkpoints(state), state.declared.branched_from
        found = [(ref, by_checkpoint.get(ref.manifest_sha256, {})) for ref in state.resumable]
        if source is not None:
            found.append((source, self.of_checkpoint(source)))
        holds = [_on_checkpoint(ref, sources) for ref, sources in found if sources]
        of_code = oldest(self.of_next_code(state, code=code, trainer=trainer).values())
        if of_code is not None:
            holds.append(replace(of_code, what=key_of_run(state.run_id), called=state.run_id))
        return tuple(holds)

    def on_checkpoint(
        self, ref: CheckpointRef, state: RunState, *, snapshot: SnapshotRef | None = None
    ) -> Hold | None:
        """Return why nothing may be built on `ref` of the run, or on an eval of it on `snapshot`."""
        sources = self.of_checkpoint(ref, state)
        if sources:
            return _on_checkpoint(ref, sources)
        if snapshot is None or not snapshot.dataset:  # a proposal without an eval names none
            return None
        hold = self.on_snapshot(snapshot)
        return None if hold is None else replace(hold, called="the eval")

    def on_pool_nodes(self, pool: str, now: datetime) -> tuple[Hold, ...]:
        """Return the quarantines of the pool's nodes at `now`, the newest first."""
        state = self._tracks.find_pool(pool)
        return nodes_in_quarantine(state, now) if state is not None else ()

    def on_nodes(self) -> tuple[Hold, ...]:
        """Return the holds on nodes that persons put in quarantine as sources, in every pool."""
        prefix = f"{ThingKind.NODE}:"
        return tuple(
            _hold(each, through="")
            for text, each in sorted(self._load().items())
            if text.startswith(prefix)
        )

    def of_checkpoint(self, ref: CheckpointRef, state: RunState | None = None) -> BySource:
        """Return what a checkpoint descends from, by source. state: of its run, where it is at hand."""
        found = state if state is not None else self._run(ref.run_id)
        if found is None or found.run_id != ref.run_id:
            return {}
        return self._flow(found, ())[1].get(ref.manifest_sha256, {})

    def of_attempt(self, state: RunState, attempt_id: int) -> BySource:
        """Return what an attempt descends from: what it resumed from, used and ran on."""
        return self._flow(state, ())[0].get(attempt_id, {})

    def of_run(self, state: RunState) -> BySource:
        """Return what the attempts of a run descend from."""
        found: dict[str, Hold] = {}
        for sources in self._flow(state, ())[0].values():
            found = {**sources, **found}
        return found

    def of_checkpoints(self, state: RunState) -> Mapping[str, BySource]:
        """Return what each checkpoint of a run descends from, by manifest sha256; most from nothing."""
        return self._flow(state, ())[1]

    def of_code(self, code: CodeVersion, *sha256s: str | None) -> BySource:
        """Return the quarantines that name this code, in any run; sha256s: as of `is_code`."""
        self._load()
        return {
            text: _hold(each, through="the code that it runs")
            for text, each in self._codes.items()
            if is_code(text.partition(":")[2], code, *sha256s)
        }

    def of_next_code(
        self, state: RunState, *, code: CodeVersion | None = None, trainer: str | None = None
    ) -> BySource:
        """Return the quarantines that name the code of a run's next attempt; code, trainer: as in
        `on_run`."""
        last = state.last_attempt
        if code is None:
            code = state.declared.code if last is None else code_of(state, last)
        if trainer is None:
            trainer = state.declared.trainer if last is None else trainer_of(state, last)
        return self.of_code(code, stored_code_sha256(trainer))

    def of_exact(self, found: Exact) -> BySource:
        """Return what a thing descends from, by source; nothing where it was not there yet."""
        was = as_it_was(found, self._as_of) if self._as_of is not None else found
        if was is None:
            return {}
        state, ref = was.state, was.checkpoint
        if state is not None and self._as_of is not None:
            state = self._run(state.run_id)
        hold = self.on_snapshot(was.snapshot)
        sources: BySource = {} if hold is None else {hold.called: hold}
        if ref is not None:
            sources = {**sources, **self.of_checkpoint(ref, state)}
        elif state is not None and found.attempt_id is not None:
            sources = {**sources, **self.of_attempt(state, found.attempt_id)}
        elif state is not None:
            sources = {**sources, **self.of_run(state)}
        own = self._load().get(found.text)
        return sources if own is None else {found.text: _hold(own, through=""), **sources}

    def ask_again(self) -> None:
        """Forget what was read: something was decided since."""
        self._in_force = None
        self._snapshots.clear()
        self._losses.clear()
        self._flows.clear()

    def _load(self) -> dict[str, SourceQuarantine]:
        if self._in_force is None:
            state = (
                self._tracks.find_quarantines()
                if self._as_of is None
                else quarantine_state.fold(self._then(QUARANTINES_TRACK))
            )
            found = state.in_force if state is not None else {}
            prefix = f"{ThingKind.CODE}:"
            self._codes = {text: each for text, each in found.items() if text.startswith(prefix)}
            self._in_force = found
        return self._in_force

    def _run(self, run_id: str) -> RunState | None:
        if self._as_of is None:
            return self._tracks.find_run(run_id)
        return run_fold.fold(self._then(run_track(run_id)))

    def _then(self, track_name: str) -> Iterator[Record]:
        """Return the records of a track up to `as_of`."""
        until = self._as_of
        records = self._tracks.records(track_name)
        return takewhile(lambda record: until is None or record.at <= until, records)

    def _flow(self, state: RunState, coming_from: tuple[str, ...]) -> _Flows:
        known = self._flows.get(state.run_id)
        if known is not None and known[0] == state.head.seq:
            return known[1]
        self._load()
        flows = carried(
            state,
            by_attempt=lambda attempt: self._set_by_attempt(state, attempt),
            by_checkpoint=self._set_by_checkpoint,
            from_elsewhere=lambda ref: self._from_elsewhere(ref, (*coming_from, state.run_id)),
        )
        self._flows[state.run_id] = (state.head.seq, flows)
        return flows

    def _from_elsewhere(self, ref: CheckpointRef, coming_from: tuple[str, ...]) -> BySource:
        if ref.run_id in coming_from:
            return {}  # two damaged tracks that name each other: nothing descends from itself
        source = self._run(ref.run_id)
        if source is None:
            return {}
        return self._flow(source, coming_from)[1].get(ref.manifest_sha256, {})

    def _set_by_attempt(self, state: RunState, attempt: AttemptState) -> BySource:
        in_force, key = self._load(), attempt_key(state.run_id, attempt.attempt_id)
        found: dict[str, Hold] = {}
        own = str(attempt_thing(state.run_id, attempt.attempt_id))
        if own in in_force:
            found[own] = _hold(in_force[own], through="")
        if attempt.placed is not None:
            for node in nodes_of(attempt.placed) if in_force else ():
                text = f"{ThingKind.NODE}:{node}"
                if text in in_force:
                    found[text] = _hold(in_force[text], through=f"attempt {key}, which ran on it")
            environment = attempt.placed.environment_sha256
            stored = stored_code_sha256(trainer_of(state, attempt))
            for text, each in self._codes.items():
                if is_code(text.partition(":")[2], code_of(state, attempt), environment, stored):
                    found[text] = _hold(each, through=f"attempt {key}, which ran it")
        snapshot = self.on_snapshot(attempt.opened.snapshot)
        if snapshot is not None and ran_a_step(state, attempt):
            through = f"attempt {key}, which trained on it"
            found[snapshot.called] = replace(snapshot, through=through)
        return found

    def _set_by_checkpoint(self, checkpoint: CheckpointState) -> BySource:
        text = str(checkpoint_thing(checkpoint.ref))
        source = self._load().get(text)
        through = f"step {checkpoint.ref.step} of {checkpoint.ref.run_id}"
        return {text: _hold(source, through=through)} if source is not None else {}

    def _snapshot_hold(self, ref: SnapshotRef) -> Hold | None:
        state = (
            self._tracks.find_dataset(ref.dataset)
            if self._as_of is None
            else dataset_state.fold(self._then(dataset_track(ref.dataset)))
        )
        found = state.snapshot(ref.snapshot_id) if state is not None else None
        if found is None or found.quarantine is None:
            return None
        decision, name = found.quarantine, snapshot_name(ref)
        return Hold(
            what=key_of_snapshot(ref),
            called=name,
            act=HoldAct.QUARANTINE,
            why=decision.body.why,
            by=decision.body.by,
            at=decision.at,
            track=dataset_track(ref.dataset),
            seq=decision.seq,
            source=name,
        )


def snapshot_name(ref: SnapshotRef) -> str:
    """Return a snapshot as people name it."""
    return f"{ThingKind.SNAPSHOT}:{ref.dataset}@{short_id(ref)}"


def _hold(quarantine: SourceQuarantine, *, through: str) -> Hold:
    body = quarantine.body
    return Hold(
        what=body.source,
        called=body.called,
        act=HoldAct.QUARANTINE,
        why=body.why,
        by=body.by,
        at=quarantine.at,
        track=QUARANTINES_TRACK,
        seq=quarantine.seq,
        source=body.called,
        through=through,
    )


def _on_checkpoint(ref: CheckpointRef, sources: BySource) -> Hold:
    """Return the hold of the oldest source as that on a checkpoint which descends from it."""
    hold = min(sources.values(), key=age)
    return replace(hold, what=key_of_checkpoint(ref), called=called_checkpoint(ref))


class Pools:
    """Recent ends in each compute pool, by the ledger. Looks at each pool once: make one for a tick."""

    def __init__(self, ledger: Ledger, rule: StormRule, *, now: datetime) -> None:
        self._ledger = ledger
        self._rule = rule
        self._since = now - timedelta(seconds=rule.window_s)
        self._views: dict[str, PoolView] = {}

    def storm(self, pool: str, now: datetime) -> Hold | None:
        """Return the hold of a storm in the pool at `now`; None where there is none."""
        return find_storm(self.view(pool), self._rule, now)

    def view(self, pool: str) -> PoolView:
        """Return the ends of the pool inside the window, and how many runs it works for."""
        if pool not in self._views:
            self._views[pool] = PoolView(
                pool=pool, ends=self._ends(pool), run_count=self._run_count(pool)
            )
        return self._views[pool]

    def _ends(self, pool: str) -> tuple[PoolEnd, ...]:
        rows = self._ledger.query(
            "select run_id, attempt_id, ended_at from training_attempts where pool = :pool "
            "and ended_at > :since and reason_family <> :as_meant "
            f"and not ({IS_MOVED}) "  # a person emptied its node, or it made room
            "order by ended_at desc limit :ends_max",
            {
                "pool": pool,
                "since": format_time(self._since),
                "as_meant": ReasonFamily.AS_MEANT.value,
                "ends_max": ENDS_MAX,
            },
        )
        return tuple(
            PoolEnd(run_id=row["run_id"], attempt_id=row["attempt_id"], ended_at=row["ended_at"])
            for row in rows
        )

    def _run_count(self, pool: str) -> int:
        # From the runs that are not over, not from all attempts of the pool: hence no index on `pool`.
        rows = self._ledger.query(
            "select count(*) as n from training_runs r join training_attempts a "
            "on a.run_id = r.run_id and a.attempt_id = r.attempt_count "
            "where r.state = :running and coalesce(a.pool, '') = :pool",
            {"running": RunLifecycle.RUNNING.value, "pool": pool},
        )
        return int(rows[0]["n"])
