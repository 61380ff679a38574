"""What people, control planes, kernels and containers report of an attempt's end: weights 1 to 4.

`control_words` holds the words; here is how they are looked for. `rules.ranks` and `rules.text` read
the ranks themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tracks_dagster.reasons import hangs
from tracks_dagster.reasons.evidence import (
    CANNOT_START,
    START_REFUSED,
    Condition,
    Evidence,
    RankEnd,
)
from tracks_dagster.reasons.logs import STEPS_WHILE_ENDING, starts_again, steps_after
from tracks_dagster.reasons.rules.cause import (
    CERTAIN,
    LEANING,
    MEASURED,
    NAMED,
    STATED,
    Finding,
)
from tracks_dagster.reasons.rules.control_words import (
    BEFORE_THE_START,
    CANCELLED_STATUS,
    CONDITION_SKEW_S,
    CONDITIONS,
    DUE_TO,
    HARDWARE_LINES,
    HARDWARE_XIDS,
    HAS_TIME_LEFT,
    IS_DEVICE,
    JOB_CANCELLED,
    KERNEL_MARK,
    LINE_OF_JOB,
    MACHINE_LINES,
    OOM_KILLER,
    OWN_JOB,
    PCI,
    REFUSED_STARTS,
    REPORTED_LATE,
    REQUEUED,
    SCHEDULER_LINES,
    SLURM_CANCELLED,
    SLURM_OWN_ENDS,
    SLURM_STATES,
    TASK_FAILED,
    WARNED,
    XID,
    Words,
)
from tracks_dagster.track.bodies import BUDGET, MOVE, SCHEDULER
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import parse_time

_R = TerminationReason


def stop_requested(evidence: Evidence) -> Finding | None:
    """Recorded intent: a person or a policy asked for the end."""
    if evidence.stop is None:
        return None
    stop = evidence.stop
    words = f"{stop.get('mode')} requested by {stop.get('by')}: {stop.get('why')}"
    reason = _R.USER_CANCELLED
    if stop.get("mode") == MOVE:
        reason = _R.PREEMPTED if stop.get("by") == SCHEDULER else _R.NODE_DRAINED
    elif stop.get("mode") == BUDGET:
        reason = _R.BUDGET_EXHAUSTED
    return _finding(reason, CERTAIN, words)


def dagster_cancelled(evidence: Evidence) -> Finding | None:
    """A person cancelled the Dagster run that supervised the attempt."""
    status = str((evidence.dagster or {}).get("status") or "")
    if not CANCELLED_STATUS.search(status):
        return None
    return _finding(_R.USER_CANCELLED, STATED, f"Dagster run: {status}")


def slurm_cancelled(evidence: Evidence) -> Finding | None:
    """A person cancelled the Slurm job."""
    state = evidence.slurm_state or ""
    if not SLURM_CANCELLED.match(state) or any(map(DUE_TO.search, _log_lines(evidence.ranks))):
        return None
    return _finding(_R.USER_CANCELLED, MEASURED, f"Slurm state: {state}")


def start_refused(evidence: Evidence) -> Finding | None:
    """The supervisor started no gang, by the rules on what may be resumed from and with what."""
    for condition in evidence.conditions:
        reason = REFUSED_STARTS.get(condition.reason) if condition.type == START_REFUSED else None
        if reason is not None:
            return _finding(reason, CERTAIN, condition.message)
    return None


def oom_first(evidence: Evidence) -> Finding | None:
    """A container that was OOM-killed before a control plane spoke: the condition came after it.

    Where the order is not known the OOM counts: a container that a control plane ends says Error.
    """
    # That a Job was suspended before its start, or a pod waited for a node, came before and is over.
    causes = [
        c for c in evidence.conditions if _condition_reason(c) not in (None, *BEFORE_THE_START)
    ]
    if not causes:
        return None
    for rank in evidence.ranks:
        if rank.oom_killed and not any(_came_before(c, rank) for c in causes):
            return _finding(_R.HOST_OOM, MEASURED, f"rank {rank.rank} had been OOM-killed before")
    return None


def condition(evidence: Evidence) -> Finding | None:
    """What a control plane said, the earliest condition that gives a reason."""
    known = [(c, reason) for c in evidence.conditions if (reason := _condition_reason(c))]
    known = [(c, reason) for c, reason in known if not _came_after_all(c, evidence.ranks)]
    if any(rank.has_ended or rank.started_at for rank in evidence.ranks):
        known = [
            (c, reason)
            for c, reason in known
            if reason not in BEFORE_THE_START or c.type == CANNOT_START
        ]
    if not known:
        return None
    first, reason = min(known, key=lambda pair: pair[0].at or "")
    return _finding(reason, STATED, f"{first.source}: {first.text}")


def slurm_state(evidence: Evidence) -> Finding | None:
    """The state in which Slurm left the job."""
    state = evidence.slurm_state or ""
    reason = _first(SLURM_STATES, state)
    return _finding(reason, STATED, f"Slurm state: {state}") if reason else None


def requeued_itself(evidence: Evidence) -> Finding | None:
    """A job that asked Slurm to be requeued when its warning signal came: its time was up.

    Submitit does so, and may say "preempted"; where it says that the job had time left, it was.
    """
    lines = list(_log_lines(evidence.ranks))
    warned = next((line for line in lines if WARNED.search(line)), None)
    if warned is None or not any(map(REQUEUED.search, lines)):
        return None
    had_time = any(map(HAS_TIME_LEFT.search, lines))
    return _finding(_R.PREEMPTED if had_time else _R.WALLTIME_TIMEOUT, LEANING, warned)


def scheduler_line(evidence: Evidence) -> Finding | None:
    """A line in the log that carries its scheduler's mark, and is of this job."""
    # Then Slurm itself says that nobody ended the job; what took too much memory was a step of it.
    is_own_end = SLURM_OWN_ENDS.match(evidence.slurm_state or "") is not None
    own = _own_jobs(evidence.ranks)
    for rank in evidence.ranks:
        lines = rank.log_tail.splitlines()
        for line in lines[starts_again(lines) :]:
            reason = _first(SCHEDULER_LINES, line)
            if is_own_end and reason is not _R.HOST_OOM:
                continue
            job = LINE_OF_JOB.search(line)
            if reason is not None and not (own and job and job[1] not in own):
                return _finding(reason, MEASURED, line)
    return None


