"""Share out this machine's devices among attempts and evals that are to start: what both sensors do.

Both sensors see the same queue, whichever ticks first: an eval does not wait for a tick of the other,
and a large gang's place in the queue holds against evals too. Who comes first is for the rules of the
queue (`scheduling.rules`) to say; here is only what they are asked with.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from tracks_dagster.attempts.effects.on_demand import ask_to_save
from tracks_dagster.attempts.effects.watch import survey
from tracks_dagster.attempts.effects.world import World
from tracks_dagster.attempts.launch import (
    NEVER_STARTS,
    OpenAttempt,
    PendingLaunch,
    may_be_asked,
    wants_devices,
)
from tracks_dagster.attempts.pace import STEPS_MAX, Pace, measure
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.effects.due import runs_with_open_evals
from tracks_dagster.scheduling.effects.leases import DevicePool, Shared
from tracks_dagster.scheduling.effects.recurrence import PastTimes
from tracks_dagster.scheduling.effects.usage import read_usage
from tracks_dagster.scheduling.leases import Holder
from tracks_dagster.scheduling.model import LATER, NEVER, Demand, Move, Running, Waits
from tracks_dagster.scheduling.policy import EVAL
from tracks_dagster.scheduling.recurrence import expected_s, left_s
from tracks_dagster.scheduling.rules import PlanContext, plan
from tracks_dagster.stores.journals import StepLine, read_tail
from tracks_dagster.track.bodies import (
    MOVE,
    SCHEDULER,
    EvalEnded,
    HeldDevices,
    MemoryPeak,
    StopRequested,
)
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.names import (
    LOCAL,
    attempt_key,
    eval_attempt_key,
    parse_attempt_key,
    parse_eval_attempt_key,
)
from tracks_dagster.track.records import Draft, Kind, parse_time
from tracks_dagster.track.states.evals import is_completed, needs_device
from tracks_dagster.track.states.run_state import (
    AttemptState,
    EvalState,
    RunState,
    program_of,
    steps_of,
)
from tracks_dagster.track.unforeseen import problem_of

_log = logging.getLogger(__name__)

# What is kept of a device beside the most that was measured: fragments differ from run to run, and
# CUDA's own context, which no allocator counts, takes 0.3 to 0.6 GiB.
MEMORY_FACTOR = 1.1
CONTEXT_BYTES = 2**30
ATTEMPTS_READ_MAX = 5  # newest ones whose journals are read for a pace
SAVE_S_MAX = 60.0  # from a request for a checkpoint to its commit; then others are asked instead
SAVE_AGAIN_S = 600.0  # until one that did not answer is asked again


def share_devices(world: World, attempts: Sequence[OpenAttempt], *, by: str) -> Shared | None:
    """Lease devices to what is to start on this machine, and ask what has to make room to move.

    attempts: every open one. None where no devices are shared out here. Where the pool's track cannot
    be read or written nothing new is started, and that is what all wait for.
    """
    pool = world.devices
    if pool is None:
        return None
    now, past = world.tracks.now(), PastTimes(world.ledger)
    waiting, unknown = _demands(world, past, attempts, now)
    if not waiting:
        return _without(unknown, Shared())
    policy = world.policy.scheduling
    try:
        usage = read_usage(world.ledger, policy, now=now, prices=world.prices)
        context = PlanContext(policy=policy, now_s=now.timestamp(), usage=usage)
        decide = partial(plan, context=context)
        shared = pool.share(waiting, decide, partial(describe_running, pool, past, now), by=by)
    except TracksError as error:
        why = f"nobody can tell who has the devices of this machine: {error}"
        nobody = Shared(
            wanted=frozenset(each.key for each in waiting),
            waits=tuple(Waits(key=each.key, starts=LATER, why=why) for each in waiting),
            problems=(why,),
        )
        return _without(unknown, nobody)
    asked = [
        _ask_to_save(world, pool, move) if move.saves_first else _ask_to_move(pool, move)
        for move in shared.moves
    ]
    return _without(unknown, replace(shared, problems=(*shared.problems, *filter(None, asked))))


def _demands(
    world: World, past: PastTimes, attempts: Sequence[OpenAttempt], now: datetime
) -> tuple[list[Demand], dict[str, str]]:
    """Return what waits for devices; and by key what of, or for, nobody can tell it, and why."""
    waiting: list[Demand] = []
    unknown: dict[str, str] = {}
    for each in attempts:
        try:
            if wants_devices(each, now):
                waiting.append(_demand(world, past, each, now))
        except Exception as error:  # noqa: BLE001 - of that run alone
            unknown[each.key] = problem_of(error)
    for run_id in runs_with_open_evals(world.ledger):
        try:
            waiting += _eval_demands(world, run_id)
        except Exception as error:  # noqa: BLE001 - of that run alone
            unknown[run_id] = problem_of(error)
    return waiting, unknown


def _without(unknown: Mapping[str, str], shared: Shared) -> Shared:
    """Return what was shared out; what nobody knows what it needs does not start."""
    return replace(
        shared,
        wanted=shared.wanted | unknown.keys(),
        problems=(*shared.problems, *(f"{key}: {why}" for key, why in unknown.items())),
    )


def lease_for(world: World, key: str, *, by: str, dagster_run_id: str) -> None:
    """Share out devices for what a person started by hand in Dagster, unless `key` has a lease.

    It gets no place in the queue by that: it has a lease afterwards only if it is its turn.
    """
    if world.devices is None or world.devices.find(key) is not None:
        return
    attempts = [
        replace(each, runs=[r for r in each.runs if r.dagster_run_id != dagster_run_id])
        for each in survey(world).done
    ]
    share_devices(world, attempts, by=by)


def devices_since(
    pool: DevicePool | None, key: str, tag: str | None, claimed: HeldDevices | None = None
) -> DevicePool | None:
    """Return the pool, read from the lease of `key` on where its seq is known.

    tag: of the Dagster run that starts it, None of one that a person asked for; claimed: as the claim
    before it has them.
    """
    seq = int(tag) if tag is not None and tag.isdecimal() else None
    if seq is None and claimed is not None:
        seq = claimed.seq
    return pool if pool is None or seq is None else pool.since(seq, key)


def waiting_launches(shared: Shared | None) -> list[PendingLaunch]:
    """Return what waits for devices, as the daemon leaves it for people."""
    waits = shared.waits if shared is not None else ()
    return [
        PendingLaunch(
            key=each.key,
            failed_count=0,
            why=f"{NEVER_STARTS}: {each.why}" if each.starts == NEVER else each.why,
            waits=True,
        )
        for each in waits
    ]


def _demand(world: World, past: PastTimes, each: OpenAttempt, now: datetime) -> Demand:
    state, attempt = world.tracks.run(each.run_id), each.attempt
    work_s = _left_s(world.tracks, state, None, now)
    return Demand(
        key=each.key,
        count=attempt.opened.compute.ranks,
        memory_bytes=_need(_memory_before(state, attempt)),
        workload_class=state.declared.workload_class or world.policy.scheduling.default_class,
        team=state.declared.team,
        owner=state.declared.owner,
        since_s=attempt.opened_at.timestamp(),
        work_s=past.expected_s(state.declared) if work_s is None else work_s,
        is_interrupted=attempt.attempt_id > 1,
    )


def _memory_before(state: RunState, attempt: AttemptState) -> MemoryPeak | None:
    """Return what an earlier attempt of the run took with the same config and ranks, if it lived long
    enough to save: before that an optimizer may not have all of its state."""
    saved = {each.ref.attempt_id for each in state.checkpoints}
    for each in reversed(state.attempts):
        same = (each.opened.config, each.opened.compute.ranks)
        is_like = same == (attempt.opened.config, attempt.opened.compute.ranks)
        if each.ended is not None and is_like and each.attempt_id in saved:
            return each.ended.memory
    return None


def _need(memory: MemoryPeak | None) -> int | None:
    """Return what to keep of a device for what took so much before; None where nobody measured it."""
    if memory is None or memory.reserved_bytes is None:
        return None
    return int(memory.reserved_bytes * MEMORY_FACTOR) + CONTEXT_BYTES


def _eval_demands(world: World, run_id: str) -> list[Demand]:
    """Return the run's evals that no Dagster run measures yet and that need a device; none of a run
    that does not train on this machine."""
    state = world.tracks.find_run(run_id)
    if state is None or state.declared.compute.launcher != LOCAL:
        return []
    demands = []
    for each in state.evals:
        if each.ended is not None or not needs_device(state, each.opened):
            continue
        key = eval_attempt_key(run_id, each.opened.eval_id, each.opened.number)
        if _is_to_start(world, key):
            demands.append(_eval_demand(state, each, key))
    return demands


def _is_to_start(world: World, key: str) -> bool:
    runs = world.orchestrator.runs_of_eval(key)
    died = [run for run in runs if not run.had_no_devices]
    return all(run.is_finished for run in runs) and may_be_asked(died, world.tracks.now())


def _eval_demand(state: RunState, each: EvalState, key: str) -> Demand:
    needs = [_need(ended.memory) for ended in _completed_evals(state, each.opened.suite)]
    known = [need for need in needs if need is not None]
    return Demand(
        key=key,
        count=1,
        memory_bytes=max(known, default=None),
        workload_class=EVAL,
        team=state.declared.team,
        owner=state.declared.owner,
        since_s=each.opened_at.timestamp(),
        work_s=_eval_s(state, each.opened.suite),
        near=(attempt_key(state.run_id, len(state.attempts)),),
    )


def _completed_evals(state: RunState, suite: str) -> list[EvalEnded]:
    """Return the ends with a result, oldest first: one that failed says nothing of the next one."""
    found = (e for e in state.evals if e.opened.suite == suite and is_completed(e))
    return [each.ended for each in found if each.ended is not None]


def _eval_s(state: RunState, suite: str) -> float | None:
    """Return how long the suite takes on this run's checkpoints; None before the first result."""
    times_s = [
        (parse_time(each.finished_at) - parse_time(each.started_at)).total_seconds()
        for each in _completed_evals(state, suite)
    ]
    return expected_s(times_s)


