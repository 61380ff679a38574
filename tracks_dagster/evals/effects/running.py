"""Evals of a run: open those that are due, run one attempt at one, let one go.

Which are due is the rule of `evals.due`. Every attempt at an eval ends in a record, with
metrics or with `evaluator_error` and the evaluator's message; the first end counts. An evaluator that
has not run a line has no end: the attempt stays open and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from tracks_dagster.evals.due import next_attempt, next_eval
from tracks_dagster.evals.ports import EvalOutcome, EvalSpec, Evaluator
from tracks_dagster.holds.effects.holds import Holds
from tracks_dagster.holds.hold import Hold
from tracks_dagster.ledger.deciding import Answer, Append, Wait
from tracks_dagster.ledger.effects.deciding import HasTracks
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.effects.config_file import render_config
from tracks_dagster.retry.contracts import LIGHT, Governance, check_may
from tracks_dagster.retry.effects.due import runs_with_evals
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.scheduling.effects.leases import DevicePool, no_devices
from tracks_dagster.scheduling.leases import device_environment
from tracks_dagster.track import names
from tracks_dagster.track.addressed import write_addressed
from tracks_dagster.track.bodies import (
    Artifact,
    BroughtScorer,
    CodeVersion,
    EvalEnded,
    EvalOpened,
    EvalRequirement,
    EvalWaived,
    MemoryPeak,
)
from tracks_dagster.track.body_json import from_json
from tracks_dagster.track.errors import GangError, InvalidInput, UnknownRun
from tracks_dagster.track.json_text import SMALL_BYTES_MAX, parse_json
from tracks_dagster.track.names import TRAINER_FAMILY, eval_attempt_key
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import (
    SHOWN_CHARACTERS_MAX,
    Draft,
    Json,
    Kind,
    format_time,
    parse_time,
    sha256_hex,
)
from tracks_dagster.track.states import evals
from tracks_dagster.track.states.checkpoints import CheckpointRef, checkpoint_at
from tracks_dagster.track.states.run_state import (
    AttemptState,
    EvalState,
    RunState,
    trainer_of,
)
from tracks_dagster.track.track import code_key

METRICS_MAX = 100  # of one eval: they stand in a record of 16 KiB
MESSAGE_CHARACTERS_MAX = 2000


class HasPolicy(HasTracks, Protocol):
    """A world with the policy that says how often an eval is tried."""

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Evals:
    """The decider that opens every attempt at an eval that is due, each exactly once; none while the
    checkpoint or the eval's data descend from a source in quarantine."""

    name: str = names.RUN_EVALS

    def due(self, world: HasPolicy) -> list[str]:
        """Return the runs that owe evals, or have one under way."""
        return runs_with_evals(world.ledger)

    def decide(self, state: RunState, world: HasPolicy) -> Answer:
        """Return the next attempt at an eval, or what the evals wait for; None where none is owed."""
        attempts_max = world.policy.rule(TerminationReason.EVALUATOR_ERROR).count
        due = next_eval(state, decided_by=self.name, attempts_max=attempts_max)
        words = list(evals.what_evals_wait_for(state, attempts_max=attempts_max))
        if due is not None:
            hold = _hold_on(world.tracks, state, due)
            if hold is None:
                draft = world.tracks.draft(Kind.EVAL_OPENED, due)
                return Append(draft=draft, what="opened", why=due.decision, is_last=False)
            words.insert(0, f"{due.eval_id} is not opened: {hold.sentence}")
        return Wait(why="; ".join(words)) if words else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedEval:
    """An eval that a person asked for. is_new: it was opened for that; ended: None before its end."""

    opened: EvalOpened
    is_new: bool
    ended: EvalEnded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtCode:
    """Scorers of a project as it is now, for runs that were declared before. archive: of its code."""

    scorers: tuple[EvalRequirement, ...]
    archive: bytes = field(repr=False)
    code: CodeVersion


