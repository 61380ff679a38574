"""What the body of each kind of record holds, as frozen dataclasses.

`body_json` turns them into JSON and back. Times inside bodies are text as `records.format_time` writes
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracks_dagster.track.names import STAGES
from tracks_dagster.track.records import Json
from tracks_dagster.track.samples import SampleOrder
from tracks_dagster.track.states.checkpoints import CheckpointRef

# The fields that hold words: of a person, of a log, of an exception. They are cleaned of secrets before
# they are stored, and so are those of a declaration (`declared_fields.WORDS`); every other text names
# something.
WORDS = frozenset(
    {
        "why",
        "by",
        "text",
        "decision",
        "decided_by",
        "closed_by",
        "message",
    }
    | {"root_message", "lines", "what_to_do", "fallback_why", "description", "called"}
    | {"data_state", "inexact", "changed", "in_use"}
    | {"avoided_nodes", "checks", "origin"}
    | {"findings", "scope", "filter"}
)

# --- what a run is made of ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRef:
    """One committed snapshot of a dataset; `snapshot_id` is the sha256 of its manifest's bytes."""

    dataset: str
    snapshot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The code's version. `branch` is None on a detached HEAD; all None outside a checkout.

    diff_sha256: of the stored diff (`track.code_diff_key`) of what the commit lacks, where it is kept.
    """

    git_commit: str | None
    branch: str | None
    dirty: bool | None
    package_version: str
    diff_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What each rank starts, in the folder of the stored code.

    entry: a script, `-m` and a module, or a program, with arguments; `{key}` stands for the config's
    value and `{config}` for `config_name`, a file that is made with all of them (None: none is).
    python: the interpreter; None for the one of `tracks`. by_files: it knows nothing of attempts and
    speaks by files and exit codes, to a parent of ours (`training.projects.command`).
    replay_steps: how many steps it trains on after the checkpoint of a SIGTERM, before it ends; the
    next attempt runs them again, so that their losses can be compared. watch: which files that it
    writes are its checkpoints, where it publishes none (`training.projects.watched`). takes_any_key:
    whether its config may get keys that it lacks, as that of a script without a project file may.
    """

    entry: tuple[str, ...]
    config_name: str | None = None
    python: str | None = None
    by_files: bool = False
    replay_steps: int = 0
    takes_any_key: bool = True
    watch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRequest:
    """What an attempt asks a launcher for.

    ranks: processes, one device each. pool: the compute pool to run in; None: the launcher's own.
    What follows concerns a cluster, and overrides what its settings say. ranks_per_node: processes of
    each node or pod, a divisor of `ranks`; memory_bytes, cpus: of each; queue: Kueue's local queue, or
    Slurm's partition; priority_class: of pods, or Slurm's QOS. Of Kubernetes alone: node_selector:
    labels of a node; tolerations: as in a pod's spec; topology_key: the node label of which all pods
    have to share one value. Of Slurm alone: slurm: by name what its job asks for beside that; an empty
    word: what no setting says.
    """

    launcher: str = "local"
    ranks: int = 1
    device_class: str = "cpu"
    memory_bytes: int | None = None
    excluded_nodes: tuple[str, ...] = ()
    pool: str | None = None
    ranks_per_node: int = 1
    cpus: float | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Json], ...] = ()
    priority_class: str | None = None
    topology_key: str | None = None
    queue: str | None = None
    slurm: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCadence:
    """Save every N steps or T seconds, whichever comes first; None switches one of the two off."""

    every_steps: int | None = None
    every_s: float | None = None


