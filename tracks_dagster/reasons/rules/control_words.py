"""The words of control planes, schedulers, providers and kernels: tables for `rules.control`."""

from __future__ import annotations

import re

from tracks_dagster.reasons.evidence import (
    CHECKPOINT_WITHDRAWN,
    ENVIRONMENT_DIFFERS,
    SNAPSHOT_QUARANTINED,
    SOURCE_QUARANTINED,
)
from tracks_dagster.track.reasons import TerminationReason

_R = TerminationReason
CONDITION_SKEW_S = 5.0  # a node's clock against the API server's

Words = tuple[tuple[re.Pattern[str], TerminationReason], ...]


def _words(*rows: tuple[str, TerminationReason]) -> Words:
    return tuple((re.compile(pattern, re.IGNORECASE), reason) for pattern, reason in rows)


# A condition is matched as "type/reason: message". The first row that fits decides.
CONDITIONS = _words(
    (r"^DisruptionTarget/PreemptionByScheduler", _R.PREEMPTED),
    (r"^DisruptionTarget/EvictionByEvictionAPI", _R.NODE_DRAINED),
    (r"^DisruptionTarget/DeletionByTaintManager", _R.NODE_FAILURE),
    (r"^DisruptionTarget/DeletionByPodGC", _R.NODE_FAILURE),
    (r"^DisruptionTarget/TerminationByKubelet:.*(ephemeral-storage|disk|inode)", _R.DISK_FULL),
    (r"^DisruptionTarget/TerminationByKubelet:.*(shutdown|shutting down)", _R.NODE_DRAINED),
    (r"^DisruptionTarget/TerminationByKubelet", _R.HOST_OOM),
    (r"^(TerminationTarget|Evicted)/(WorkloadEvictedDueTo)?Preempt", _R.PREEMPTED),
    (r"^(TerminationTarget|Evicted)/WorkloadEvictedDueTo(Deactivat|Stop)", _R.USER_CANCELLED),
    (r"^(TerminationTarget|Evicted)/(WorkloadEvictedDueTo)?PodsReadyTimeout"
     r"|^Event/\w*PodsReadyTimeout|Exceeded the PodsReady timeout", _R.SCHEDULING_TIMEOUT),
    (r"^TerminationTarget/.*Preempt", _R.PREEMPTED),
    (r"^Evicted/(WorkloadEvictedDueTo)?NodeFailure", _R.NODE_FAILURE),
    # An event of a pod, of its node or of a provider; an unschedulable pod may name preemption too.
    (r"(FailedScheduling|Unschedulable|cannot be scheduled|nodes are available|NotTriggerScaleUp"
     r"|InsufficientCapacity|InsufficientInstanceCapacity|couldn't assign flavors"
     r"|insufficient (unused )?quota|in gang unschedulable|resource in cluster is overused"
     r"|NotEnoughResources|/OutOf(cpu|memory|pods|nvidia|\w+\.com)|exceeded quota: )",
     _R.SCHEDULING_TIMEOUT),
    (r"no healthy devices present|cannot allocate unhealthy devices", _R.GPU_HARDWARE),
    (r"^DeviceGone/", _R.GPU_HARDWARE),
    # A job that Slurm started again, or asked to end before its limit.
    (r"^JobRequeued/", _R.NODE_DRAINED),
    (r"^TimeLimit/", _R.WALLTIME_TIMEOUT),
    # A place that was away, or took no gang, for as long as it was asked.
    (r"^StartFailed/Unreachable:", _R.SCHEDULING_TIMEOUT),
    # A gang that Slurm refused: a limit of today, an account, what no node has.
    (r"^StartFailed/.*(accounting/QOS policy|submit limit)", _R.SCHEDULING_TIMEOUT),
    (r"^StartFailed/.*(not permitted to use|Access/permission denied|Invalid account"
     r"|Invalid user id|User's group)", _R.PERMISSION_DENIED),
    (r"^StartFailed/.*(sbatch: error|Batch job submission failed)"
     r"|^GangCannotStart/BadConstraints", _R.CONFIG_ERROR),
    # A gang that the API server refused.
    (r"^StartFailed/.*exceeds the quota", _R.SCHEDULING_TIMEOUT),
    (r"^StartFailed/.*(may not \w+|credentials|forbids it)", _R.PERMISSION_DENIED),
    (r"^StartFailed/.*(there is no namespace|refuses what was sent|its request has"
     r"|is there already)", _R.CONFIG_ERROR),
    (r"^GangCannotStart/FailedCreate:.*(forbidden|violates PodSecurity)", _R.PERMISSION_DENIED),
    # A Job that may make no pod; for want of quota: above.
    (r"^Event/FailedCreate: .*(error looking up service account|\bnot found\b)", _R.CONFIG_ERROR),
    (r"^Event/FailedCreate: .*\bforbidden\b", _R.PERMISSION_DENIED),
    (r"^Event/Preempted\b|^Event/EvictedDueToPreempt|^Event/(Spot\w*Interrupt|Preempti\w*ion\b)",
     _R.PREEMPTED),
    (r"\b(was|were|been|being|got) pre-?empted\b|^[^:]*:\s*Pre-?empted (by|to accommodate)"
     r"|/Evicted: ?.*\bSpot\w*Interrupt|\bevicted\b.{0,40}\bbecause of (preempt|reclaim)"
     r"|\breclaimed (by|for)\b|/PreemptScheduled\b",
     _R.PREEMPTED),
    (r"/(Evicted|Eviction\w*): ?.*EmptyDir volume \"?(d?shm|shared-?mem)", _R.SHM_EXHAUSTED),
    (r"/(Evicted|Eviction\w*): ?.*(ephemeral-storage|disk ?pressure|emptyDir|local storage|inode)",
     _R.DISK_FULL),
    (r"/(Evicted|Eviction\w*): ?.*(memory|MemoryPressure)", _R.HOST_OOM),
    (r"/Evicted: ?.*(EphemeralStorage|ephemeral local storage)", _R.DISK_FULL),
    (r"node (was low on resource|had condition): ?\[?(ephemeral-storage|DiskPressure|inode|nodefs"
     r"|imagefs)", _R.DISK_FULL),
    (r"node (was low on resource|had condition): ?\[?(memory|MemoryPressure)", _R.HOST_OOM),
    (r"/(OOMKilling|SystemOOM|OOMKilled)\b|Memory cgroup out of memory", _R.HOST_OOM),
    (r"/(NodeShutdown|ScaleDown|Terminated): ?.*(shutdown|scale[- ]?down|removed by cluster|drain)",
     _R.NODE_DRAINED),
    (r"/(NodeShutdown|ScaleDown|NodeDrain\w*|Drain\w*|Cordon\w*|FailedDraining"
     r"|Disruption(Terminating|Launching)|ImpendingNodeTermination"
     r"|(Reboot|Redeploy|Terminate)Scheduled)\b|node is shutting down"
     r"|/Evicted: ?.*\b(Underutilized|Empty|Drifted|Expired|Consolidat)"
     r"|\bDisrupting Node(Claim)?\b|imminent node shutdown"
     r"|(drain|cordon)(ed|ing) (the )?node|node (was |is being |has been )?(drain|cordon)ed",
     _R.NODE_DRAINED),
    (r"/(ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull)", _R.IMAGE_PULL),
    (r"(Failed to pull image|CannotPullContainer|Back-off pulling image"
     r"|ErrImagePull)", _R.IMAGE_PULL),
    (r"DeadlineExceeded|active longer than specified deadline", _R.WALLTIME_TIMEOUT),
    (r"(CreateContainerConfigError|CreateContainerError|RunContainerError|StartError)"
     r"|no runtime for .{0,40} is configured"
     r"|(secret|configmap) .*not found", _R.CONFIG_ERROR),
    (r"/(FailedMount|FailedAttachVolume|FailedMapVolume)|Unable to (attach or )?mount volumes",
     _R.STORAGE_IO),
    (r"(NodeLost|NodeNotReady|Node is not ready|stopped posting node status|node.*unreachable"
     r"|TaintManagerEviction|has been rebooted|NodeHasUnknownStatus|hostError)", _R.NODE_FAILURE),
)  # fmt: skip

