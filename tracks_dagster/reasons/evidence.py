"""What is known about the end of an attempt, before anybody judges it.

The supervisor and the watcher gather it. It is stored whole as one object under the attempt and named
by sha256 in `attempt_ended`. `classify` reads nothing else. All of it is kept, also what the
verdict did not need. Text is already shortened and cleaned of secrets by the one who gathered it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracks_dagster.track.records import Json

# The type of the condition by which a gang is given up before it began; its supervisor closes it.
CANNOT_START = "GangCannotStart"
# The type of the condition by which a cluster refused to take a gang at all.
START_FAILED = "StartFailed"
UNREACHABLE = "Unreachable"  # its reason, where the same may be taken later

# The type of the condition by which a device that a rank had is not on its machine any more.
DEVICE_GONE = "DeviceGone"

# A last word's reason when a signal asked the rank to end. Who asked, and so the termination reason, is
# in the recorded intent or the conditions, never in the rank's word.
DRAINED = "drained"

# The type of a condition by which the supervisor refused to start a gang, and its reasons.
START_REFUSED = "StartRefused"
START_REFUSED_RULE = "start_refused"  # the rule of the classifier that finds it
# The rules by which a control plane, or a policy's own request, states an end of this very attempt.
RECORDED_RULES = frozenset({"stop_requested", "condition", "slurm_state"})
ENVIRONMENT_DIFFERS = "EnvironmentDiffers"
CHECKPOINT_WITHDRAWN = "CheckpointWithdrawn"
SOURCE_QUARANTINED = "SourceQuarantined"
SNAPSHOT_QUARANTINED = "SnapshotQuarantined"

LOG_TAIL_BYTES_MAX = 64 * 1024  # of each rank; the end of a log says why, the start says how


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Something a control plane said: type "DisruptionTarget", reason "PreemptionByScheduler"…

    source: "kubernetes", "kueue", "slurm", "drill" or "supervisor"; rank: None when it concerns the
    whole gang.
    """

    type: str
    reason: str
    message: str
    at: str | None
    source: str
    rank: int | None = None

    @property
    def text(self) -> str:
        """All of it in one line, as rules read it."""
        return f"{self.type}/{self.reason}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWord:
    """What a rank left when it could: `exit.json`.

    reason: a termination reason's value as the trainer saw it, "fenced" among them, or DRAINED.
    exception: qualified type name, or None; traceback_tail: its last lines.
    step: the last step finished; at: text time.
    onset_step: the step at which numerics went wrong, None where they did not.
    """

    rank: int
    reason: str
    exception: str | None
    message: str
    traceback_tail: str
    step: int | None
    at: str
    onset_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank's process ended. exit_code None and signal None: not known, or still running.

    exit_code: 0 to 255; signal: the POSIX number when a signal ended it (exit_code is None then).
    """

    rank: int
    exit_code: int | None = None
    signal: int | None = None
    started_at: str | None = None
    ended_at: str | None = None
    oom_killed: bool = False
    log_tail: str = ""
    last_word: LastWord | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the end of this rank is known."""
        return self.exit_code is not None or self.signal is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one attempt's end.

    stop: {"by", "why", "mode"} of a stop request; conditions: what control planes said;
    boot_ids: node → boot id now, of the nodes that were booted again since the attempt was placed;
    kernel_lines: Xid, ECC and OOM-killer lines; cgroup: memory events;
    dagster: {"dagster_run_id", "status", "message"} of the supervising run;
    vanished: the gang is gone and left neither exit codes nor words;
    allocated: what its place gave it, in Slurm's words (AllocTRES); None: not said.
    last_step: the last finished one; beats: rank → where it stood last, as far as it was seen.
    """

    run_id: str
    attempt_id: int
    launch_id: str | None
    ranks: tuple[RankEnd, ...]
    conditions: tuple[Condition, ...] = ()
    stop: Mapping[str, Json] | None = None
    boot_ids: Mapping[str, str] = field(default_factory=dict)
    kernel_lines: tuple[str, ...] = ()
    cgroup: Mapping[str, Json] = field(default_factory=dict)
    slurm_state: str | None = None
    dagster: Mapping[str, Json] | None = None
    vanished: bool = False
    started_at: str | None = None
    finished_at: str | None = None
    last_step: int | None = None
    last_heartbeat_at: str | None = None
    placed: bool = False
    drills_fired: tuple[str, ...] = ()
    beats: Mapping[str, str] = field(default_factory=dict)
    allocated: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why an attempt ended. confidence: 0 to 1; rule: the rule's name; lines: what decided.

    root_message: the root failure's message; `reasons.fingerprints` normalises it.
    against: what speaks against the verdict, in words, for the receipt.
    """

    reason: str
    confidence: float
    rule: str
    lines: tuple[str, ...]
    root_message: str
    against: tuple[str, ...] = ()
