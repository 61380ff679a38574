"""Why an attempt ended: stable names, in families, with a sentence each.

The names are stored in records and in the ledger and never change their meaning. Which evidence leads
to which reason is `classify`'s work; what follows from a reason is the retry policy's.
"""

from __future__ import annotations

from enum import StrEnum


class ReasonFamily(StrEnum):
    """What kind of thing a reason blames."""

    AS_MEANT = "ended as meant"
    CAPACITY = "capacity"
    HARDWARE = "hardware and fabric"
    COORDINATION = "coordination"
    MEMORY = "memory and disk"
    NUMERICS = "numerics and data"
    SOFTWARE = "software"
    RECORD = "the record itself"
    UNKNOWN = "unknown"


class TerminationReason(StrEnum):
    """Why an attempt ended. No attempt closes as a bare "failed"."""

    COMPLETED = "completed"
    EARLY_STOPPED = "early_stopped"
    USER_CANCELLED = "user_cancelled"
    BUDGET_EXHAUSTED = "budget_exhausted"
    FENCED = "fenced"

    PREEMPTED = "preempted"
    NODE_DRAINED = "node_drained"
    SCHEDULING_TIMEOUT = "scheduling_timeout"
    WALLTIME_TIMEOUT = "walltime_timeout"

    NODE_FAILURE = "node_failure"
    GPU_HARDWARE = "gpu_hardware"
    NETWORK_FABRIC = "network_fabric"
    STORAGE_IO = "storage_io"
    SILENT_CORRUPTION = "silent_corruption"

    HANG = "hang"
    RANK_LOST_SECONDARY = "rank_lost_secondary"
    ORCHESTRATOR_LOST = "orchestrator_lost"

    GPU_OOM = "gpu_oom"
    HOST_OOM = "host_oom"
    SHM_EXHAUSTED = "shm_exhausted"
    DISK_FULL = "disk_full"

    NAN_LOSS = "nan_loss"
    LOSS_DIVERGENCE = "loss_divergence"
    BAD_INPUT_DATA = "bad_input_data"
    DATA_LOADER_STALL = "data_loader_stall"

    CONFIG_ERROR = "config_error"
    CODE_ERROR = "code_error"
    DEPENDENCY_MISMATCH = "dependency_mismatch"
    PERMISSION_DENIED = "permission_denied"
    IMAGE_PULL = "image_pull"
    NATIVE_CRASH = "native_crash"

    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    CHECKPOINT_WRITE_FAILED = "checkpoint_write_failed"
    EVALUATOR_ERROR = "evaluator_error"

    UNKNOWN = "unknown"

    @property
    def family(self) -> ReasonFamily:
        """The family that this reason belongs to."""
        return _FAMILIES[self]

    @property
    def sentence(self) -> str:
        """One sentence for people: what this reason means."""
        return _SENTENCES[self]


_R = TerminationReason

_FAMILIES: dict[TerminationReason, ReasonFamily] = {
    reason: family
    for family, reasons in {
        ReasonFamily.AS_MEANT: (
            _R.COMPLETED,
            _R.EARLY_STOPPED,
            _R.USER_CANCELLED,
            _R.BUDGET_EXHAUSTED,
            _R.FENCED,
        ),
        ReasonFamily.CAPACITY: (
            _R.PREEMPTED,
            _R.NODE_DRAINED,
            _R.SCHEDULING_TIMEOUT,
            _R.WALLTIME_TIMEOUT,
        ),
        ReasonFamily.HARDWARE: (
            _R.NODE_FAILURE,
            _R.GPU_HARDWARE,
            _R.NETWORK_FABRIC,
            _R.STORAGE_IO,
            _R.SILENT_CORRUPTION,
        ),
        ReasonFamily.COORDINATION: (_R.HANG, _R.RANK_LOST_SECONDARY, _R.ORCHESTRATOR_LOST),
        ReasonFamily.MEMORY: (_R.GPU_OOM, _R.HOST_OOM, _R.SHM_EXHAUSTED, _R.DISK_FULL),
        ReasonFamily.NUMERICS: (
            _R.NAN_LOSS,
            _R.LOSS_DIVERGENCE,
            _R.BAD_INPUT_DATA,
            _R.DATA_LOADER_STALL,
        ),
        ReasonFamily.SOFTWARE: (
            _R.CONFIG_ERROR,
            _R.CODE_ERROR,
            _R.DEPENDENCY_MISMATCH,
            _R.PERMISSION_DENIED,
            _R.IMAGE_PULL,
            _R.NATIVE_CRASH,
        ),
        ReasonFamily.RECORD: (
            _R.CHECKPOINT_CORRUPT,
            _R.CHECKPOINT_WRITE_FAILED,
            _R.EVALUATOR_ERROR,
        ),
        ReasonFamily.UNKNOWN: (_R.UNKNOWN,),
    }.items()
    for reason in reasons
}