def describe_running(
    pool: DevicePool, past: PastTimes, now: datetime, holder: Holder, running: Running
) -> Running:
    """Add what the run's own records and journal say: how long it still takes, what a move loses.

    past: of runs of this home's store, for one that has no steps yet. A run of which nobody can tell
    that has its devices anyway, and is never moved.
    """
    try:
        return _described(pool, past, now, holder, running)
    except Exception as error:  # noqa: BLE001 - of that run alone
        _log.warning("%s: %s", holder.lease.body.key, problem_of(error))
        return running


def _described(
    pool: DevicePool, past: PastTimes, now: datetime, holder: Holder, running: Running
) -> Running:
    state, key, store = holder.state, holder.lease.body.key, holder.lease.body.store
    named = parse_eval_attempt_key(key)
    if state is None:
        return running
    elapsed_s = now.timestamp() - running.began_s
    if named is not None:
        expected = _eval_s(state, named[1].rpartition("@")[0])
        return running._replace(left_s=left_s(expected, elapsed_s))
    attempt = state.attempt(parse_attempt_key(key)[1])
    if attempt is None:
        return running
    own = [c for c in state.checkpoints if c.ref.attempt_id == attempt.attempt_id]
    saved_at = own[-1].at if own else attempt.restored_at
    unsaved_s = 0.0 if saved_at is None else max(0.0, (now - saved_at).total_seconds())
    committed_s = own[-1].at.timestamp() if own else None
    if committed_s is None and attempt.opened.resume is not None:
        committed_s = running.began_s
    ranks = attempt.opened.compute.ranks
    left = _left_s(pool.runs(store), state, attempt, now)
    if left is None and store == pool.store:
        left = left_s(past.expected_s(state.declared), elapsed_s)
    return running._replace(
        demand=replace(running.demand, is_interrupted=attempt.attempt_id > 1),
        left_s=left,
        committed_s=committed_s,
        unsaved_ranks_s=unsaved_s * ranks,
        saves_when_asked=_saves_when_asked(pool, state, attempt, now),
        is_moving=state.stop_for(attempt) is not None,
    )