def ask_for_evals(
    tracks: Tracks,
    checkpoint: CheckpointRef,
    *,
    by: str,
    why: str,
    suite: str | None = None,
    seed: int | None = None,
    brought: BroughtCode | None = None,
) -> list[RequestedEval]:
    """Open an attempt at each eval of `checkpoint` that is neither done nor under way.

    suite: only this one of those that the run requires; seed: another one than it requires. brought:
    these scorers, in the place of the evals that the run declared; no promotion rests on one. The
    budget of the daemon's own tries bounds no person. A scorer is left out where what it scores has
    not completed, unless it is asked for by name. Raises UnknownRun, and InvalidInput where nothing
    can be evaluated so; nothing is written then.
    """
    state = tracks.run(checkpoint.run_id)
    known = state.declared.evals if brought is None else brought.scorers
    wanted = [each for each in known if suite in (None, each.suite)]
    if brought is not None and not wanted:
        listed = ", ".join(each.suite for each in known) or "none"
        raise InvalidInput(
            f"The project has no scorer {suite or ''}".rstrip()
            + f", an eval with of: SUITE; it has: "
            f"{listed}. --code brings scorers alone: what measures a checkpoint is of the run's code."
        )
    if not wanted:
        has = ", ".join(sorted({each.suite for each in state.declared.evals}))
        raise InvalidInput(
            f"{state.run_id} was declared with no eval {suite or ''}".rstrip()
            + (f"; it has: {has}." if has else ": its trainer has no suite of evals.")
        )
    seeds = [each.seed if seed is None else seed for each in wanted]
    chosen = [replace(each, seed=number) for each, number in zip(wanted, seeds, strict=True)]
    lacking = {each.suite: evals.lack_of_source(state, each, checkpoint) for each in chosen}
    for each in chosen:
        if lacking[each.suite] and (suite is not None or brought is not None):
            raise InvalidInput(
                f"{each.suite} of {checkpoint_at(checkpoint)} is not opened: it {lacking[each.suite]}."
            )
    scorers = {} if brought is None else _stored_scorers(tracks, state, brought)
    return [
        _ask_for_eval(tracks, checkpoint, each, by=by, why=why, brought=scorers.get(each.suite))
        for each in chosen
        if not lacking[each.suite]
    ]


def _stored_scorers(
    tracks: Tracks, state: RunState, brought: BroughtCode
) -> dict[str, BroughtScorer]:
    """Store the code that a person brought, and return its scorers by suite.

    One of the version that the run declared is left out: it runs as declared.
    """
    key = code_key(state.run_id, sha256_hex(brought.archive))
    write_addressed(tracks.store, key, brought.archive)
    declared = {(each.suite, each.suite_version, each.snapshot) for each in state.declared.evals}
    return {
        each.suite: BroughtScorer(
            program=each.program, code_key=key, code=brought.code, timeout_s=each.timeout_s
        )
        for each in brought.scorers
        if each.program is not None
        and (each.suite, each.suite_version, each.snapshot) not in declared
    }


def _ask_for_eval(
    tracks: Tracks,
    checkpoint: CheckpointRef,
    required: EvalRequirement,
    *,
    by: str,
    why: str,
    brought: BroughtScorer | None,
) -> RequestedEval:
    decision = f"{by} asked for it{f': {why}' if why else '.'}"

    def choose(state: RunState | None) -> Draft | None:
        if state is None or _find_existing(state, required, checkpoint) is not None:
            return None
        if checkpoint not in state.resumable:
            raise InvalidInput(f"{checkpoint_at(checkpoint)} cannot be read any more.")
        due = next_attempt(state, required, checkpoint, decision=decision, decided_by=by)
        due = replace(due, brought=brought)
        hold = _hold_on(tracks, state, due)
        if hold is not None:
            raise InvalidInput(f"{checkpoint_at(checkpoint)} is not evaluated: {hold.sentence}")
        return tracks.draft(Kind.EVAL_OPENED, due)

    record = tracks.decide_run(checkpoint.run_id, choose)
    if record is not None:
        return RequestedEval(opened=from_json(EvalOpened, record.body), is_new=True)
    found = _find_existing(tracks.run(checkpoint.run_id), required, checkpoint)
    if found is None:
        raise UnknownRun(f"There is no training run {checkpoint.run_id!r}.")
    return RequestedEval(opened=found.opened, is_new=False, ended=found.ended)