_SENTENCES: dict[TerminationReason, str] = {
    _R.COMPLETED: "The attempt reached the last step it was asked for.",
    _R.EARLY_STOPPED: "The attempt stopped because its stopping rule was met.",
    _R.USER_CANCELLED: "A person ended the attempt.",
    _R.BUDGET_EXHAUSTED: "The run's device-hours or money were used up while the attempt was running.",
    _R.FENCED: "A launch found a newer one in the track and gave way; it ends no attempt.",
    _R.PREEMPTED: "The machine was taken for work of higher priority.",
    _R.NODE_DRAINED: "The node was emptied on purpose, for maintenance or scaling.",
    _R.SCHEDULING_TIMEOUT: "No machine that meets the request was found in time.",
    _R.WALLTIME_TIMEOUT: "The time limit of the job was reached.",
    _R.NODE_FAILURE: "The node died, rebooted or could not be reached.",
    _R.GPU_HARDWARE: "A device reported a hardware fault.",
    _R.NETWORK_FABRIC: "The network between the ranks failed.",
    _R.STORAGE_IO: "Reading or writing storage failed.",
    _R.SILENT_CORRUPTION: "A device computed wrong numbers without reporting a fault.",
    _R.HANG: "No step was finished for longer than the limit, with every rank alive.",
    _R.RANK_LOST_SECONDARY: "A rank ended because another had ended before it.",
    _R.ORCHESTRATOR_LOST: "The supervising process was lost; the training itself did not fail.",
    _R.GPU_OOM: "A device ran out of memory.",
    _R.HOST_OOM: "The host, or the container's limit, ran out of memory.",
    _R.SHM_EXHAUSTED: "Shared memory was used up, most often by data-loader workers.",
    _R.DISK_FULL: "No space was left on a disk that the attempt writes to.",
    _R.NAN_LOSS: "The loss became NaN or infinite.",
    _R.LOSS_DIVERGENCE: "The loss grew far beyond its recent range.",
    _R.BAD_INPUT_DATA: "A sample could not be read or broke the data's contract.",
    _R.DATA_LOADER_STALL: "The data loader stopped delivering.",
    _R.CONFIG_ERROR: "The configuration is wrong; the same configuration fails again.",
    _R.CODE_ERROR: "The training code raised an error, which the same code most often raises again.",
    _R.DEPENDENCY_MISMATCH: "A library is missing or has another version than the run needs.",
    _R.PERMISSION_DENIED: "A credential or permission was refused.",
    _R.IMAGE_PULL: "The container image could not be pulled.",
    _R.NATIVE_CRASH: "Native code crashed (a segmentation fault, an abort).",
    _R.CHECKPOINT_CORRUPT: "A checkpoint's bytes do not have the hash that its manifest names.",
    _R.CHECKPOINT_WRITE_FAILED: "The last save of the attempt failed.",
    _R.EVALUATOR_ERROR: "The evaluation failed; the training it looked at did not.",
    _R.UNKNOWN: "The evidence does not tell why the attempt ended.",
}