def _own_jobs(ranks: Iterable[RankEnd]) -> set[str]:
    """Return the job numbers that the log gives as its own."""
    return {
        next(filter(None, match.groups()))
        for line in _log_lines(ranks)
        for match in OWN_JOB.finditer(line)
    }


def job_cancelled(evidence: Evidence) -> Finding | None:
    """A Slurm job that was cancelled for no cause that Slurm names: somebody called scancel.

    Slurm cancels the rest of a step as well when one of its tasks has failed.
    """
    if any(map(TASK_FAILED.search, _log_lines(evidence.ranks))):
        return None
    line = next((line for line in _log_lines(evidence.ranks) if JOB_CANCELLED.search(line)), None)
    return None if line is None else _finding(_R.USER_CANCELLED, LEANING, line)


def rebooted(evidence: Evidence) -> Finding | None:
    """A node that has another boot id than when the attempt was placed."""
    if not evidence.boot_ids:
        return None
    nodes = ", ".join(sorted(evidence.boot_ids))
    return _finding(
        _R.NODE_FAILURE, MEASURED, f"booted again since the attempt was placed: {nodes}"
    )


def kernel_hardware(evidence: Evidence) -> Finding | None:
    """A device's own fault in the kernel's lines, or in those that a log repeats with its mark.

    In a log it counts until steps went on after it: many a fault is contained, and costs no process.
    """
    line = next(filter(_is_of_device, evidence.kernel_lines), None)
    if line is not None:
        return _finding(_R.GPU_HARDWARE, MEASURED, line)
    for rank in evidence.ranks:
        lines = rank.log_tail.splitlines()
        for line, steps in zip(lines, steps_after(lines), strict=True):
            if steps <= STEPS_WHILE_ENDING and _is_of_device(line) and KERNEL_MARK.search(line):
                found = _finding(_R.GPU_HARDWARE, MEASURED, line)
                return replace(found, lines=(f"rank {rank.rank}: {line}",))
    broken = next((line for line in evidence.kernel_lines if MACHINE_LINES.search(line)), None)
    return None if broken is None else _finding(_R.NODE_FAILURE, MEASURED, broken)


