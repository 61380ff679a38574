"""Names that several layers must agree on: tracks, jobs, sensors, partition sets, tags, keys.

Sensors may not import assets, so they name jobs and partitions by these strings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from tracks_dagster.track.errors import InvalidInput

# A run's id, to be used in larger patterns: 1 to 40 characters, a dot only between two others. So it
# is never a hidden file, never leads out of a folder, and never holds the "..." that Dagster refuses.
RUN_ID = r"[a-z0-9-](?:[a-z0-9-]|\.(?=[a-z0-9-])){0,39}"
RUN_ID_PATTERN = re.compile(RUN_ID)
_EVAL_ATTEMPT_KEY = re.compile(rf"(?P<run_id>{RUN_ID})/(?P<eval_id>[^/]*@[^/]*)/(?P<number>[0-9]+)")
PREFIX_CHARACTERS_MAX = 30
_PREFIX = re.compile(rf"[a-z][a-z0-9_]{{0,{PREFIX_CHARACTERS_MAX - 1}}}")
_ATTEMPT_KEY = re.compile(rf"(?P<run_id>{RUN_ID})/a(?P<number>0*[1-9][0-9]*)")

# How the names of tracks begin
RUNS = "runs/"
CODES = "codes/"
HISTORIES = "histories/"
DATASETS = "datasets/"
POOLS = "pools/"
STUDIES = "studies/"
LINEAGE = "lineage/"
PROJECTS = "projects/"
ALERTS = "alerts/"
VIEWS = "views/"
QUARANTINES_TRACK = f"{LINEAGE}quarantines"  # the only one of its kind
MUTES_TRACK = f"{ALERTS}mutes"  # likewise
VIEWS_TRACK = f"{VIEWS}saved"  # likewise
_NOT_IN_A_KEY = re.compile(r"[^A-Za-z0-9_@-]")

# Launchers, as `ComputeRequest.launcher` names them
LOCAL = "local"
IMPORTED = "imported"  # nothing of ours launched it: `track.imported`
ALONE = "script"  # as the family of a script outside an attempt, whose code nobody stored

# How serious a run is
STAGES = ("kitchen_sink", "smoke", "canary", "full")  # in the order to a full run

# Dagster jobs
TRAIN_ATTEMPT_JOB = "train_attempt"
EVALUATE_CHECKPOINT_JOB = "evaluate_checkpoint"
DECLARE_TRAINING_RUN_JOB = "declare_training_run"
COLLECT_CHECKPOINTS_JOB = "collect_checkpoints"
REVIEW_JOB = "review_incidents"
DRILL_JOB = "play_drills"
JOBS = (
    TRAIN_ATTEMPT_JOB,
    EVALUATE_CHECKPOINT_JOB,
    DECLARE_TRAINING_RUN_JOB,
    COLLECT_CHECKPOINTS_JOB,
    REVIEW_JOB,
    DRILL_JOB,
)

# Dagster schedules
COLLECT_CHECKPOINTS = "collect_checkpoints_every_15_minutes"
REVIEW_DAILY = "review_every_day"
DRILL_WEEKLY = "drill_every_week"

RETRAIN = "retrain_{}"  # of a project with a cron
SCHEDULE_OWNER = "schedule"  # of the runs that a project's schedule declares

# Dagster sensors
RETRAIN_ON_SNAPSHOT = "new_snapshot_retrains_{}"  # of a project that asks for new snapshots
RETRY_PREEMPTED = "retry_preempted"
RETRY_OOM = "retry_oom"
RETRY_NUMERICS = "retry_numerics"
RETRY_INFRASTRUCTURE = "retry_infrastructure"
WATCH_ATTEMPTS = "watch_attempts"
LAUNCH_ATTEMPTS = "launch_attempts"
RUN_EVALS = "run_evals"
SHOW_DATASETS = "show_datasets"
SHOW_STUDIES = "show_studies"
SEND_NOTIFICATIONS = "send_notifications"
WATCH_HEALTH = "watch_health"
TUNE_STUDIES = "tune_studies"
EXPORT_CURVES = "export_curves"  # of a home with a file of trackers

# Rules of alerts that others name
ALERT_SAVE_FAILED = "save_failed"
ALERT_POOL_STORM = "pool_storm"
ALERT_RETRY_STORM = "retry_storm"
ALERT_LOSS_SPIKE = "loss_spike"
ALERT_CHECKPOINT_UNREAD = "checkpoint_unread"
ALERT_FIRST_ATTEMPT_HELD = "first_attempt_held"
ALERT_NO_NODE_LEFT = "no_node_left"
ALERT_OBJECTIVE_MISSED = "objective_missed"
ALERT_DEVICE_UNHELD = "device_unheld"
ALERT_SLOW_RANK = "slow_rank"
ALERT_VALIDATION_FLAT = "validation_flat"
ALERT_STEP_TIME = "step_time"
ALERT_DATA_WAIT = "data_wait"
ALERT_DEVICE_UNDERUSED = "device_underused"

# Dagster partition sets (dynamic)
TRAINING_RUNS = "training_runs"  # whose materialization declares a run
ATTEMPT_PARTITIONS = "training_attempts"  # keys: <run_id>/a<NN>
RECEIPTS = "receipts"  # an asset with the same keys
CHECKPOINT_PARTITIONS = "checkpoints"  # keys: <run_id>/a<NN>/step-<step>
EVAL_PARTITIONS = "evals"  # keys: <run_id>/<eval_id>

STUDY_PARTITIONS = "studies"  # keys: names of studies; also the asset's name
DATASET_PARTITIONS = "datasets"  # keys: names of datasets of files; also the asset's name

# Dagster assets without partitions
PROMOTIONS = "promotions"

PROJECTS_GROUP = "projects"  # of what each project has of its own
TRAINING = "training"  # of a project: PROJECT/training, whose materialization declares a run of it
MODEL = "model"  # of a project: PROJECT/model, of another alias PROJECT/model/ALIAS

# Dagster assets with a partition a day
INCIDENT_REVIEW = "incident_review"

# Dagster asset checks
ENDED_AS_MEANT = "ended_as_meant"  # of each attempt
OWN_CHECKS = "own_checks_pass"  # of each snapshot of files
MEETS_ITS_RULE = "meets_its_rule"  # of a model: what its project's promotion asks for

# Dagster run tags
TAG_PROJECT = "tracks/project"  # of an asset too
TAG_TRAINING_RUN = "tracks/training_run_id"
TAG_ATTEMPT = "tracks/attempt"  # the attempt's partition key
TAG_EVAL = "tracks/eval"  # one attempt at an eval: <run_id>/<eval_id>/<number>
TAG_REASON = "tracks/termination_reason"
TAG_ENDING = "tracks/ending"  # failure, interruption or as_meant, as `reasons.endings` has it
TAG_LAUNCH = "tracks/launch"  # what the launch of a Dagster run met, in words
TAG_NO_DEVICES = "tracks/no_devices"  # it started nothing: its devices were given to somebody else
TAG_LEASE = "tracks/lease"  # the seq of the lease of its devices, in the track of their pool
TAG_NO_LEASE = "tracks/no_lease"  # of an eval that holds no device: nothing else limits how many
TAG_WORKER_REASON = "tracks/run_worker_reason"  # why the Dagster run's own worker ended
# What became of a run. Dagster copies all tags into a run that executes it again.
RESULT_TAGS = (TAG_REASON, TAG_ENDING, TAG_LAUNCH, TAG_NO_DEVICES, TAG_WORKER_REASON)
NO_RETRIES = {"dagster/max_retries": "0"}  # Dagster's own, where an instance retries runs by itself
# Dagster's own: it shows runs that name a root as its group.
TAG_PARENT_RUN = "dagster/parent_run_id"
TAG_ROOT_RUN = "dagster/root_run_id"
TAG_PRIORITY = (
    "dagster/priority"  # Dagster's own: of runs in its queue the greater one is the first
)
TAG_RUN_KEY = "dagster/run_key"  # Dagster's own, of a run that a sensor asked for
TAG_PARTITION = "dagster/partition"  # Dagster's own, on every run of a partition
TAG_DATA_VERSION = "dagster/data_version"  # Dagster's own, on an event: what its value is
# Dagster's own, on a receipt: made by this version of the code, of an attempt that has no
# materialization. Without them Dagster calls the receipt of each failed attempt out of date.
RECEIPT_CODE_VERSION = "1"


@dataclass(frozen=True, slots=True)
class Prefix:
    """How the names of one set of our definitions begin in Dagster; empty: they have no prefix.

    With it two sets, and a user's own definitions of the same words, live in one deployment. It begins
    names in Dagster alone, never one in a track. Raises InvalidInput for a text that cannot begin them.
    """

    text: str = ""

    def __post_init__(self) -> None:
        if self.text and not _PREFIX.fullmatch(self.text):
            raise InvalidInput(
                f"{self.text!r} cannot begin names in Dagster: use 1 to {PREFIX_CHARACTERS_MAX} of "
                "a-z, 0-9 and '_', a letter first."
            )

    def path(self, *parts: str) -> tuple[str, ...]:
        """Return the parts of an asset's key: `("ml", "evals")`."""
        return (self.text, *parts) if self.text else parts

    def name(self, name: str) -> str:
        """Return the name of a job, sensor, schedule, partition set or resource: `ml_evals`."""
        return f"{self.text}_{name}" if self.text else name

    def without(self, name: str) -> str | None:
        """Return what `name` was made of; None where it was made of nothing by this prefix."""
        begin = self.name("")
        return name.removeprefix(begin) if name.startswith(begin) else None

    def op(self, *parts: str) -> str:
        """Return the op of an asset, which its config is given under: `ml__evals`."""
        return dagster_name("__".join(self.path(*parts)))

    def page(self, *parts: str) -> str:
        """Return the page of an asset in Dagster's UI: `/assets/ml/evals`."""
        return "/".join(("/assets", *self.path(*parts)))

    @property
    def receipt_tags(self) -> dict[str, str]:
        """The tags of each receipt's materialization."""
        attempts = "/".join(self.path(ATTEMPT_PARTITIONS))
        return {
            "dagster/code_version": RECEIPT_CODE_VERSION,
            f"dagster/input_data_version/{attempts}": "NULL",
            f"dagster/input_event_pointer/{attempts}": "NULL",
        }