DIRECTIONS = ("min", "max")  # of a metric: which of them is best
KEEP_MAX = 10_000  # checkpoints, of the last and of the best: more than any run commits
LOGGED_MAX = 1000  # things of `a.log` that one launch stores, by the policy as shipped
LOGGED_BYTES_MAX = 1024**3  # and their bytes
DELETE_AFTER_S_MAX = 366 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """Which checkpoints are kept when nothing pins them; all the others are superseded.

    keep_last: the newest K, 1 or more; keep_best: the best K by the commit's own `metric`
    (direction "min" or "max"), 0 or more; milestone_every_steps: every multiple of it, None for none.
    delete_after_s: seconds from the supersede decision to the deletion, 0 or more.
    """

    keep_last: int = 3
    keep_best: int = 1
    metric: str = "loss"
    direction: str = "min"
    milestone_every_steps: int | None = None
    delete_after_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRequirement:
    """An eval of the final checkpoint, which the run waits for.

    is_required: it must be done, or waived in words, before the run is over; one that is not is tried
    once. program: what measures, from the stored code: a file with a function `evaluate`, or a command
    that prints metrics; None: the suite of an older version's family. snapshot: None where it reads no
    data of ours. every: also of each so many commits while training goes on; None: of none. timeout_s:
    how long one try may take; None: as long as the evaluator allows. needs_device: without, it sees no
    accelerator and waits for none. of: the suite whose files it scores, in the place of a checkpoint's;
    due once that has completed on the checkpoint with the same seed.
    """

    suite: str
    suite_version: str
    snapshot: SnapshotRef | None
    seed: int
    program: Program | None = None
    every: int | None = None
    is_required: bool = True
    timeout_s: float | None = None
    needs_device: bool = True
    of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRule:
    """Give `alias` to the final checkpoint when `metric` of `suite` meets `threshold`.

    direction: "min" (metric at most threshold) or "max" (at least). better_by: it must also be better
    than that of the checkpoint that has the alias, by so much or more; None: it is not compared.
    """

    alias: str
    suite: str
    metric: str
    direction: str
    threshold: float
    better_by: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A fault played on purpose. step: 1-based step it fires at (0: before the first).

    rank: whom it concerns, None: as its kind has it; how: the kind of hang; steps: how long a spike
    lasts; factor: how many times as long what it slows down takes.
    """

    kind: str
    step: int
    grace_s: float = 30.0
    micro_batch_max: int | None = None
    rank: int | None = None
    how: str = ""
    steps: int = 1
    factor: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedGates:
    """What its stage needs and a person let it be declared without."""

    gates: tuple[str, ...]
    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDeclared:
    """`run_declared`: the whole intent of a training run, before its first attempt.

    model_family: the project's name. config: flat, by key JSON scalars and lists of them;
    `micro_batch × accumulation × ranks == global_batch` of the keys that have these `roles`
    (`track.roles`). snapshot: None where no snapshot was named.
    folder: of the project, where it was declared; None of older versions.
    trainer: the key of the stored code, which `program` starts. Of runs of older versions there is no
    program: "family" for a family that shipped, or the key of one script.
    estimated_device_s: device seconds that an undisturbed run is expected to take; None where its
    config names no number of steps.
    branched_from: the checkpoint of another run that this one continues; pinned in that run's
    track, as "branch:<run_id>", before this record was written.
    environment: what its gang was to find when it was declared, by name. gate_key: sha256 of code,
    config, data and environment (`attempts.gates`); None of older versions, and of a run with drills,
    which shows nothing. passed_gates: what its stage needs, by the run or certificate that showed it;
    skipped: what it was declared without. max_device_s: how long each of its devices may work, over all
    attempts; None: no limit.
    sample_order: of the samples from step 0 on; a resumed attempt keeps the order of its checkpoint.
    workload_class: of the policy's classes; None: the policy's default.
    expect: what its owner expects of it, in words; asked of a run that costs much more than its source.
    max_cost: the money that it may cost, in the price table's currency; None: no cap.
    on_call: whom to call when it needs a person. experiment: the question that it belongs to, by name;
    baseline: the run of it that this one is compared with, None for the first of all.
    required_artifacts, required_signals: what the policy asked then of a valid run
    (`track.states.validity`). media_items, media_size_bytes: how much of `a.log` it allowed one launch.
    """

    run_id: str
    model_family: str
    config: Mapping[str, Json]
    snapshot: SnapshotRef | None
    code: CodeVersion
    owner: str
    team: str
    stage: str
    intent: str
    compute: ComputeRequest
    cadence: CheckpointCadence
    estimated_device_s: float | None
    evals: tuple[EvalRequirement, ...] = ()
    promotion: PromotionRule | None = None
    drills: tuple[Drill, ...] = ()
    trainer: str = "family"
    retention: RetentionRule = RetentionRule()
    branched_from: CheckpointRef | None = None
    sample_order: str = SampleOrder.SORTED.value
    program: Program | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    environment: Mapping[str, Json] = field(default_factory=dict)
    gate_key: str | None = None
    passed_gates: Mapping[str, str] = field(default_factory=dict)
    skipped: SkippedGates | None = None
    max_device_s: float | None = None
    workload_class: str | None = None
    expect: str | None = None
    max_cost: float | None = None
    on_call: str | None = None
    experiment: str | None = None
    baseline: str | None = None
    required_artifacts: tuple[str, ...] = ()
    required_signals: tuple[str, ...] = ()
    media_items: int = LOGGED_MAX
    media_size_bytes: int = LOGGED_BYTES_MAX

    def __post_init__(self) -> None:
        """Read the snapshot that notebooks of older versions named, "none", as none."""
        _forget_no_dataset(self)


# --- an attempt -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Debit:
    """What an opened attempt costs. amount is 0 for what is free, with `why`."""

    reason: str
    amount: float
    fingerprint: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One changed key of the config, and why."""

    key: str
    before: Json
    after: Json
    why: str


