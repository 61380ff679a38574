"""Close an attempt: end its processes, keep the evidence, record why it ended.

Called by the supervisor of an attempt, and by the watcher when a gang is gone and nobody supervises
it. Both at once are harmless: the evidence is stored under its own hash, and `attempt_ended` is a
decision, so one of them appends it and the other finds it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from itertools import accumulate
from typing import Protocol

from tracks_dagster.attempts.effects.evidence import (
    NO_PROBLEM,
    EndProblem,
    Gathered,
    begin_end,
    gather,
    stored_logs,
)
from tracks_dagster.attempts.effects.repeated_steps import first_difference
from tracks_dagster.attempts.ports import GangLauncher, GangPhase, GangReport, Orchestrator
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.reasons import hangs
from tracks_dagster.reasons.classify import classifier_version, classify
from tracks_dagster.reasons.evidence import (
    CANNOT_START,
    DEVICE_GONE,
    Condition,
    Evidence,
    RankEnd,
    Verdict,
)
from tracks_dagster.reasons.fingerprints import fingerprint
from tracks_dagster.reasons.initiator import failed_first
from tracks_dagster.reasons.rules.control import blamed_rank, named_device
from tracks_dagster.reasons.slurm_rows import gpus_in
from tracks_dagster.reasons.user_rules import UserRules
from tracks_dagster.scheduling.devices_given import CPU
from tracks_dagster.scheduling.effects.leases import DevicePool
from tracks_dagster.stores.journals import newest_values
from tracks_dagster.track.bodies import AttemptEnded
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import GangError
from tracks_dagster.track.journal_lines import LOSS
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.placement import node_of, nodes_of
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import Draft, Kind, canonical_json, parse_time, sha256_hex
from tracks_dagster.track.states.metric_values import few_metrics
from tracks_dagster.track.states.run_state import AttemptState, RunState, known_attempt

OTHER_RANKS_S_MAX = 60.0  # after the first rank's end: how long the ends of the others are awaited
LINGER_S = 300.0  # after the last rank's end, for their place to end the gang: logs, epilogs
OF_DEVICES = frozenset(
    {TerminationReason.GPU_HARDWARE.value, TerminationReason.SILENT_CORRUPTION.value}
)
NUMERIC = frozenset({TerminationReason.NAN_LOSS.value, TerminationReason.LOSS_DIVERGENCE.value})
GATHERINGS_MAX = 5  # a launch may be placed while evidence is gathered; then it is gathered again

# `attempt_ended` is one record of at most 16 KiB; the evidence holds whole texts.
LINES_MAX = 12
LINES_READ_MAX = 10_000  # of a journal, for the newest value of each metric
LINE_CHARACTERS_MAX = 400
ROOT_MESSAGE_CHARACTERS_MAX = 1000
NAMES_BYTES_MAX = 768  # of metrics


def is_over(report: GangReport, now: datetime) -> bool:
    """Whether the attempt of this gang should be closed.

    Nothing of it lives, its launcher has given up bringing it up, `OTHER_RANKS_S_MAX` have passed
    since the first rank ended, or `LINGER_S` since the last one did.
    """
    if report.phase is GangPhase.GONE or any(c.type == CANNOT_START for c in report.conditions):
        return True
    ends = [parse_time(end.ended_at) for end in report.ranks if end.ended_at is not None]
    if ends and len(ends) == len(report.ranks):
        return (now - max(ends)).total_seconds() >= LINGER_S
    return bool(ends) and (now - min(ends)).total_seconds() >= OTHER_RANKS_S_MAX


class ClosingWorld(Protocol):
    """What closing an attempt works with: a `World`, or a supervisor."""

    @property
    def tracks(self) -> Tracks:
        """Every track."""
        ...

    @property
    def orchestrator(self) -> Orchestrator:
        """Knows what became of the Dagster run that supervised."""
        ...

    @property
    def rules(self) -> UserRules:
        """A user's own rules of the classifier."""
        ...

    @property
    def devices(self) -> DevicePool | None:
        """The devices of this machine; None where they are not ours to give."""
        ...