def _left_s(
    tracks: Tracks, state: RunState, running: AttemptState | None, now: datetime
) -> float | None:
    """Return how long the run's steps still take by the pace of its newest ones; None: not known.

    running: the attempt that does them now; None: from the newest checkpoint on.
    """
    steps = steps_of(state)
    if steps is None:
        return None
    for attempt in reversed(state.attempts[-ATTEMPTS_READ_MAX:]):
        pace, newest = _pace(tracks, state, attempt)
        if pace is None or newest is None:
            continue
        if attempt is running:
            since_s = (now - parse_time(newest.at)).total_seconds()
            return left_s(max(0, steps - newest.step) * pace.step_s, since_s)
        resumes = state.resumes_from
        done = resumes.step if resumes is not None else 0
        return max(0, steps - done) * pace.step_s
    return None


def _pace(
    tracks: Tracks, state: RunState, attempt: AttemptState
) -> tuple[Pace | None, StepLine | None]:
    """Return the pace of an attempt, and its newest step that is known."""
    if attempt.placed is None:
        return None, None
    tail = read_tail(
        tracks.store,
        state.ref(attempt),
        attempt.placed.launch_id,
        steps_max=STEPS_MAX + 1,
    )
    ends_s = [parse_time(step.at).timestamp() for step in tail.steps]
    return measure(attempt.attempt_id, ends_s), tail.steps[-1] if tail.steps else None