def _hold_on(tracks: Tracks, state: RunState, due: EvalOpened) -> Hold | None:
    """Return why an eval may not be opened: its checkpoint, its data or those of what it scores."""
    holds, scored = Holds(tracks), due.scored
    hold = holds.on_checkpoint(due.checkpoint, state, snapshot=due.snapshot)
    if hold is None and scored is not None:
        hold = holds.on_checkpoint(due.checkpoint, state, snapshot=scored.snapshot)
    return hold


def _find_existing(
    state: RunState, required: EvalRequirement, checkpoint: CheckpointRef
) -> EvalState | None:
    """Return the attempt at this eval that is under way, or that completed; None where neither is."""
    tries = evals.attempts_at(state, required, checkpoint)
    return next((e for e in tries if e.ended is None or evals.is_completed(e)), None)


def run_eval(
    tracks: Tracks,
    evaluator: Evaluator,
    run_id: str,
    eval_id: str,
    number: int,
    *,
    dagster_run_id: str | None = None,
    devices: DevicePool | None = None,
) -> EvalEnded:
    """Run one opened attempt at an eval to its end, and return the end that counts.

    devices: of this machine, of which it needs a lease; None where they are not ours to give.

    Idempotent: one that has ended is returned as it is, and a result that a lost process left in
    the store is used. What the evaluator does wrong is an end too, `evaluator_error`. Raises
    UnknownRun when no such attempt was opened, StoreError when the store cannot be used, GangError when
    no evaluator can be started, and NoDevices when it has no devices: the attempt stays open.
    """
    find_eval(tracks.run(run_id), eval_id, number)
    with evaluator.alone(evals.result_key(run_id, eval_id, number)) as is_alone:
        if not is_alone:
            raise GangError(f"Another Dagster run of this machine is at {run_id}/{eval_id} now.")
        return _run_alone(tracks, evaluator, run_id, eval_id, number, dagster_run_id, devices)


def _run_alone(
    tracks: Tracks,
    evaluator: Evaluator,
    run_id: str,
    eval_id: str,
    number: int,
    dagster_run_id: str | None,
    devices: DevicePool | None,
) -> EvalEnded:
    state = tracks.run(run_id)
    opened = find_eval(state, eval_id, number)
    if opened.ended is not None:
        return opened.ended
    spec = _spec(tracks, state, opened.opened)
    ended = _stored_end(tracks, opened.opened, spec, None, dagster_run_id)
    if ended is None:
        claimed = None
        if devices is not None:
            key = eval_attempt_key(run_id, eval_id, number)
            lease = devices.confirm(key, dagster_run_id or "")
            if lease is None:
                raise no_devices(key)
            claimed = devices.devices_of(lease)
            spec = replace(spec, environment=devices.environment(lease))
        ended = _evaluated_end(tracks, evaluator, opened.opened, spec, dagster_run_id)
        ended = replace(ended, held=claimed)
    return end_eval(tracks, run_id, ended)


def stored_end(tracks: Tracks, state: RunState, opened: EvalOpened) -> EvalEnded | None:
    """Return the end by the result that a lost evaluator left; None where it left none."""
    return _stored_end(tracks, opened, _spec(tracks, state, opened), None, None)


def has_run(tracks: Tracks, run_id: str, opened: EvalOpened) -> bool:
    """Whether the evaluator of this attempt ever ran a line, by its own marker."""
    key = evals.result_key(run_id, opened.eval_id, opened.number)
    return tracks.store.get(evals.started_key(key), 0) is not None


def end_eval(tracks: Tracks, run_id: str, ended: EvalEnded) -> EvalEnded:
    """Record the end of an attempt at an eval; return the one that counts, the first."""
    tracks.note_run(run_id, tracks.draft(Kind.EVAL_ENDED, ended))
    found = find_eval(tracks.run(run_id), ended.eval_id, ended.number)
    return found.ended or ended


