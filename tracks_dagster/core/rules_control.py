"""What people, control planes, kernels and containers say about an attempt's end: weights 1 to 4.

Tables of their words, and the functions that look for them. What the ranks themselves say is in
`rules_ranks` and `rules_text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tracks_dagster.core.evidence import (
    CHECKPOINT_WITHDRAWN,
    ENVIRONMENT_DIFFERS,
    START_REFUSED,
    Condition,
    Evidence,
    RankEnd,
)
from tracks_dagster.core.finding import Finding
from tracks_dagster.core.reasons import TerminationReason

_R = TerminationReason
Words = tuple[tuple[re.Pattern[str], TerminationReason], ...]


def _words(*rows: tuple[str, TerminationReason]) -> Words:
    return tuple((re.compile(pattern, re.IGNORECASE), reason) for pattern, reason in rows)


# A condition is matched as "type/reason: message". The first row that fits decides.
_CONDITIONS = _words(
    (r"^DisruptionTarget/PreemptionByScheduler", _R.PREEMPTED),
    (r"^DisruptionTarget/EvictionByEvictionAPI", _R.NODE_DRAINED),
    (r"^DisruptionTarget/DeletionByTaintManager", _R.NODE_FAILURE),
    (r"^DisruptionTarget/DeletionByPodGC", _R.NODE_FAILURE),
    (r"^DisruptionTarget/TerminationByKubelet:.*(ephemeral-storage|disk)", _R.DISK_FULL),
    (r"^DisruptionTarget/TerminationByKubelet:.*shutdown", _R.NODE_DRAINED),
    (r"^DisruptionTarget/TerminationByKubelet", _R.HOST_OOM),
    (r"^(TerminationTarget|Evicted)/WorkloadEvictedDueToPreempt", _R.PREEMPTED),
    (r"^(TerminationTarget|Evicted)/WorkloadEvictedDueTo(Deactivat|Stop)", _R.USER_CANCELLED),
    (r"^(TerminationTarget|Evicted)/WorkloadEvictedDueToPodsReadyTimeout", _R.SCHEDULING_TIMEOUT),
    (r"^TerminationTarget/.*Preempt", _R.PREEMPTED),
    (r"/Evicted:.*(ephemeral-storage|disk ?pressure|emptyDir|local storage)", _R.DISK_FULL),
    (r"/Evicted:.*(memory|MemoryPressure)", _R.HOST_OOM),
    (r"/(ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull)", _R.IMAGE_PULL),
    (r"(Failed to pull image|CannotPullContainer)", _R.IMAGE_PULL),
    (r"(CreateContainerConfigError|CreateContainerError|RunContainerError)", _R.CONFIG_ERROR),
    (r"(FailedScheduling|Unschedulable|cannot be scheduled|nodes are available)",
     _R.SCHEDULING_TIMEOUT),
    (r"(NodeLost|NodeNotReady|stopped posting node status|node.*unreachable)", _R.NODE_FAILURE),
)  # fmt: skip

_REFUSED_STARTS = {
    ENVIRONMENT_DIFFERS: _R.DEPENDENCY_MISMATCH,
    CHECKPOINT_WITHDRAWN: _R.CHECKPOINT_CORRUPT,
}

_SLURM_STATES = _words(
    (r"^PREEMPTED", _R.PREEMPTED),
    (r"^(NODE_FAIL|BOOT_FAIL)", _R.NODE_FAILURE),
    (r"^(TIMEOUT|DEADLINE)", _R.WALLTIME_TIMEOUT),
    (r"^OUT_OF_MEMORY", _R.HOST_OOM),
)
_SLURM_CANCELLED = re.compile(r"^CANCELLED( by \d+)?")

# Lines that schedulers leave in a job's own log.
_SCHEDULER_LINES = _words(
    (r"slurmstepd.*CANCELLED.*DUE TO PREEMPTION", _R.PREEMPTED),
    (r"slurmstepd.*CANCELLED.*DUE TO JOB REQUEUE", _R.PREEMPTED),
    (r"slurmstepd.*CANCELLED.*DUE TO TIME LIMIT", _R.WALLTIME_TIMEOUT),
    (r"slurmstepd.*CANCELLED.*DUE TO NODE FAILURE", _R.NODE_FAILURE),
    (r"(slurmstepd|srun).*(oom[-_ ]kill|Out Of Memory)", _R.HOST_OOM),
    (r"^\s*JOB_STATE_KILLED: Preempted", _R.PREEMPTED),
    (
        r"instance .*(preempted|spot interruption)|spot instance (interruption|reclaim)",
        _R.PREEMPTED,
    ),
    (r"CannotPullContainerError|Failed to pull image", _R.IMAGE_PULL),
)

# Xids that blame the device, not the program that used it: NVIDIA's catalogue of Xid errors.
# 13, 31, 43 and 45 follow from a program's own fault or from another Xid.
_HARDWARE_XIDS = frozenset(
    {46, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 121, 136, 140, 143}
    | set(range(144, 151))
    | {154}
)
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)(?:.*previous Xid (\d+))?")
_HARDWARE_LINES = re.compile(
    r"SXid \([^)]*\): \d+, Fatal|GPU has fallen off the bus|uncorrectable (ECC|NVLink) error"
    r"|\[Hardware Error\]|\bmce: ",
    re.IGNORECASE,
)
_OOM_KILLER = re.compile(
    r"(Out of memory|Memory cgroup out of memory): Kill|oom-kill:|invoked oom-killer"
)
_CANCELLED_STATUS = re.compile(r"cancell?(ed|ing)", re.IGNORECASE)


def stop_requested(evidence: Evidence) -> Finding | None:
    """Recorded intent: a person or a policy asked for the end."""
    if evidence.stop is None:
        return None
    stop = evidence.stop
    words = f"{stop.get('mode')} requested by {stop.get('by')}: {stop.get('why')}"
    return _finding(_R.USER_CANCELLED, 1.0, words)


def dagster_cancelled(evidence: Evidence) -> Finding | None:
    """A person cancelled the Dagster run that supervised the attempt."""
    status = str((evidence.dagster or {}).get("status") or "")
    if not _CANCELLED_STATUS.search(status):
        return None
    return _finding(_R.USER_CANCELLED, 0.95, f"Dagster run: {status}")


def slurm_cancelled(evidence: Evidence) -> Finding | None:
    """A person cancelled the Slurm job."""
    state = evidence.slurm_state or ""
    if not _SLURM_CANCELLED.match(state):
        return None
    return _finding(_R.USER_CANCELLED, 0.9, f"Slurm state: {state}")


def start_refused(evidence: Evidence) -> Finding | None:
    """The supervisor started no gang, by the rules on what may be resumed from and with what."""
    for told in evidence.conditions:
        reason = _REFUSED_STARTS.get(told.reason) if told.type == START_REFUSED else None
        if reason is not None:
            return _finding(reason, 1.0, told.message)
    return None


def oom_first(evidence: Evidence) -> Finding | None:
    """A container that was OOM-killed before a control plane spoke: the condition came after it.

    Where the order is not known the OOM counts: a container that a control plane ends says Error.
    """
    if not any(_condition_reason(c) for c in evidence.conditions):
        return None
    for rank in evidence.ranks:
        if rank.oom_killed and not any(_came_before(c, rank) for c in evidence.conditions):
            return _finding(_R.HOST_OOM, 0.9, f"rank {rank.rank} had been OOM-killed before")
    return None


def condition(evidence: Evidence) -> Finding | None:
    """What a control plane said, the earliest condition that gives a reason."""
    known = [(c, reason) for c in evidence.conditions if (reason := _condition_reason(c))]
    known = [(c, reason) for c, reason in known if not _came_after_all(c, evidence.ranks)]
    if not known:
        return None
    told, reason = min(known, key=lambda pair: pair[0].at or "")
    return _finding(reason, 0.95, f"{told.source}: {_condition_text(told)}")


def slurm_state(evidence: Evidence) -> Finding | None:
    """The state in which Slurm left the job."""
    state = evidence.slurm_state or ""
    reason = _first(_SLURM_STATES, state)
    return _finding(reason, 0.95, f"Slurm state: {state}") if reason else None


def scheduler_words(evidence: Evidence) -> Finding | None:
    """Words of a scheduler in a rank's log."""
    for line in _log_lines(evidence.ranks):
        reason = _first(_SCHEDULER_LINES, line)
        if reason is not None:
            return _finding(reason, 0.9, line)
    return None