FIRST = "first"
AUTOMATIC = "retry"  # the cause of an attempt that the policy opened
MANUAL = "manual_retry"  # a person asked for it: never a debit


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOpened:
    """`attempt_opened`: decision, debit and remediation in one record.

    cause: FIRST, AUTOMATIC (then the debit is there) or MANUAL.
    decided_by: the sensor's or the person's name. decision: one or two sentences; counted_seqs: the
    records that the decision counted.
    config: the whole config of this attempt, as remedied. cadence: how often it saves, as remedied;
    None: as the run was declared.
    allows_environment_change: a person lets it resume with other libraries than those that wrote the
    checkpoint; a retry from the same checkpoint keeps that.
    avoided_nodes: those of `compute.excluded_nodes` that are excluded for this attempt alone, because
    they were in quarantine when it was opened, each with the reason.
    trainer, program, code: what it runs, which a person gave, and the checkout that it is of; None:
    as the run was declared.
    max_cost: the money that the run may cost from now on, which a person gave; None: as before.
    """

    cause: str
    decided_by: str
    decision: str
    config: Mapping[str, Json]
    compute: ComputeRequest
    snapshot: SnapshotRef | None
    resume: CheckpointRef | None
    debit: Debit | None = None
    remediation: tuple[ConfigChange, ...] = ()
    counted_seqs: tuple[int, ...] = ()
    policy_version: str = ""
    allows_environment_change: bool = False
    cadence: CheckpointCadence | None = None
    avoided_nodes: Mapping[str, str] = field(default_factory=dict)
    trainer: str | None = None
    program: Program | None = None
    code: CodeVersion | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        """As of `RunDeclared`."""
        _forget_no_dataset(self)