def find_eval(state: RunState, eval_id: str, number: int | None = None) -> EvalState:
    """Return an attempt at an eval, the newest without a number; raises UnknownRun."""
    found = [
        e for e in state.evals if e.opened.eval_id == eval_id and number in (None, e.opened.number)
    ]
    if not found:
        known = sorted({e.opened.eval_id for e in state.evals})
        raise UnknownRun(
            f"{state.run_id} has no attempt {number or ''} at an eval {eval_id!r}; it has: "
            f"{', '.join(known) or 'none'}. The sensor run_evals opens them."
        )
    return found[-1]


def waive(
    tracks: Tracks,
    run_id: str,
    suite: str,
    *,
    by: str,
    why: str,
    governance: Governance = LIGHT.governance,
) -> EvalWaived:
    """Let a required eval go, in a person's words. A suite that was waived before stays so.

    Raises UnknownRun, and InvalidInput when the run requires no such suite, a word is missing, or `by`
    may not by the policy's `governance`.
    """
    if not by.strip() or not why.strip():
        raise InvalidInput("To waive an eval, say who waives it and why.")
    declared = tracks.run(run_id).declared
    doing = f"{by.strip()} may not waive {suite} of {run_id}"
    check_may(governance, "may_waive", doing, by.strip(), declared.owner)
    required = sorted({e.suite for e in declared.evals})
    if suite not in required:
        raise InvalidInput(
            f"{run_id} requires no eval {suite!r}; it requires: {', '.join(required) or 'none'}."
        )
    body = EvalWaived(suite=suite, by=by.strip(), why=why.strip())

    def choose(state: RunState | None) -> Draft | None:
        if state is None or evals.is_waived(state, suite):
            return None
        return tracks.draft(Kind.EVAL_WAIVED, body)

    record = tracks.decide_run(run_id, choose)
    if record is not None:
        return from_json(EvalWaived, record.body)
    return next(w.body for w in tracks.run(run_id).waivers if w.body.suite == suite)


def failed_end(
    opened: EvalOpened,
    message: str,
    *,
    started_at: str,
    finished_at: str,
    dagster_run_id: str | None,
) -> EvalEnded:
    """Return the end of an attempt that brought no result."""
    return EvalEnded(
        eval_id=opened.eval_id,
        number=opened.number,
        reason=TerminationReason.EVALUATOR_ERROR.value,
        metrics={},
        sample_count=0,
        environment={},
        environment_sha256="",
        started_at=started_at,
        finished_at=finished_at,
        device_seconds=_seconds(started_at, finished_at),
        message=message[-MESSAGE_CHARACTERS_MAX:],
        dagster_run_id=dagster_run_id,
    )


def _spec(tracks: Tracks, state: RunState, opened: EvalOpened) -> EvalSpec:
    """Return what to evaluate, with the config of the attempt that wrote the checkpoint."""
    attempt = state.attempt(opened.checkpoint.attempt_id)
    config = attempt.opened.config if attempt is not None else state.declared.config
    declared = next((each for each in state.declared.evals if each.suite == opened.suite), None)
    timed: EvalRequirement | BroughtScorer | None = opened.brought or declared
    program = None if timed is None else timed.program
    name = None if program is None else program.config_name
    return EvalSpec(
        store_url=tracks.store.url,
        run_id=state.run_id,
        checkpoint=opened.checkpoint,
        config=config,
        family=state.declared.model_family,
        snapshot=opened.snapshot,
        suite=opened.suite,
        suite_version=opened.suite_version,
        seed=opened.seed,
        result_key=evals.result_key(state.run_id, opened.eval_id, opened.number),
        program=program,
        code_key=_code_of(state, attempt, opened),
        files={} if name is None else {name: render_config(config, name)},
        timeout_s=None if timed is None else timed.timeout_s,
        environment={}
        if evals.needs_device(state, opened)
        else device_environment((), hides_gpus=True),
        scored=opened.scored,
    )