def close_attempt(
    closing: ClosingWorld,
    gangs: GangLauncher,
    ref: AttemptRef,
    *,
    by: str,
    problem: EndProblem = NO_PROBLEM,
) -> AttemptState:
    """End the attempt and return it ended, by this call or by another before it.

    Its processes are killed and seen gone first, and what they left on the machine is stored.
    problem: what the caller met or decided, kept as evidence; in its place a hang for which its end was
    begun, maybe by a process that is gone. Idempotent, safe from two processes.
    Raises UnknownRun, and GangError when processes cannot be ended; the attempt then stays open.
    """
    tracks = closing.tracks
    for _ in range(GATHERINGS_MAX):
        state, attempt = find_attempt(tracks, ref)
        if not attempt.is_open:
            return attempt
        problem = begin_end(tracks, ref, problem)
        gangs.kill(ref)
        gangs.ship(ref, tracks.store)
        report = gangs.observe(ref)
        claim = attempt.claims[-1].body.dagster_run_id if attempt.claims else None
        run = closing.orchestrator.find(claim) if claim else None
        if run is not None and run.is_canceling:  # a time limit of Dagster's is not a person
            run = replace(run, is_canceling=closing.orchestrator.was_cancelled(run.dagster_run_id))
        gone = _gone_devices(closing.devices, state, attempt, report)
        met = replace(problem, conditions=(*problem.conditions, *gone))
        gathered = gather(tracks, state, attempt, report, run, met)
        ended = _ended(tracks, state, attempt, gathered, by, closing.rules)
        draft = tracks.draft(Kind.ATTEMPT_ENDED, ended, attempt_id=ref.attempt_id)
        if tracks.decide_run(ref.run_id, _unless_changed(draft, attempt)) is not None:
            return find_attempt(tracks, ref)[1]
    raise GangError(
        f"Cannot close {ref.key}: its evidence changed {GATHERINGS_MAX} times while it was gathered; "
        "the next tick tries again."
    )


def find_attempt(tracks: Tracks, ref: AttemptRef) -> tuple[RunState, AttemptState]:
    """Return the run and its attempt as they are now; raises UnknownRun."""
    state = tracks.run(ref.run_id)
    return state, known_attempt(state, ref.attempt_id)


def _unless_changed(
    draft: Draft, gathered_for: AttemptState
) -> Callable[[RunState | None], Draft | None]:
    """Return a choice that ends the attempt, unless it has ended or a launch was placed since."""

    def choose(state: RunState | None) -> Draft | None:
        attempt = state.attempt(gathered_for.attempt_id) if state else None
        if attempt is None or not attempt.is_open:
            return None
        return draft if attempt.placed_seq == gathered_for.placed_seq else None

    return choose