def _forget_no_dataset(body: RunDeclared | AttemptOpened) -> None:
    if body.snapshot is not None and body.snapshot.dataset == "none":
        object.__setattr__(body, "snapshot", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevices:
    """The devices of this machine that something was given to run on, by name. seq: of the lease's
    record in the track of `pool`; why: these and now, in its words."""

    pool: str
    seq: int
    devices: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSupervised:
    """`attempt_supervised`: a Dagster run claims the attempt; only the newest claim may act.

    pid, pid_started, boot_id: the claiming process, as of `RankPlace`; None where it was not recorded.
    held: the devices of its gang, whose lease is confirmed; None without one, and where they are not
    this machine's to give. lets_go: the Dagster run ends once the gang is started, and leaves it to the
    sensor `watch_attempts`.
    """

    dagster_run_id: str
    host: str
    pid: int | None = None
    pid_started: float | None = None
    boot_id: str | None = None
    held: HeldDevices | None = None
    lets_go: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where one rank runs. `device` is "cpu" or the GPU's UUID; `pid_started` tells pids apart.

    pod: its name on Kubernetes, where pid and boot_id are those that the rank sees in its container.
    """

    rank: int
    node: str
    pid: int
    pid_started: float
    boot_id: str
    device: str
    accelerator: str
    pod: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlaced:
    """`attempt_placed`: rank 0 of a launch has its gang together. At most one per attempt.

    ranks: by rank; of a gang too large for a record only rank 0's. Then pod_nodes has the node of
    each pod, and places_sha256 names the object with all places (`track.placement`).
    environment: versions of python, torch, numpy, the platform, and code_sha256 of the training
    code; environment_sha256: of these versions. packages_sha256: of the stored list of all packages of
    the ranks' interpreter (`track.packages_key`).
    asked: of the cluster's queue and scheduler, by the gang's manifest; granted: what they say they
    gave. Both are empty on one machine.
    """

    launch_id: str
    world_size: int
    ranks: tuple[RankPlace, ...]
    image: str | None
    environment: Mapping[str, Json]
    environment_sha256: str
    pod_nodes: tuple[str, ...] = ()
    places_sha256: str | None = None
    packages_sha256: str | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    granted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRestored:
    """`attempt_restored`: what the launch really restored; `step` is 0 when it restored nothing.

    fallback_why is set when that differs from what the attempt was opened with. cursor: as in
    `checkpoint_committed`. inexact: what the framework of the script cannot restore exactly, and why.
    changed: what optimizers and schedules were built with otherwise than for the checkpoint, a sentence
    each; in_use: their numbers as the first step began, None where a framework has them.
    """

    launch_id: str
    step: int
    checkpoint: CheckpointRef | None
    cursor: int | None
    fallback_why: str | None = None
    inexact: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    in_use: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpent:
    """Seconds of a launch from its first step on, by rank 0's monotonic clock; no second counts twice.

    steps_s: from a step's data to its report, the exchange between ranks included; data_s: waiting for
    data; saving_s: training waited for a save; eval_s: evaluations inside the loop.
    """

    steps_s: float = 0.0
    data_s: float = 0.0
    saving_s: float = 0.0
    eval_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The most memory that a rank took, in bytes; None: not known.

    device_bytes: what torch had in use on its GPU, reserved_bytes: what its allocator held there,
    total_bytes: of that GPU; None on a CPU. host_bytes: of its process, resident; host_base_bytes: of
    that, before the script had built anything: the interpreter and its libraries.
    """

    device_bytes: int | None = None
    reserved_bytes: int | None = None
    total_bytes: int | None = None
    host_bytes: int | None = None
    host_base_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """`checkpoint_committed`: this record is the commit; nothing else makes a checkpoint real.

    cursor: how much of the order of samples all ranks have consumed, or passed over by a skip window;
    None where the order is the script's own; pass_samples: how many of it are one pass over the data,
    None there and of older versions. epoch: passes over the data; None: unknown. data_state:
    where its loader then says that it stands (rank 0's numbers); None: unknown.
    trigger: "interval", "time", "demand" (the script or SIGUSR1 asked), "sigterm" or "final".
    total_bytes: of the tensors or files; written_bytes: new chunks. blocking_s: how long training
    waited.
    spent: what the launch had spent when the committed step was done, before this save.
    non_finite: names of metrics of the step whose value is not finite, which metrics have not.
    kind: "tensors", or "files" of a folder that the script wrote itself.
    """

    launch_id: str
    ref: CheckpointRef
    cursor: int | None
    epoch: int | None
    trigger: str
    total_bytes: int
    written_bytes: int
    blocking_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    spent: TimeSpent | None = None
    data_state: str | None = None
    kind: str = "tensors"
    pass_samples: int | None = None
    non_finite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """`attempt_ended`: the verdict, what it rests on, and what was measured.

    evidence_key, evidence_sha256: the stored evidence; lines: what decided, shortened.
    device_seconds: devices times seconds, from each rank's start to its end. devices: that its place
    counted (Slurm's AllocTRES); None: it did not, and each rank counts as one.
    last_step: the last step that it finished, None without one.
    first_line_ran: whether any rank ran its first line (an attempt without is free).
    onset_step: the step at which the numbers went wrong (NaN, spike, divergence), None otherwise.
    blamed_node: the node of the rank that failed first, or that was rebooted; None: not known.
    blamed_device: the device that a fault of hardware is held against, by its UUID or name.
    spent: what the launch had spent by the newest journal line that has it; last_stepped_at:
    when its last step was done. memory: of the rank that took most, figure by figure, by the newest
    lines of the journals. differs_from_step: the first step that it ran again, after its resume, with
    another loss than an attempt before it; None where none differed, or none could be compared.
    logs: rank → sha256 of its stored log (`track.log_object`), of a large gang the first ranks; None of
    older versions. metrics: the newest values that it reported; metric_steps: the step of each, None
    where it was imported. Both None of older versions, whose commits have some.
    """

    reason: str
    confidence: float
    rule: str
    lines: tuple[str, ...]
    classifier_version: str
    evidence_key: str
    evidence_sha256: str
    device_seconds: float
    accelerator: str
    started_at: str | None
    finished_at: str | None
    last_step: int | None
    first_line_ran: bool
    root_message: str
    fingerprint: str
    closed_by: str
    cursor_from: int | None = None
    cursor_to: int | None = None
    onset_step: int | None = None
    blamed_node: str | None = None
    spent: TimeSpent | None = None
    last_stepped_at: str | None = None
    memory: MemoryPeak | None = None
    blamed_device: str | None = None
    differs_from_step: int | None = None
    logs: Mapping[str, str] | None = None
    devices: int | None = None
    metrics: Mapping[str, float] | None = None
    metric_steps: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReclassified:
    """`attempt_reclassified`: a later reading of an ended attempt; the debit moves with it."""

    reason: str
    confidence: float
    rule: str
    lines: tuple[str, ...]
    classifier_version: str
    evidence_sha256: str
    why: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRefused:
    """`retry_refused`: no automatic retry; names the limit and the records that exhausted it.

    limit: "reason", "fingerprint", "device_hours", "money", "stage_time", "never_started",
    "remediation" where nothing is left to change, "branch" where what the run branched from may not be
    resumed from, "snapshot" where the snapshot that it trains on is quarantined, "quarantine" where its
    code or all that it could resume from descends from a source that a person put in quarantine,
    "checkpoint" where one that decides cannot be read by this version, or "record" where what was
    decided fits no record.
    """

    reason: str
    limit: str
    decision: str
    counted_seqs: tuple[int, ...]
    what_to_do: str
    decided_by: str
    policy_version: str = ""


MOVE = "move"  # the mode of a stop that empties a node, or makes room for somebody else
SCHEDULER = "scheduler"  # who asks for the latter, by the rules of the queue
BUDGET = "budget"  # the mode of one that ends an attempt because a cap in money or time is reached


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """`stop_requested`: mode "stop" ends the run, "drain" only the open attempt, and the run waits for
    a person; MOVE ends the open attempt, and the run continues elsewhere by itself; BUDGET ends it as
    `budget_exhausted`, and why has the numbers."""

    by: str
    why: str
    mode: str


# --- checkpoints ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDecision:
    """`checkpoint_quarantined`, `_superseded`, `_deleted`, `_pinned`, `_unpinned`.

    pin: who holds it, for pins only: "hold:<person>" or "branch:<run_id>". Evals and promotions pin
    by their own records.
    chunks: keys that a deletion removes, beside the manifest. Where they are too many for a record,
    the object chunks_key lists them as a JSON array; its name holds its sha256.
    is_passed_over: of a quarantine, that a rollback only leaves it behind: nothing is known to be
    wrong with it, and existing branches may resume from it.
    """

    manifest_sha256: str
    by: str
    why: str
    pin: str | None = None
    chunks: tuple[str, ...] = ()
    chunks_key: str | None = None
    is_passed_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointVerified:
    """`checkpoint_verified`: every byte was read and had the hash that the manifest names.

    A fact about bytes that never change, appended like a note. total_bytes: how many were read.
    """

    manifest_sha256: str
    by: str
    total_bytes: int


# --- evals, promotion, the rest -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file that an eval left. name: its path below the eval's artifacts in the store."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredEval:
    """The completed attempt at an eval whose files a scorer scores. message: why files that it left
    were not kept, "" where all were."""

    eval_id: str
    number: int
    suite_version: str
    snapshot: SnapshotRef | None
    artifacts: tuple[Artifact, ...]
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtScorer:
    """What scores in an eval that the run did not declare, but a person brought later. code_key: of the
    stored code, a version of `code`; timeout_s: as of `EvalRequirement`."""

    program: Program
    code_key: str
    code: CodeVersion
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOpened:
    """`eval_opened`: one attempt at one eval. eval_id is "<suite>@<step>", number is 1-based.

    skipped: the steps whose own eval was due and is left out, because this commit is newer. scored: of
    a scorer, what it scores; brought: its code, where it is not the run's.
    """

    eval_id: str
    number: int
    checkpoint: CheckpointRef
    suite: str
    suite_version: str
    snapshot: SnapshotRef | None
    seed: int
    decision: str
    decided_by: str
    skipped: tuple[int, ...] = ()
    scored: ScoredEval | None = None
    brought: BroughtScorer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalEnded:
    """`eval_ended`: "completed" with metrics, or a termination reason with its evidence.

    sample_count: None where the eval did not say. seconds: "fetch" of checkpoint, data and code, and
    "evaluate", both measured by the evaluator; "load", "infer" and "score" as the eval itself says.
    held: the devices of this machine that it was given; None where it needed none, or they are not this
    machine's to give. memory: of a function's own process; None of a command.
    """

    eval_id: str
    number: int
    reason: str
    metrics: Mapping[str, float]
    sample_count: int | None
    environment: Mapping[str, Json]
    environment_sha256: str
    started_at: str
    finished_at: str
    device_seconds: float
    message: str = ""
    dagster_run_id: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    held: HeldDevices | None = None
    memory: MemoryPeak | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalWaived:
    """`eval_waived`: a person lets a required eval go, in words; or the study of a trial does, of one
    that is not tried again."""

    suite: str
    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionDecided:
    """`promotion_decided`: everything that the decision rests on; promoted False is a refusal.

    snapshot: None where the eval reads no data of ours. is_withheld: refused for a source in
    quarantine, so decided again once that is released. holder, holder_value: the checkpoint that had
    the alias, and its metric; the value is None where that has no eval of the same suite, version,
    snapshot and seed. threshold: None of a run that was declared without a rule, whose checkpoint a
    person promoted; metric and direction are empty then, and what no eval measured. stop_cause: why
    training stopped there (`track.states.stop_cause`); None of older versions.
    """

    alias: str
    promoted: bool
    checkpoint: CheckpointRef
    eval_id: str
    eval_number: int
    suite: str
    suite_version: str
    snapshot: SnapshotRef | None
    seed: int
    environment_sha256: str
    metrics: Mapping[str, float]
    metric: str
    direction: str
    threshold: float | None
    decided_by: str
    why: str
    is_withheld: bool = False
    better_by: float | None = None
    holder: CheckpointRef | None = None
    holder_value: float | None = None
    stop_cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """`note`: words of a person or a part; data: what a program may want of it."""

    by: str
    text: str
    data: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLabelled:
    """`run_labelled`: how people find a run again. What is None or empty stays as it was.

    added, removed: of its tags. called: its name for people, "" for none. is_archived: whether tables
    leave it out; the next attempt brings it back.
    """

    by: str
    why: str = ""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    called: str | None = None
    is_archived: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """`alert`: something that a person should look at, once; it begins an episode.

    severity: "yellow" or "red"; light: the one of three that it colours, "healthy", "improving" or
    "resources"; both None of older versions, and where the table of rules says it. data: its
    numbers; `about` names what it concerns ("rank 5"), where the same rule may hold for several.
    """

    rule: str
    text: str
    data: Mapping[str, Json] = field(default_factory=dict)
    severity: str | None = None
    light: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCleared:
    """`alert_cleared`: the episode that record `alert_seq` of this track began is over."""

    rule: str
    alert_seq: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJudged:
    """`stage_judged`: whether a finished run shows what its stage is for; the newest one counts.

    why: with the numbers. Of a canary: first, last: the median losses of the first and last quarter of
    its steps; p: of the trend; None where there are too few.
    """

    stage: str
    passed: bool
    by: str
    why: str
    first: float | None = None
    last: float | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """`run_finished`: stop_cause is converged, step_budget, early_stop, cost_stop or user."""

    stop_cause: str
    why: str
    decided_by: str
    final: CheckpointRef | None


# --- a dataset's track ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDeclared:
    """`dataset_declared`: what the dataset is, once."""

    dataset: str
    description: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCommitted:
    """`snapshot_committed`: a snapshot that passed its checks.

    snapshot_id: sha256 of the manifest's stored bytes; manifest_key: where they lie;
    logical_sha256: of the rows' values in order, stable over Parquet writers; of files, of their paths
    and bytes. row_count: None of files, whose rows nobody counted; file_count: None of rows. in_place:
    the folder or s3:// prefix that holds the files, None when the store does. checks_sha256: of the
    file of one's own checks, stored beside the manifests.
    """

    dataset: str
    snapshot_id: str
    manifest_key: str
    row_count: int | None
    total_bytes: int
    shard_count: int
    logical_sha256: str
    source: str
    checks: tuple[str, ...]
    dagster_run_id: str | None = None
    file_count: int | None = None
    in_place: str | None = None
    checks_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDecision:
    """`snapshot_quarantined`, `snapshot_released`."""

    snapshot_id: str
    by: str
    why: str


# --- a compute pool's track -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStruck:
    """`node_struck`: an attempt ended for a fault of the node that its first failed rank ran on.

    struck_at: when the attempt ended. exposure_s: for how long attempts that ended inside the policy's
    window had run on the node, this one included; pool_exposure_s: the same over all nodes of the
    pool; pool_node_count: how many nodes these were.
    device: of the node, where the evidence names one; then these three are of the node's devices.
    """

    pool: str
    node: str
    run_id: str
    attempt_id: int
    reason: str
    struck_at: str
    exposure_s: float
    pool_exposure_s: float
    pool_node_count: int
    why: str
    by: str
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuarantined:
    """`node_quarantined`: no attempt is opened onto the node before `until_at`.

    counted_seqs: the strikes that a rule counted; empty for what a person decided. device: the one of
    the node that is given to nobody; None: the whole node.
    """

    pool: str
    node: str
    until_at: str
    by: str
    why: str
    counted_seqs: tuple[int, ...] = ()
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReleased:
    """`node_released`: a person ends the node's quarantine; strikes before it count no more.

    device: the same of one device of the node.
    """

    pool: str
    node: str
    by: str
    why: str
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesLeased:
    """`devices_leased`: devices of one machine are an attempt's, or an eval's, until it ends.

    All devices of a gang stand in one record, so nobody holds some and waits for the others. No record
    gives them back: the run's own track, in `store`, says when it ended.
    key: whose they are: RUN/aNN, or RUN/SUITE@STEP/N of one attempt at an eval. devices: UUIDs,
    "pretended:0" or "cpu:0"; memory_bytes: what it takes of each, measured and with a margin; None: it
    has them alone. freed: the earlier leases that this decision found to be over.
    workload_class, team, owner: of the run, for the rules of the queue of another home. work: the
    folder of its home's gangs, by which another home finds out whether it still lives.
    boot_id, machine_id: of the machine, empty where it does not tell.
    """

    pool: str
    key: str
    run_id: str
    devices: tuple[str, ...]
    store: str
    why: str
    by: str
    memory_bytes: int | None = None
    freed: tuple[int, ...] = ()
    workload_class: str = ""
    team: str = ""
    owner: str = ""
    work: str = ""
    boot_id: str = ""
    machine_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfirmed:
    """`lease_confirmed`: what the lease was given for starts now, so no time ends it any more.

    lease_seq: of its `devices_leased`.
    """

    pool: str
    lease_seq: int
    dagster_run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReleased:
    """`lease_released`: a person says that nothing of what has the lease runs, or ever will: nobody
    else can tell, as its run's track cannot be read. Who comes for the lease later starts nothing.

    lease_seq: of its `devices_leased`.
    """

    pool: str
    lease_seq: int
    by: str
    why: str


# --- the track of quarantines ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDecision:
    """`source_quarantined`, `source_released`: a person's word on what may not be built upon.

    source: exactly one thing, as `holds.lineage` writes it: `checkpoint:<manifest sha256>`,
    `attempt:RUN/aNN`, `node:NAME` or `code:COMMIT`. called: the same as people name it.
    """

    source: str
    called: str
    by: str
    why: str


# --- the track of muted alerts --------------------------------------------------------------------

ANY_RULE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class MuteDecision:
    """`alerts_muted`, `alerts_unmuted`: a person's word that alerts of a rule are sent to nobody.

    They are recorded anyway. rule: ANY_RULE for every one; run_id: None for every run. until_at:
    it ends then by itself; None of `alerts_unmuted`.
    """

    rule: str
    run_id: str | None
    by: str
    why: str
    until_at: str | None = None


# --- the track of saved views ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSaved:
    """`view_saved`: a table of all runs under a name, for everybody; the newest of a name counts.

    filter, order, columns, group: as `tracks runs` takes them; without columns those that it chooses.
    """

    name: str
    by: str
    filter: str = ""
    order: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRemoved:
    """`view_removed`: nobody is offered that view any more, until one is saved under its name."""

    name: str
    by: str
    why: str


# --- a code's track -------------------------------------------------------------------------------

TESTS, CONFORM = "tests", "conform"
CERTIFIES = (TESTS, CONFORM)  # what a project's code can be certified by
GATES = (*CERTIFIES, *STAGES[:-1])  # what a stage may need


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCertified:
    """`code_certified`: a project's code, as it is stored with a run, was put to the test.

    what: TESTS, by the project's own, or CONFORM, by `tracks conform`. code_sha256: of the stored code.
    passed, failed: tests or trials; left_out: those that the caller did not let run. findings: names of
    what was found, with words. scope: what was run, in words. report_sha256: of the stored report
    (`track.certificate_report_key`); None where there is none. by: the person; where: the machine.
    """

    what: str
    code_sha256: str
    project: str
    passed: int
    failed: int
    by: str
    where: str
    left_out: int = 0
    findings: tuple[str, ...] = ()
    scope: str = ""
    report_sha256: str | None = None

    @property
    def is_green(self) -> bool:
        """Whether everything ran and passed."""
        return self.passed > 0 and not (self.failed or self.left_out or self.findings)


# --- projects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectStored:
    """`project_stored`: a version of a project, for everybody who has the store.

    code_sha256: of its files (`track.project_code_key`). code: the commit that they are of, and the
    diff beside it. by: the person or service; where: the machine. place: the folder there, or the
    address of a repository, without secrets, and what was asked of it.
    """

    project: str
    code_sha256: str
    code: CodeVersion
    by: str
    where: str
    place: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRemoved:
    """`project_removed`: nothing trains it by its name any more; its versions and runs stay."""

    project: str
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectScheduled:
    """`project_scheduled`: a home's tick takes a run of the project's schedule upon itself, so that no
    other home of the store declares it too.

    home: by its database (`Settings.database_id`); where: the machine.
    """

    project: str
    run_id: str
    home: str
    where: str


# --- the track of a history -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryImported:
    """`history_imported`: attempts that another system ran, as it tells them (`track.imported`).

    history: the name of the track. system: "slurm", "jsonl" …, with the version of its format where
    that is known. origin: the file, folder or command that was read. chunk_sha256: of the stored
    attempts, uids_sha256: of their identities (`history_chunk_key`, `history_uids_key`). first_run_id,
    last_run_id: of the runs in it, which are in order. by: the person.
    """

    history: str
    system: str
    origin: str
    chunk_sha256: str
    uids_sha256: str
    first_run_id: str
    last_run_id: str
    attempt_count: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesImported:
    """`nodes_imported`: what another system says of its nodes (`track.imported.ImportedNode`).

    nodes_sha256: of the stored rows (`history_nodes_key`); node_count: of the rows. Other fields: as
    of `HistoryImported`.
    """

    history: str
    system: str
    origin: str
    nodes_sha256: str
    node_count: int
    by: str


# --- a study's track ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDeclared:
    """`study_declared`: a search for the config with the best metric, under a budget.

    run: what every trial declares, but for its id, its steps and what `space` chooses; its `trainer` is
    the key of the study's own copy of the code. space: config key → how it is drawn
    (`studies.space`); constraints: expressions over these keys that every trial meets.
    metric: of the last commit's metrics, or SUITE/NAME of an eval; direction: "min" or "max". search,
    scheduler: their kind and its numbers (`studies.search`, `studies.schedulers`). budgets: after how
    many steps, from the start of the trial on, it is judged, ascending; the last is a whole trial.
    trials: how many configs. slots: how many of them may be open at once. max_device_hours, max_cost:
    of all trials together; None: no cap. repeat: {"best": how many of the best trials, "seeds": how
    often each is trained again from step 0, with other seeds}; empty: none. off_peak: the hours in
    which runs may start (`studies.off_peak`); empty: all.
    """

    study: str
    run: RunDeclared
    space: Mapping[str, Json]
    metric: str
    direction: str
    search: Mapping[str, Json]
    scheduler: Mapping[str, Json]
    budgets: tuple[int, ...]
    trials: int
    seed: int
    slots: int
    by: str
    constraints: tuple[str, ...] = ()
    max_device_hours: float | None = None
    max_cost: float | None = None
    repeat: Mapping[str, int] = field(default_factory=dict)
    off_peak: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyExtended:
    """`study_extended`: a person raises what the study may use, or sets other hours for it; a finished
    one goes on with it.

    None: as before. Nothing else of a study ever changes.
    """

    by: str
    why: str
    trials: int | None = None
    slots: int | None = None
    max_device_hours: float | None = None
    max_cost: float | None = None
    off_peak: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialProposed:
    """`trial_proposed`: a run of a trial, up to the next of the study's budgets.

    trial, rung: 0-based. config: of the keys of the space alone. steps: of the whole trial when the
    run ends. source: the committed checkpoint that it continues, its own or a better trial's; None:
    from step 0. The run is declared after this record, under `run_id`.
    repeat: 1 for the first time that a whole trial is trained again, with so much added to its seed;
    its rung is then counted on from the last budget's. None: not a repeat.
    """

    trial: int
    rung: int
    run_id: str
    config: Mapping[str, Json]
    steps: int
    why: str
    decided_by: str
    source: CheckpointRef | None = None
    repeat: int | None = None


MEASURED, NOT_A_NUMBER, FAILED = "measured", "not_a_number", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialJudged:
    """`trial_judged`: what the run of a rung came to.

    outcome: MEASURED with `value`; NOT_A_NUMBER, the worst that can be measured; or FAILED: refused,
    ended before its steps, or without the metric. checkpoint: where it ended; None where nothing was
    committed. device_s, cost: of all its attempts; cost None without a price table.
    """

    trial: int
    rung: int
    run_id: str
    outcome: str
    value: float | None
    checkpoint: CheckpointRef | None
    device_s: float
    why: str
    decided_by: str
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStopped:
    """`trial_stopped`: the scheduler gives the trial no further steps; why: with the numbers."""

    trial: int
    why: str
    decided_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyStopped:
    """`study_stopped`: a person ends the study; its open trials save and wait."""

    by: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFinished:
    """`study_finished`: cause is "complete", "device_hours", "money", "all_failed" or "user".

    best: the trial with the best value of those that have had most steps; None: none was measured.
    device_s, cost: of all runs by then, open ones too; None of older versions.
    """

    cause: str
    best: int | None
    why: str
    decided_by: str
    device_s: float | None = None
    cost: float | None = None