# Conditions that the kubelet sets once it has ended the containers: a second or so after their end.
REPORTED_LATE = re.compile(r"TerminationByKubelet|/Evicted\b", re.IGNORECASE)

# What keeps a pod from starting is over once it has started.
BEFORE_THE_START = frozenset({_R.SCHEDULING_TIMEOUT, _R.IMAGE_PULL})

REFUSED_STARTS = {
    ENVIRONMENT_DIFFERS: _R.DEPENDENCY_MISMATCH,
    CHECKPOINT_WITHDRAWN: _R.CHECKPOINT_CORRUPT,
    SOURCE_QUARANTINED: _R.USER_CANCELLED,  # a person's word, and no budget's matter
    SNAPSHOT_QUARANTINED: _R.BAD_INPUT_DATA,
}

SLURM_STATES = _words(
    (r"^\W*PREEMPTED", _R.PREEMPTED),
    (r"^\W*(NODE_FAIL|BOOT_FAIL)", _R.NODE_FAILURE),
    (r"^\W*(TIMEOUT|DEADLINE)", _R.WALLTIME_TIMEOUT),
    (r"^\W*OUT_OF_ME", _R.HOST_OOM),
    # Another cluster of a federation started the job in its place: nothing of it ran here.
    (r"^\W*(PENDING|REVOKED)", _R.SCHEDULING_TIMEOUT),
)
SLURM_CANCELLED = re.compile(r"^\W*CANCELLED", re.IGNORECASE)