def named_device(kernel_lines: Sequence[str]) -> str | None:
    """Return the UUID of the device whose own fault the kernel's lines tell; None: they name none."""
    known = {m[1].lower(): m[2] for line in kernel_lines if (m := IS_DEVICE.match(line))}
    places = (PCI.search(line) for line in kernel_lines if _is_of_device(line))
    return next((known[p[1].lower()] for p in places if p and p[1].lower() in known), None)


def _is_of_device(line: str) -> bool:
    numbers = {int(n) for match in XID.finditer(line) for n in match.groups() if n}
    return bool(numbers & HARDWARE_XIDS) or HARDWARE_LINES.search(line) is not None


def container_oom(evidence: Evidence) -> Finding | None:
    """A container whose status says that the kernel killed it for memory."""
    killed = [str(rank.rank) for rank in evidence.ranks if rank.oom_killed]
    if not killed:
        return None
    return _finding(_R.HOST_OOM, STATED, f"OOM-killed: rank {', '.join(killed)}")


def cgroup_oom(evidence: Evidence) -> Finding | None:
    """A memory cgroup that counted a kill."""
    for key, value in sorted(evidence.cgroup.items()):
        if key.endswith("oom_kill") and isinstance(value, int) and value > 0:
            return _finding(_R.HOST_OOM, STATED, f"memory cgroup: {key} {value}")
    return None


def kernel_oom(evidence: Evidence) -> Finding | None:
    """The OOM killer in the kernel's lines."""
    line = next((line for line in evidence.kernel_lines if OOM_KILLER.search(line)), None)
    return _finding(_R.HOST_OOM, NAMED, line) if line is not None else None


def hung(evidence: Evidence) -> Finding | None:
    """No rank moved for longer than the limit, and the supervisor ended them."""
    for condition in evidence.conditions:
        if condition.type != hangs.CONDITION:
            continue
        stalled = condition.reason == hangs.DATA_LOADER_STALL
        lines = tuple(line for line in condition.message.splitlines() if line)
        return Finding(
            reason=_R.DATA_LOADER_STALL if stalled else _R.HANG,
            confidence=0.95,
            lines=lines,
            root_message=lines[0] if lines else condition.reason,
        )
    return None


def blamed_rank(evidence: Evidence, reason: str) -> int | None:
    """Return the rank whose end a control plane gives as `reason`, the earliest; None: of no single
    one. Of a lost node, only the others say anything themselves: that they lost a peer."""
    ranked = [
        c for c in evidence.conditions if c.rank is not None and _condition_reason(c) == reason
    ]
    return min(ranked, key=lambda c: (c.at or "", c.rank or 0)).rank if ranked else None


def _condition_reason(condition: Condition) -> TerminationReason | None:
    return _first(CONDITIONS, condition.text)


def _came_before(condition: Condition, rank: RankEnd) -> bool:
    """Whether the condition is known to have come before the rank's end."""
    return condition.at is not None and rank.ended_at is not None and condition.at < rank.ended_at


def _came_after_all(condition: Condition, ranks: tuple[RankEnd, ...]) -> bool:
    """Whether every rank had ended before: then the condition does not explain why."""
    if condition.at is None or not ranks or REPORTED_LATE.search(condition.text):
        return False
    return all(
        rank.ended_at is not None and _is_later(condition.at, rank.ended_at) for rank in ranks
    )


def _is_later(at: str, ended_at: str) -> bool:
    """Whether `at` is later by more than what clocks of one control plane differ."""
    try:
        return (parse_time(at) - parse_time(ended_at)).total_seconds() > CONDITION_SKEW_S
    except ValueError:
        return at > ended_at


def _first(words: Words, text: str) -> TerminationReason | None:
    return next((reason for pattern, reason in words if pattern.search(text)), None)


def _log_lines(ranks: Iterable[RankEnd]) -> Iterator[str]:
    for rank in ranks:
        yield from rank.log_tail.splitlines()


def _finding(reason: TerminationReason, confidence: float, line: str) -> Finding:
    text = line.strip()
    return Finding(reason=reason, confidence=confidence, lines=(text,), root_message=text)