def _ended(
    tracks: Tracks,
    state: RunState,
    attempt: AttemptState,
    gathered: Gathered,
    closed_by: str,
    rules: UserRules,
) -> AttemptEnded:
    """Judge the evidence, store it, and return the body of `attempt_ended`."""
    evidence = gathered.evidence
    verdict = classify(evidence, rules)
    key, sha256 = _store_evidence(tracks, evidence)
    started_at, finished_at = _span(attempt, evidence)
    devices = gpus_in(evidence.allocated or "")[0] or None
    reported = _reported_last(tracks, state, attempt)
    return AttemptEnded(
        reason=verdict.reason,
        confidence=verdict.confidence,
        rule=verdict.rule,
        lines=record_lines(verdict),
        classifier_version=classifier_version(rules),
        evidence_key=key,
        evidence_sha256=sha256,
        device_seconds=device_seconds(evidence.ranks, started_at, finished_at, devices),
        devices=devices,
        accelerator=_accelerator(attempt),
        started_at=started_at,
        finished_at=finished_at,
        last_step=evidence.last_step,
        first_line_ran=gathered.first_line_ran,
        root_message=verdict.root_message[:ROOT_MESSAGE_CHARACTERS_MAX],
        fingerprint=fingerprint_of(verdict, attempt),
        closed_by=closed_by,
        cursor_from=attempt.restored.cursor if attempt.restored else None,
        cursor_to=gathered.journal.cursor_to,
        onset_step=_onset_step(verdict, evidence),
        blamed_node=_blamed_node(verdict, evidence, attempt),
        blamed_device=_blamed_device(verdict, evidence, attempt),
        spent=gathered.journal.spent,
        last_stepped_at=gathered.journal.last_stepped_at,
        memory=gathered.journal.memory,
        differs_from_step=first_difference(tracks.store, state, attempt),
        metrics={name: value for name, (value, _) in reported.items()},
        metric_steps={name: step for name, (_, step) in reported.items()},
        logs={
            str(rank): sha256
            for rank, sha256 in stored_logs(tracks.store, state.ref(attempt)).items()
        },
    )


def _reported_last(
    tracks: Tracks, state: RunState, attempt: AttemptState
) -> dict[str, tuple[float, int]]:
    """Return the newest value of each metric that the attempt reported, with its step."""
    if attempt.placed is None:
        return {}
    found = newest_values(
        tracks.store, state.ref(attempt), attempt.placed.launch_id, lines_max=LINES_READ_MAX
    )
    first = (state.declared.retention.metric, LOSS, *state.declared.required_signals)
    few = few_metrics(found, first=first)
    sizes = accumulate(len(canonical_json(name)) for name in few)
    return {
        name: few[name] for name, size in zip(few, sizes, strict=True) if size <= NAMES_BYTES_MAX
    }


def _onset_step(verdict: Verdict, evidence: Evidence) -> int | None:
    """Return the earliest step at which a rank saw the numbers go wrong."""
    if verdict.reason not in NUMERIC:
        return None
    words = [end.last_word for end in evidence.ranks if end.last_word is not None]
    return min((w.onset_step for w in words if w.onset_step is not None), default=None)


def _blamed_node(verdict: Verdict, evidence: Evidence, attempt: AttemptState) -> str | None:
    """Return the node that was rebooted, or that of the rank that hung, that a control plane names,
    or that failed first. None where only ranks that survived another one left an end."""
    if verdict.reason == TerminationReason.NODE_FAILURE and evidence.boot_ids:
        return min(evidence.boot_ids)
    rank = _blamed_rank(verdict, evidence, attempt)
    if attempt.placed is None or rank is None:
        return None
    return node_of(attempt.placed, rank)


def _blamed_device(verdict: Verdict, evidence: Evidence, attempt: AttemptState) -> str | None:
    """Return the device whose fault an end is: the one that the kernel's lines name, that is gone, or
    the blamed rank's. None where it is not a fault of a device, or nobody knows of which."""
    if verdict.reason not in OF_DEVICES:
        return None
    named = named_device(evidence.kernel_lines)
    gone = next((c.rank for c in evidence.conditions if c.type == DEVICE_GONE), None)
    rank = gone if gone is not None else _blamed_rank(verdict, evidence, attempt)
    return named or (None if rank is None else device_of_rank(attempt, rank))


def _blamed_rank(verdict: Verdict, evidence: Evidence, attempt: AttemptState) -> int | None:
    """Return the rank that hung, that a control plane names, or that failed first."""
    hung = next((c.rank for c in evidence.conditions if c.type == hangs.CONDITION), None)
    rank = hung if hung is not None else blamed_rank(evidence, verdict.reason)
    if rank is not None or attempt.placed is None:
        return rank
    first = failed_first(evidence.ranks, attempt.placed.world_size)
    return None if first is None else first.rank