def rebooted(evidence: Evidence) -> Finding | None:
    """A node that has another boot id than when the attempt was placed."""
    if not evidence.boot_ids:
        return None
    nodes = ", ".join(sorted(evidence.boot_ids))
    return _finding(_R.NODE_FAILURE, 0.9, f"booted again since the attempt was placed: {nodes}")


def kernel_hardware(evidence: Evidence) -> Finding | None:
    """A device's own fault in the kernel's lines, or in those that a log repeats."""
    for line in (*evidence.kernel_lines, *_log_lines(evidence.ranks)):
        numbers = {int(n) for match in _XID.finditer(line) for n in match.groups() if n}
        if numbers & _HARDWARE_XIDS or _HARDWARE_LINES.search(line):
            return _finding(_R.GPU_HARDWARE, 0.9, line)
    return None


def container_oom(evidence: Evidence) -> Finding | None:
    """A container whose status says that the kernel killed it for memory."""
    killed = [str(rank.rank) for rank in evidence.ranks if rank.oom_killed]
    if not killed:
        return None
    return _finding(_R.HOST_OOM, 0.95, f"OOM-killed: rank {', '.join(killed)}")


def cgroup_oom(evidence: Evidence) -> Finding | None:
    """A memory cgroup that counted a kill."""
    for key, value in sorted(evidence.cgroup.items()):
        if key.endswith("oom_kill") and isinstance(value, int) and value > 0:
            return _finding(_R.HOST_OOM, 0.95, f"memory cgroup: {key} {value}")
    return None


def kernel_oom(evidence: Evidence) -> Finding | None:
    """The OOM killer in the kernel's lines."""
    line = next((line for line in evidence.kernel_lines if _OOM_KILLER.search(line)), None)
    return _finding(_R.HOST_OOM, 0.85, line) if line is not None else None


def _condition_text(told: Condition) -> str:
    return f"{told.type}/{told.reason}: {told.message}"


def _condition_reason(told: Condition) -> TerminationReason | None:
    return _first(_CONDITIONS, _condition_text(told))


def _came_before(told: Condition, rank: RankEnd) -> bool:
    """Whether the condition is known to have come before the rank's end."""
    return told.at is not None and rank.ended_at is not None and told.at < rank.ended_at


def _came_after_all(told: Condition, ranks: tuple[RankEnd, ...]) -> bool:
    """Whether every rank had ended before: then the condition says nothing about why."""
    if told.at is None or not ranks:
        return False
    return all(rank.ended_at is not None and rank.ended_at < told.at for rank in ranks)


def _first(words: Words, text: str) -> TerminationReason | None:
    return next((reason for pattern, reason in words if pattern.search(text)), None)


def _log_lines(ranks: Iterable[RankEnd]) -> Iterator[str]:
    for rank in ranks:
        yield from rank.log_tail.splitlines()


def _finding(reason: TerminationReason, confidence: float, line: str) -> Finding:
    text = line.strip()
    return Finding(reason=reason, confidence=confidence, lines=(text,), root_message=text)
