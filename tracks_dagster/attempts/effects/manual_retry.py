"""Open an attempt in a person's name, outside of the automatic budget: recorded, and never a debit.

What the person changes is checked as when a run is declared; what is not named stays as it was for the
attempt before. Which checkpoints are kept belongs to the run and cannot be changed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tracks_dagster.attempts.effects.families import with_stored_code
from tracks_dagster.attempts.effects.retry import quarantine_all
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.ports import SCRIPT, GangSpec, RankCommand
from tracks_dagster.attempts.recorded import recorded_project, without_accumulation
from tracks_dagster.attempts.run_config import (
    COMPUTE_FIELDS,
    CheckGang,
    check_cadence,
    check_compute,
    check_ranks,
    refuse_secrets,
)
from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.effects.starts import refuse_code, start_or_refuse
from tracks_dagster.holds.hold import CleanStart, loss_of_source, stop_of
from tracks_dagster.ledger.deciding import Answer, Append, First
from tracks_dagster.ledger.effects.deciding import settle
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.project import (
    Project,
    known_values,
    program_of_project,
    resolve_config,
)
from tracks_dagster.retry.avoidance import own_compute
from tracks_dagster.retry.caps import cost_of, max_cost_of
from tracks_dagster.retry.contracts import check_raised_cap
from tracks_dagster.retry.decision import MORE_TIME
from tracks_dagster.retry.effects.node_health import avoid_now
from tracks_dagster.retry.rollback import CheckpointQuarantine, from_onset_on
from tracks_dagster.retry.stage_time import over_stage_time
from tracks_dagster.track import names
from tracks_dagster.track.addressed import damage_at, write_addressed
from tracks_dagster.track.bodies import (
    MANUAL,
    AttemptOpened,
    CheckpointCadence,
    CodeVersion,
    ComputeRequest,
    ConfigChange,
    Program,
    SnapshotRef,
)
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import Contended, InvalidInput
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Json, Kind, Record, sha256_hex
from tracks_dagster.track.roles import STEPS, key_of
from tracks_dagster.track.states.run_state import AttemptState, RunState, program_of, trainer_of
from tracks_dagster.track.track import code_diff_key, code_key

ENDED_WITH_ALL_STEPS = frozenset({TerminationReason.COMPLETED, TerminationReason.EARLY_STOPPED})
SAME_AGAIN = frozenset({TerminationReason.CODE_ERROR, TerminationReason.CONFIG_ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptChanges:
    """What is to be different in the next attempt.

    config: keys of the config. compute: fields of a `ComputeRequest`. every_steps, every_s: of the
    cadence. snapshot_id: of the same dataset, its beginning suffices. project, archive, code,
    code_diff: other code, as in a `FoundCode`.
    """

    config: Mapping[str, Json] = field(default_factory=dict)
    compute: Mapping[str, Any] = field(default_factory=dict)
    every_steps: int | None = None
    every_s: float | None = None
    snapshot_id: str | None = None
    project: Project | None = None
    archive: bytes | None = field(default=None, repr=False)
    code: CodeVersion | None = None
    code_diff: bytes | None = field(default=None, repr=False)


NO_CHANGES = AttemptChanges()


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualRetry:
    """Decides the next attempt in a person's name, with `changes`; no budget is spent.

    What was saved after the numbers went wrong (the policy names the reasons) is quarantined
    first: no attempt resumes from it, no matter who opens it. The node that the newest attempt ended on
    is struck, where no sensor has come to it.

    allows_environment_change: it may resume with other libraries than those that wrote its
    checkpoint. is_forced: also where nothing was changed and the same attempt would end the same.
    check_gang: refuses what the launcher could not start; asked where what it is asked for changes.
    max_cost: what the run may cost from now on, all of its attempts together; None: as before.
    """

    name: str  # of the person
    why: str
    changes: AttemptChanges = NO_CHANGES
    allows_environment_change: bool = False
    is_forced: bool = False
    check_gang: CheckGang | None = None
    max_cost: float | None = None

    def decide(self, state: RunState, world: World) -> Answer:
        """Return the next attempt, or the work that comes before it; raises InvalidInput."""
        tracks, nodes, changes = world.tracks, world.nodes, self.changes
        last = _retriable(state, changes.config)
        _check_cap(state, world, self.max_cost, by=self.name)
        if nodes is not None and nodes.is_due(state):
            return First(do=partial(nodes.look, state, by=self.name))
        plan = plan_attempt(tracks, state, last, changes)
        start = _start(tracks, state, plan)
        changed = differences(state, last, plan, why=f"{self.name}: {self.why}")
        if not (changed or self.allows_environment_change or self.is_forced):
            _refuse_the_same_again(state, last)
        if self.check_gang is not None and changes.compute:
            self.check_gang(_gang(world, state, last, plan))
        if tainted := from_onset_on(state, last, world.policy):
            return First(do=partial(_quarantine, tracks, state, tainted, self.name))
        for key, data in _objects(state, changes, plan):
            if damage_at(tracks.store, key) is not None:
                return First(
                    do=partial(write_addressed, tracks.store, key, data)
                )  # before its user
        opened = AttemptOpened(
            cause=MANUAL,
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
            program=plan.program,
            code=plan.code,
            max_cost=self.max_cost,
        )
        opened = with_stored_code(world, state, avoid_now(tracks, opened))
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


def _objects(
    state: RunState, changes: AttemptChanges, plan: AttemptPlan
) -> Iterator[tuple[str, bytes]]:
    """Yield what is stored of other code, by key."""
    if changes.archive is not None and plan.trainer is not None:
        yield plan.trainer, changes.archive
    if changes.code_diff is not None:
        yield code_diff_key(state.run_id, sha256_hex(changes.code_diff)), changes.code_diff


def _start(tracks: Tracks, state: RunState, plan: AttemptPlan) -> CleanStart:
    """Return where the attempt begins.

    Raises InvalidInput when what the run branched from is lost, its snapshot is in quarantine, or
    nothing is left that does not descend from a source in quarantine.
    """
    doing = f"Training run {state.run_id} cannot be retried"
    holds = Holds(tracks).on_run(
        state, tracks.now(), snapshot=plan.snapshot, code=plan.code, trainer=plan.trainer
    )
    lost = loss_of_source(state, holds)
    if lost is not None and not state.resumable:
        raise InvalidInput(f"{doing}: {lost.sentence}")
    return start_or_refuse(state, plan.snapshot, holds, doing=doing)


def _retriable(state: RunState, changes: Mapping[str, Json]) -> AttemptState:
    """Return the newest attempt of a run that a person may retry; raises InvalidInput."""
    if state.finished is not None:
        raise InvalidInput(
            f"Training run {state.run_id} is finished ({state.finished.stop_cause}) and cannot be "
            f"retried; {_continuing(state, changes)}"
        )
    if stop_of(state) is not None:
        raise InvalidInput(
            f"Training run {state.run_id} was stopped and is about to be finished; "
            f"{_continuing(state, changes)}"
        )
    last = state.last_attempt
    if last is None or last.is_open:
        number = 1 if last is None else last.attempt_id
        raise InvalidInput(
            f"Attempt {number} of training run {state.run_id} has not ended; "
            f"`tracks drain {state.run_id}` ends it, then it can be retried."
        )
    steps = key_of(last.opened.config, state.declared.roles, STEPS) or STEPS
    if last.reason in ENDED_WITH_ALL_STEPS and steps not in changes:
        raise InvalidInput(
            f"Training run {state.run_id} has all its steps (attempt {last.attempt_id} ended as "
            f"{last.reason}) and waits for its evals; `--set {steps}=N` lets it train on, "
            f"`tracks waive {state.run_id} SUITE` lets an eval go."
        )
    return last


def _continuing(state: RunState, changes: Mapping[str, Json]) -> str:
    """Return the command that trains on in a new run, with the changes that were asked for."""
    newest = state.resumes_from
    if newest is None:
        return "declare a new one with `tracks run`: it has no checkpoint to train on from."
    config = state.declared.config if (last := state.last_attempt) is None else last.opened.config
    steps = key_of(config, state.declared.roles, STEPS) or STEPS
    given = {k: v if isinstance(v, str) else json.dumps(v) for k, v in changes.items()}
    if steps not in changes and newest.step == config.get(steps):
        given[steps] = "N"
    pairs = " ".join(f"--set {shlex.quote(f'{key}={text}')}" for key, text in given.items())
    command = f"tracks run --from {newest.run_id}@{newest.step} {pairs}".rstrip()
    return f"a new run trains on from its newest checkpoint: `{command}`."


def _check_cap(state: RunState, world: World, max_cost: float | None, *, by: str) -> None:
    """Raise InvalidInput where the run has spent what it may, or `by` may not give it more."""
    if (words := over_stage_time(state, world.tracks.now())) is not None:
        raise InvalidInput(f"Training run {state.run_id} cannot be retried: {words}. {MORE_TIME}")
    before = max_cost_of(state)
    if max_cost is not None and before is not None and max_cost > before:
        check_raised_cap(world.policy.contracts, max_cost, by=by, owner=state.declared.owner)
    cap = before if max_cost is None else max_cost
    if cap is None or world.prices is None:
        return
    cost = cost_of(state, world.prices, world.tracks.now())
    if cost.amount >= cap:
        raise InvalidInput(
            f"Training run {state.run_id} has cost {cost.amount:.2f} {cost.currency} and may cost "
            f"{cap:.2f}: the next attempt would be ended at once. Give it more, --max-cost AMOUNT, for "
            "all of its attempts together."
        )


def _refuse_the_same_again(state: RunState, last: AttemptState) -> None:
    """Raise InvalidInput where nothing changed since `last`, which ended before its first step for a
    reason that lies in the code or the config alone."""
    if last.reason not in SAME_AGAIN or last.ended is None or last.ended.last_step is not None:
        return
    code = trainer_of(state, last)
    if code == names.TRAINER_FAMILY:
        return  # the next attempt has other code
    raise InvalidInput(
        f"Attempt {last.attempt_id} of {state.run_id} ended as {last.reason} before its first step, "
        f"and neither its code ({code}) nor anything else has changed: the next attempt would end the "
        "same. Change something (--set KEY=VALUE), or give the corrected code: --code from the "
        "project's folder, or --trainer FILE.py; --force opens it anyway."
    )


def _gang(world: World, state: RunState, last: AttemptState, plan: AttemptPlan) -> GangSpec:
    """Return what the launcher would be asked to start, to see whether it can."""
    return GangSpec(
        run_id=state.run_id,
        attempt_id=last.attempt_id + 1,
        opened_seq=state.head.seq + 1,
        compute=plan.compute,
        store_url=world.tracks.store.url,
        command=RankCommand(words=(SCRIPT,)),  # no launcher refuses one
        workload_class=world.policy.scheduling.class_name(state.declared.workload_class),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlan:
    """What the next attempt runs with. cadence, trainer, program, code: as in `AttemptOpened`."""

    config: Mapping[str, Json]
    compute: ComputeRequest
    cadence: CheckpointCadence | None
    snapshot: SnapshotRef | None
    trainer: str | None
    program: Program | None
    code: CodeVersion | None


def plan_attempt(
    tracks: Tracks, state: RunState, last: AttemptState, changes: AttemptChanges
) -> AttemptPlan:
    """Return what follows on `last` with `changes`; raises InvalidInput for one that cannot be made."""
    started = {} if changes.project is None else {"entry": " ".join(changes.project.entry)}
    compute = _compute(last, changes)
    asked = {f"slurm {name}": value for name, value in compute.slurm.items()}
    refuse_secrets({**started, **asked, **changes.config}, tracks.clean)
    return AttemptPlan(
        config=_config(state, last, changes, ranks=compute.ranks),
        compute=compute,
        cadence=_cadence(state, last, changes),
        snapshot=_snapshot(tracks, last, changes),
        trainer=_trainer(state, last, changes),
        program=last.opened.program
        if changes.project is None
        else program_of_project(changes.project),
        code=_code(tracks, state, last, changes),
    )


def differences(
    state: RunState, last: AttemptState, plan: AttemptPlan, *, why: str
) -> tuple[ConfigChange, ...]:
    """Return a change for each thing in which `plan` differs from what `last` ran with."""
    before, after = _facts(state, own_compute(last.opened), last.opened), _facts(state, None, plan)
    return tuple(
        ConfigChange(key=key, before=before.get(key), after=value, why=why)
        for key, value in after.items()
        if before.get(key) != value
    )


def _facts(state: RunState, compute: ComputeRequest | None, of: Any) -> dict[str, Json]:
    """Return everything of an `AttemptOpened` or an `AttemptPlan` that a person may change, by key."""
    asked = to_json(compute or of.compute)
    cadence = of.cadence or state.declared.cadence
    return {
        **of.config,
        **{f"compute.{name}": asked[name] for name in COMPUTE_FIELDS},
        "cadence.every_steps": cadence.every_steps,
        "cadence.every_s": cadence.every_s,
        "snapshot": None if of.snapshot is None else of.snapshot.snapshot_id,
        "trainer": of.trainer or state.declared.trainer,
        **_started(of.program or state.declared.program),
    }


def _started(program: Program | None) -> dict[str, Json]:
    if program is None:
        return {}
    return {"entry": " ".join(program.entry), "python": program.python}


def _code(
    tracks: Tracks, state: RunState, last: AttemptState, changes: AttemptChanges
) -> CodeVersion | None:
    code, diff = changes.code, changes.code_diff
    if code is None:
        return last.opened.code
    stored = None if changes.archive is None else sha256_hex(changes.archive)
    refuse_code(tracks, code, stored, doing=f"Training run {state.run_id} cannot be retried")
    return code if diff is None else replace(code, diff_sha256=sha256_hex(diff))


def _compute(last: AttemptState, changes: AttemptChanges) -> ComputeRequest:
    before = own_compute(last.opened)
    launcher = changes.compute.get("launcher", before.launcher)
    if launcher != before.launcher:  # what was asked of the other place means nothing there
        before = ComputeRequest(launcher=launcher, ranks=before.ranks)
    slurm = {**before.slurm, **changes.compute.get("slurm", {})}  # name by name, as `merge` does
    compute = replace(before, **{**changes.compute, "slurm": slurm})
    if changes.compute:
        check_ranks(compute.ranks)
        check_compute(compute)
    return compute


def _config(
    state: RunState, last: AttemptState, changes: AttemptChanges, *, ranks: int
) -> dict[str, Json]:
    """Return the config with the changes, and the accumulation that follows from them."""
    before, given = dict(last.opened.config), changes.config
    if not given and ranks == last.opened.compute.ranks and changes.project is None:
        return before
    project = changes.project or recorded_project(state, last)
    kept = without_accumulation(before, state.declared.roles)
    if changes.project is not None:  # keys that the new code has no more are left out
        kept = known_values(project, kept)
    return resolve_config(project, {**kept, **given}, ranks=ranks)


def _cadence(
    state: RunState, last: AttemptState, changes: AttemptChanges
) -> CheckpointCadence | None:
    if changes.every_steps is None and changes.every_s is None:
        return last.opened.cadence
    before = last.opened.cadence or state.declared.cadence
    cadence = CheckpointCadence(
        every_steps=before.every_steps if changes.every_steps is None else changes.every_steps,
        every_s=before.every_s if changes.every_s is None else changes.every_s,
    )
    saves_itself = _saves_itself(state, last, changes)
    check_cadence(cadence, may_be_off=True, saves_itself=saves_itself)  # one of them is given
    return cadence


def _saves_itself(state: RunState, last: AttemptState, changes: AttemptChanges) -> bool:
    if changes.project is not None:
        return changes.project.by_files
    program = program_of(state, last)
    return program is not None and program.by_files


def _snapshot(tracks: Tracks, last: AttemptState, changes: AttemptChanges) -> SnapshotRef | None:
    if changes.snapshot_id is None:
        return last.opened.snapshot
    if last.opened.snapshot is None:
        raise InvalidInput(
            "The run was declared without a dataset, so --snapshot names nothing of it; declare a run "
            "of a project that names one (dataset: NAME in tracks.yaml)."
        )
    return find_snapshot(tracks, last.opened.snapshot.dataset, changes.snapshot_id)


def _trainer(state: RunState, last: AttemptState, changes: AttemptChanges) -> str | None:
    if changes.archive is None:
        return last.opened.trainer
    return code_key(state.run_id, sha256_hex(changes.archive))