NO_PREFIX = Prefix()


def emptied(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that say what became of a run, emptied: one that begins has come to nothing yet.

    Dagster takes no tag away again.
    """
    return {name: "" for name in RESULT_TAGS if tags.get(name)}


# The launcher's environment for a rank, besides torchrun's own variables
ENV_STORE = "TRACKS_STORE"
ENV_RUN_ID = "TRACKS_RUN_ID"
ENV_ATTEMPT_ID = "TRACKS_ATTEMPT_ID"
ENV_OPENED_SEQ = "TRACKS_OPENED_SEQ"
ENV_WORK = "TRACKS_WORK"  # the gang's folder on this machine
ENV_CACHE = "TRACKS_CACHE"  # this machine's cache of snapshots of files; else in the gang's folder
ENV_RESUME_FOLDER = "TRACKS_RESUME_FOLDER"  # for a command that joins by files and exit codes
ENV_RESUME_STEP = "TRACKS_RESUME_STEP"
ENV_CHECKPOINTS = "TRACKS_CHECKPOINTS"
ENV_METRICS = "TRACKS_METRICS"
ENV_LEASED_DEVICES = "TRACKS_LEASED_DEVICES"  # what the gang or eval was given, by name
ENV_SIZE = "TRACKS_SIZE"  # the file of a sizing, in place of an attempt
ENV_OBSERVE = "TRACKS_OBSERVE"  # what `training.observing` is to write, and where, as JSON
TAKEN = "taken"  # beside the metrics of a command that is looked on: how many bytes were read
ENV_IMAGE = "TRACKS_IMAGE"  # the container image's digest, where there is one
ENV_ASKED = "TRACKS_ASKED"  # of the cluster's queue and scheduler: a mapping as JSON
ENV_CLUSTER_QUEUE = "TRACKS_CLUSTER_QUEUE"  # that admitted the pod, where Kueue says so
ENV_SWITCHES = "TRACKS_SWITCHES"  # of the gang's nodes, where Slurm says so: from the top one down
ENV_NODE = "TRACKS_NODE"  # the cluster's name of the node, where the host's name is the pod's
ENV_POD = "TRACKS_POD"
ENV_POD_UID = "TRACKS_POD_UID"

# A home's own, for its programs: how the names begin by which they find each other
ENV_SOCKETS = "TRACKS_SOCKETS"

# And for a pod, which starts the ranks of one node
ENV_INDEX = "JOB_COMPLETION_INDEX"  # Kubernetes' own, in every pod of an Indexed Job
ENV_COMMAND = "TRACKS_COMMAND"  # what each rank starts: a RankCommand as JSON
ENV_CODE_KEY = "TRACKS_CODE_KEY"  # of the code in the store
ENV_NODES = "TRACKS_NODES"
ENV_RANKS_PER_NODE = "TRACKS_RANKS_PER_NODE"
ENV_MASTER_ADDR = "TRACKS_MASTER_ADDR"
ENV_MASTER_PORT = "TRACKS_MASTER_PORT"
ENV_TERMINATION_GRACE_S = "TRACKS_TERMINATION_GRACE_S"
ENV_ENDS_AT = "TRACKS_ENDS_AT"  # Unix seconds of the gang's time limit, where Slurm says so
TRAINER_FAMILY, TRAINER_SCRIPT = "family", "script"

# What a pod's manifest sets and the pod reads: nobody else may set one of them.
POD_VARIABLES = frozenset(
    {
        ENV_STORE,
        ENV_RUN_ID,
        ENV_ATTEMPT_ID,
        ENV_OPENED_SEQ,
        ENV_WORK,
        ENV_IMAGE,
        ENV_ASKED,
        ENV_CLUSTER_QUEUE,
        ENV_SWITCHES,
        ENV_NODE,
        ENV_POD,
        ENV_POD_UID,
        ENV_INDEX,
        ENV_COMMAND,
        ENV_CODE_KEY,
        ENV_NODES,
        ENV_RANKS_PER_NODE,
        ENV_MASTER_ADDR,
        ENV_MASTER_PORT,
        ENV_TERMINATION_GRACE_S,
        ENV_ENDS_AT,
    }
)

# Labels and annotations of what a gang is on Kubernetes
LABEL_APP = "app.kubernetes.io/managed-by"  # always MANAGED_BY
MANAGED_BY = "tracks-dagster"
LABEL_RUN = "tracks/training-run-id"
LABEL_ATTEMPT = "tracks/attempt-id"

CLOSED = (
    "closed"  # in a local gang's folder: its attempt has ended, and no gang is started any more
)
# Exit code of a local gang's parent
EXIT_STARTED_BEFORE = 3  # the attempt has had its gang; the caller adopts what there is

# Exit codes of a rank
EXIT_DRAINED = 75  # SIGTERM was obeyed: the step was finished and saved (EX_TEMPFAIL)
EXIT_FENCED = 76  # the launch gave way to a newer one


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """One attempt of one run, passed whole."""

    run_id: str
    attempt_id: int

    @property
    def key(self) -> str:
        """Its partition key."""
        return attempt_key(self.run_id, self.attempt_id)

    @property
    def folder(self) -> str:
        """What the keys of its objects in the store begin with."""
        return f"runs/{self.run_id}/attempts/{self.attempt_id}/"


def run_track(run_id: str) -> str:
    """Return the name of a training run's track."""
    return f"{RUNS}{run_id}"


def dataset_track(name: str) -> str:
    """Return the name of a dataset's track."""
    return f"{DATASETS}{name}"


def pool_track(name: str) -> str:
    """Return the name of a compute pool's track.

    What a key cannot hold is written as =XX: `kubernetes/h100` is `pools/kubernetes=2Fh100`.
    """
    kept = _NOT_IN_A_KEY.sub(lambda m: "".join(f"={b:02X}" for b in m[0].encode()), name)
    return f"{POOLS}{kept}"


def pool_named(track: str) -> str:
    """Return the pool whose track has that name, as `pool_track` wrote it."""
    return unquote(track.removeprefix(POOLS).replace("=", "%"))


def project_track(name: str) -> str:
    """Return the name of the track of a project's stored versions."""
    return f"{PROJECTS}{name}"


def history_track(name: str) -> str:
    """Return the name of the track of a history that was imported."""
    return f"{HISTORIES}{name}"


def code_track(code_sha256: str) -> str:
    """Return the name of the track of what a project's code was certified by."""
    return f"{CODES}{code_sha256}"


def study_track(name: str) -> str:
    """Return the name of a study's track."""
    return f"{STUDIES}{name}"


def attempt_key(run_id: str, attempt_id: int) -> str:
    """Return the partition key of an attempt, `<run_id>/a<NN>` with at least two digits."""
    return f"{run_id}/a{attempt_id:02d}"


def parse_attempt_key(key: str) -> tuple[str, int]:
    """Return (run_id, attempt_id) of an attempt's key.

    Raises InvalidInput for anything else.
    """
    match = _ATTEMPT_KEY.fullmatch(key)
    if match is None:
        raise InvalidInput(f"{key!r} names no attempt; write RUN/aNN, for example my-run/a02.")
    return match["run_id"], int(match["number"])


def checkpoint_key(run_id: str, attempt_id: int, step: int) -> str:
    """Return the partition key of a checkpoint."""
    return f"{attempt_key(run_id, attempt_id)}/step-{step}"


def dagster_name(project: str) -> str:
    """Return a project's name as a part of one in Dagster, which takes no "-"."""
    return project.replace("-", "_")


def snapshot_asset(dataset: str) -> str:
    """Return the asset that makes the snapshots of a dataset; Dagster takes no "-" in its name."""
    return dagster_name(dataset)


def eval_check(suite: str) -> str:
    """Return the check of a model that an eval of its project is."""
    return f"eval_{dagster_name(suite)}"


def eval_key(run_id: str, eval_id: str) -> str:
    """Return the partition key of an eval; `eval_id` is `<suite>@<step>`."""
    return f"{run_id}/{eval_id}"


def parse_eval_key(key: str) -> tuple[str, str]:
    """Return (run_id, eval_id) of an eval's key.

    Raises InvalidInput for anything else.
    """
    run_id, separator, eval_id = key.partition("/")
    if not separator or "@" not in eval_id or not RUN_ID_PATTERN.fullmatch(run_id):
        raise InvalidInput(
            f"{key!r} names no eval; write RUN/SUITE@STEP, for example my-run/heldout-loss@40."
        )
    return run_id, eval_id


def eval_attempt_key(run_id: str, eval_id: str, number: int) -> str:
    """Return the key of one attempt at an eval: its Dagster run key and tag."""
    return f"{eval_key(run_id, eval_id)}/{number}"


def parse_eval_attempt_key(key: str) -> tuple[str, str, int] | None:
    """Return (run_id, eval_id, number) of one attempt at an eval; None for the key of an attempt."""
    found = _EVAL_ATTEMPT_KEY.fullmatch(key)
    return None if found is None else (found["run_id"], found["eval_id"], int(found["number"]))


def check_run_id(run_id: str) -> str:
    """Return `run_id` if it can name a training run; raises InvalidInput otherwise."""
    if not RUN_ID_PATTERN.fullmatch(run_id):
        raise InvalidInput(
            f"{run_id!r} cannot name a training run: use 1 to 40 of a-z, 0-9, '-' and '.', "
            "each '.' between two of the others."
        )
    return run_id