def device_of_rank(attempt: AttemptState, rank: int) -> str | None:
    """Return the device that a rank had, as it says or as it was given them in order; None: no device,
    or not known."""
    places = attempt.placed.ranks if attempt.placed is not None else ()
    own = next((place.device for place in places if place.rank == rank), CPU)
    given = attempt.held.devices if attempt.held is not None else ()
    if own not in given and rank < len(given):
        own = given[rank]
    return None if own.partition(":")[0] == CPU else own


def _gone_devices(
    devices: DevicePool | None, state: RunState, attempt: AttemptState, report: GangReport
) -> tuple[Condition, ...]:
    """Return which of its devices the machine lost while the attempt had them; none where every rank
    did its work, or somebody asked for the end."""
    lease = attempt.held
    if devices is None or lease is None or lease.pool != devices.here.pool:
        return ()
    if state.stop_for(attempt) is not None or (
        report.ranks and all(end.exit_code == 0 for end in report.ranks)
    ):
        return ()
    return tuple(
        Condition(
            type=DEVICE_GONE,
            reason="NotListed",
            message=f"{name} is not on this machine any more, by its driver",
            at=None,
            source="supervisor",
            rank=lease.devices.index(name),
        )
        for name in devices.gone(lease.devices)
    )


def device_seconds(
    ranks: tuple[RankEnd, ...],
    started_at: str | None,
    finished_at: str | None,
    devices: int | None = None,
) -> float:
    """Return the sum over ranks of the seconds from start to end, times the devices of each.

    devices: of all ranks together; None: one each. Where a rank's own times are not known, the
    attempt's stand in; 0 when there are none at all.
    """
    ranks_s = sum(_seconds(end, started_at, finished_at) for end in ranks)
    return round(ranks_s if devices is None else ranks_s * devices / max(1, len(ranks)), 3)


def _seconds(end: RankEnd, started_at: str | None, finished_at: str | None) -> float:
    start, finish = end.started_at or started_at, end.ended_at or finished_at
    if start is None or finish is None:
        return 0.0
    return max(0.0, (parse_time(finish) - parse_time(start)).total_seconds())


def _span(attempt: AttemptState, evidence: Evidence) -> tuple[str | None, str | None]:
    """Return when the first rank started and the last one ended, as far as anybody saw it."""
    starts = [end.started_at for end in evidence.ranks if end.started_at is not None]
    ends = [end.ended_at for end in evidence.ranks if end.ended_at is not None]
    started_at = min(starts) if starts else evidence.started_at
    finished_at = max(ends) if ends else evidence.finished_at
    return started_at, finished_at


def _store_evidence(tracks: Tracks, evidence: Evidence) -> tuple[str, str]:
    data = canonical_json(to_json(evidence))
    sha256 = sha256_hex(data)
    ref = AttemptRef(evidence.run_id, evidence.attempt_id)
    key = f"{ref.folder}evidence/{sha256}.json"
    tracks.store.put(key, data)
    return key, sha256


def _accelerator(attempt: AttemptState) -> str:
    if attempt.placed is not None and attempt.placed.ranks:
        return attempt.placed.ranks[0].accelerator
    return attempt.opened.compute.device_class


def record_lines(verdict: Verdict) -> tuple[str, ...]:
    """Return the lines that decided, as short as a record wants them."""
    return tuple(line[:LINE_CHARACTERS_MAX] for line in verdict.lines[:LINES_MAX])


def fingerprint_of(verdict: Verdict, attempt: AttemptState) -> str:
    """Return the fingerprint of the failure that a verdict on `attempt` names."""
    nodes = set(nodes_of(attempt.placed)) if attempt.placed else set()
    return fingerprint(
        TerminationReason(verdict.reason),
        verdict.root_message,
        attempt.opened.config,
        attempt.opened.snapshot,
        tuple(sorted(nodes)),
    )