def _code_of(state: RunState, attempt: AttemptState | None, opened: EvalOpened) -> str | None:
    """Return the key of the code that wrote the checkpoint, or of what a person brought; None of a
    family of an older version."""
    if opened.brought is not None:
        return opened.brought.code_key
    trainer = state.declared.trainer if attempt is None else trainer_of(state, attempt)
    return None if trainer == TRAINER_FAMILY else trainer


def _evaluated_end(
    tracks: Tracks,
    evaluator: Evaluator,
    opened: EvalOpened,
    spec: EvalSpec,
    dagster_run_id: str | None,
) -> EvalEnded:
    outcome = evaluator.run(spec)
    # Its exit code is lost where the warm parent that forked it ended first: a whole result counts.
    if outcome.succeeded or outcome.exit_code is None:
        ended = _stored_end(tracks, opened, spec, outcome, dagster_run_id)
        if ended is not None:
            return ended
    is_known = outcome.exit_code not in (0, None)
    how = f"with exit code {outcome.exit_code}" if is_known else "without a result"
    return failed_end(
        opened,
        outcome.message.strip() or f"The evaluator ended {how} and without a word.",
        started_at=outcome.started_at,
        finished_at=outcome.finished_at,
        dagster_run_id=dagster_run_id,
    )


def _stored_end(
    tracks: Tracks,
    opened: EvalOpened,
    spec: EvalSpec,
    outcome: EvalOutcome | None,
    dagster_run_id: str | None,
) -> EvalEnded | None:
    """Return the end by the stored result; None when there is no result."""
    data = tracks.store.get(spec.result_key, SMALL_BYTES_MAX)
    if data is None:
        return None
    try:
        return _completed(opened, parse_json(data), dagster_run_id)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        now = format_time(tracks.now())
        return failed_end(
            opened,
            f"The result {spec.result_key} cannot be used: {error}",
            started_at=outcome.started_at if outcome else now,
            finished_at=outcome.finished_at if outcome else now,
            dagster_run_id=dagster_run_id,
        )


def _completed(
    opened: EvalOpened, result: Mapping[str, Json], dagster_run_id: str | None
) -> EvalEnded:
    """Raises ValueError, KeyError or TypeError for an incomplete result."""
    memory = result.get("memory")
    metrics = {str(name): float(value) for name, value in result["metrics"].items()}
    broken = [name for name, value in metrics.items() if not math.isfinite(value)]
    if broken:
        raise ValueError(f"{', '.join(broken)} is not finite")
    if not 1 <= len(metrics) <= METRICS_MAX:
        raise ValueError(f"it holds {len(metrics)} metrics, not 1 to {METRICS_MAX}")
    count = result["sample_count"]
    if count is not None and int(count) < 1:
        raise ValueError("it was measured on no sample")
    artifacts = tuple(from_json(Artifact, each) for each in result.get("artifacts", ()))
    outside = [each.name for each in artifacts if not evals.is_artifact_name(each.name)]
    if outside:
        raise ValueError(
            f"it names a file {outside[0][:SHOWN_CHARACTERS_MAX]!r}, which is not an artifact's name"
        )
    if not result["environment_sha256"]:
        raise ValueError("it does not say in which environment it was measured")
    return EvalEnded(
        eval_id=opened.eval_id,
        number=opened.number,
        reason=TerminationReason.COMPLETED.value,
        metrics=metrics,
        sample_count=None if count is None else int(count),
        environment=dict(result["environment"]),
        environment_sha256=result["environment_sha256"],
        started_at=result["started_at"],
        finished_at=result["finished_at"],
        device_seconds=_seconds(result["started_at"], result["finished_at"]),
        message=str(result.get("message", "")),
        dagster_run_id=dagster_run_id,
        seconds={str(name): float(value) for name, value in result.get("seconds", {}).items()},
        artifacts=artifacts,
        memory=None if memory is None else from_json(MemoryPeak, memory),
    )


def _seconds(started_at: str, finished_at: str) -> float:
    """Return device seconds between two text times: an eval runs on one device."""
    return max(0.0, (parse_time(finished_at) - parse_time(started_at)).total_seconds())