# Lines that a scheduler leaves in a job's own log, each with its author's mark at its beginning.
_SLURM = r"^(slurm(step)?d\S*|srun|sbatch): (error: )?"
SCHEDULER_LINES = _words(
    (rf"{_SLURM}\*{{3}} .{{0,80}}CANCELLED.{{0,120}}DUE TO PREEMPTION", _R.PREEMPTED),
    (rf"{_SLURM}\*{{3}} .{{0,80}}CANCELLED.{{0,120}}DUE TO (TIME LIMIT|JOB TIME)",
     _R.WALLTIME_TIMEOUT),
    (rf"{_SLURM}\*{{3}} .{{0,80}}CANCELLED.{{0,120}}DUE TO NODE FAILURE|^srun: error: Node failure",
     _R.NODE_FAILURE),
    (r"^(slurm(step)?d\S*|srun|sbatch): error: .{0,120}(oom[-_ ]kill|Out Of Memory)", _R.HOST_OOM),
    # Where Slurm counts itself, without cgroups, the job's state is FAILED.
    (rf"{_SLURM}(.{{0,60}} )?exceeded (job |step )?memory limit", _R.HOST_OOM),
    (r"^(=>> )?PBS: job killed: .{0,20}walltime", _R.WALLTIME_TIMEOUT),
    (r"^(=>> )?PBS: job killed: .{0,20}mem", _R.HOST_OOM),
    (r"^TERM_(RUNLIMIT|CPULIMIT|DEADLINE|WINDOW): ", _R.WALLTIME_TIMEOUT),  # LSF
    (r"^TERM_(MEMLIMIT|SWAP): ", _R.HOST_OOM),
    (r"^TERM_PREEMPT: ", _R.PREEMPTED),
)  # fmt: skip
# The job that a line of Slurm is about, and what a log says of its own.
LINE_OF_JOB = re.compile(r"\*{3} (?:JOB|STEP) (\d+)", re.IGNORECASE)
OWN_JOB = re.compile(
    r"\bSLURM_(?:ARRAY_)?JOB_?ID\W{1,4}(\d+)|\bjob (\d+) has been allocated resources"
    r"|^Submitted batch job (\d+)",
    re.IGNORECASE,
)
# States in which Slurm leaves a job that failed of itself, or did not.
SLURM_OWN_ENDS = re.compile(r"^\W*(FAILED|COMPLETED|OUT_OF_ME)", re.IGNORECASE)
JOB_CANCELLED = re.compile(r"(JOB|STEP) \S+ ON \S+ CANCELLED(?!.{0,120}DUE TO)", re.IGNORECASE)
TASK_FAILED = re.compile(
    r"srun: error: .{0,80}\btasks? [\d,\-\[\] ]+"
    r": (Exited|Bus error|Segmentation|Abort|Illegal|Floating)",
    re.IGNORECASE,
)
WARNED = re.compile(r"submitit.{0,80}Caught signal|\bSIGUSR[12]\b", re.IGNORECASE)
HAS_TIME_LEFT = re.compile(r"submitit.{0,80}\bJob has not timed out\b", re.IGNORECASE)
REQUEUED = re.compile(
    r"DUE TO JOB REQUEUE|scontrol requeue|requeu(e|ed|ing) (the |this )?job", re.IGNORECASE
)
DUE_TO = re.compile(r"CANCELLED.{0,120}DUE TO", re.IGNORECASE)

# Xids that blame the device, not the program that used it: NVIDIA's catalogue of Xid errors.
# 13, 31, 43 and 45 follow from a program's own fault or from another Xid.
HARDWARE_XIDS = frozenset(
    {46, 48, 61, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 121, 136, 140, 143}
    | set(range(144, 151))
    | {154}
)
XID = re.compile(
    r"\bXid(?:\s*\([^)]*\))?[\s:=#]{0,4}(?:error|code|id)?s?[\s:=#]{0,4}(\d{1,3})\b"
    r"(?:.*previous Xid (\d+))?",
    re.IGNORECASE,
)
# Which device a line of the kernel is about, and the line by which the gang's parent names that one.
PCI = re.compile(r"\(PCI:([0-9a-fA-F:.]{7,20})\)")
IS_DEVICE = re.compile(r"^PCI:([0-9a-fA-F:.]{7,20}) is (GPU-[0-9A-Za-z-]{1,80})$")
HARDWARE_LINES = re.compile(
    r"SXid \([^)]*\): \d+, Fatal|GPU has fallen off the bus"
    r"|uncorrectable (ECC|NVLink) error(?!s?\s?[:=]\s?0)"
    r"|amdgpu\b.{0,60}(uncorrectable|\[Hardware Error\])",
    re.IGNORECASE,
)
# What the kernel's own line has where a log repeats it; "uncorrectable error" may be anybody's word.
KERNEL_MARK = re.compile(r"\bS?Xid\b|\bNVRM\b|\bamdgpu\b", re.IGNORECASE)
MACHINE_LINES = re.compile(r"\[Hardware Error\]|\bmce: |Kernel panic|Machine check", re.IGNORECASE)
OOM_KILLER = re.compile(
    r"(Out of memory|Memory cgroup out of memory): Kill|oom-kill:|invoked oom-killer|OOMKilling"
    r"|\b(systemd-oomd|earlyoom)\b.{0,80}\b(kill|SIGTERM|SIGKILL)",
    re.IGNORECASE,
)
CANCELLED_STATUS = re.compile(r"cancell?(ed|ing)", re.IGNORECASE)