def _ask_to_move(pool: DevicePool, move: Move) -> str | None:
    """Ask a run to save, end and come back by itself; nothing where it was asked, or has ended.

    Return why it could not be asked, in words: the next tick asks again.
    """
    lease = pool.find(move.key)
    if lease is None or parse_eval_attempt_key(move.key) is not None:
        return None
    run_id, attempt_id = parse_attempt_key(move.key)
    tracks = pool.runs(lease.body.store)
    stop = StopRequested(by=SCHEDULER, why=move.why, mode=MOVE)
    draft = tracks.draft(Kind.STOP_REQUESTED, stop)

    def choose(state: RunState | None) -> Draft | None:
        attempt = None if state is None else state.open_attempt
        if state is None or attempt is None or attempt.attempt_id != attempt_id:
            return None
        return None if state.stop_for(attempt) is not None else draft

    try:
        tracks.decide_run(run_id, choose)
    except Exception as error:  # noqa: BLE001 - of that run alone
        why = problem_of(error)
        return f"{move.key} could not be asked to make room for {move.for_key}: {why}"
    return None


def _ask_to_save(world: World, pool: DevicePool, move: Move) -> str | None:
    """Ask a run for the checkpoint without which it may not make room, once: a save may take many
    ticks. Its commit is the record. Return why it could not be asked, in words.
    """
    lease, now = pool.find(move.key), world.tracks.now()
    if lease is None:
        return None
    run_id, attempt_id = parse_attempt_key(move.key)
    tracks = pool.runs(lease.body.store)
    try:
        state = tracks.run(run_id)
        attempt = state.open_attempt
        if attempt is None or attempt.attempt_id != attempt_id:
            return None
        asked_s = _asked_s(pool, state, attempt, now)
        if asked_s is None or asked_s >= SAVE_AGAIN_S:
            pool.asked_to_save[move.key] = now
            ask_to_save(tracks, world.launcher_of, run_id)
    except Exception as error:  # noqa: BLE001 - of that run alone
        why = problem_of(error)
        return f"{move.key} could not be asked to save, to make room for {move.for_key}: {why}"
    return None


def _saves_when_asked(
    pool: DevicePool, state: RunState, attempt: AttemptState, now: datetime
) -> bool:
    """Whether it trains and can be asked for a checkpoint, and was not just asked in vain."""
    program, asked_s = program_of(state, attempt), _asked_s(pool, state, attempt, now)
    if attempt.restored is None or (program is not None and program.by_files):
        return False
    return asked_s is None or not SAVE_S_MAX <= asked_s < SAVE_AGAIN_S


def _asked_s(
    pool: DevicePool, state: RunState, attempt: AttemptState, now: datetime
) -> float | None:
    """Return how long ago it was asked for a checkpoint; None where it was not, or has saved since."""
    asked_at = pool.asked_to_save.get(state.ref(attempt).key)
    if asked_at is None or asked_at > now or any(c.at >= asked_at for c in state.checkpoints):
        return None
    return (now - asked_at).total_seconds()
