"""The fields of a run's declaration: one row each, from which everything that offers them follows.

From this table follow which value counts where several places have one, what a branch inherits, what
belongs to a cluster, the options of the commands and the fields of the launchpad. A new field is a
field of a record's body and one row here. What starts a run besides (its code, config, source) has no
row.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from tracks_dagster.attempts.run_config import LAUNCHERS
from tracks_dagster.checkpoints.retention import DIRECTIONS
from tracks_dagster.data.project import Project
from tracks_dagster.retry.stages import GATES
from tracks_dagster.track import names
from tracks_dagster.track.bodies import (
    CheckpointCadence,
    ComputeRequest,
    RetentionRule,
    RunDeclared,
)
from tracks_dagster.track.names import STAGES


class Kind(Enum):
    """What a value is; how an edge reads one is the edge's to say."""

    TEXT = auto()  # words that are recorded
    NAME = auto()
    NAMES = auto()  # a tuple of them
    COUNT = auto()
    NUMBER = auto()
    STEPS = auto()  # a count; None for off
    SIZE = auto()  # in bytes
    LABELS = auto()  # a mapping of texts
    TOLERATIONS = auto()  # as in a pod's spec, a tuple of mappings


@dataclass(frozen=True, slots=True, eq=False)  # a row is itself alone
class Field:
    """One field of a declaration.

    name: of a value that somebody gives; a launchpad calls it so too. words: a sentence that people
    read. of: the part of the record that has it, None where that has it in another form only; recorded:
    its name there. default: where nothing else has a value. flag: its option, None for one of its name,
    empty for none; also: another of its options. in_project: a `Project` has a field of its name.
    inherits: a branch takes it over from its source.
    """

    name: str
    kind: Kind
    words: str
    of: type | None = RunDeclared
    recorded: str = ""
    default: Any = None
    flag: str | None = None
    also: str = ""
    choices: tuple[str, ...] = ()
    in_project: bool = False
    inherits: bool = False

    def of_project(self, project: Project) -> Any:
        """Return its value by the project's file; None where that has none."""
        if self.of is RetentionRule:
            return getattr(project.retention, self.name)
        return getattr(project, self.name) if self.in_project else None

    def of_run(self, declared: RunDeclared) -> Any:
        """Return its value in the record of a run; of a field that this has."""
        parts: dict[type | None, Any] = {
            RunDeclared: declared,
            ComputeRequest: declared.compute,
            CheckpointCadence: declared.cadence,
            RetentionRule: declared.retention,
        }
        return getattr(parts[self.of], self.recorded or self.name)

    @property
    def option(self) -> str:
        """Its option of a command; empty for none."""
        return f"--{self.name.replace('_', '-')}" if self.flag is None else self.flag


def _cluster(name: str, kind: Kind, words: str, default: Any = None, **more: Any) -> Field:
    return Field(name, kind, words, of=ComputeRequest, default=default, inherits=True, **more)


def _rule(name: str, kind: Kind, words: str, **more: Any) -> Field:
    default = getattr(RetentionRule(), name)
    return Field(name, kind, words, of=RetentionRule, default=default, inherits=True, **more)


CLUSTER = (
    _cluster("ranks_per_node", Kind.COUNT, "Processes of each pod.", 1),
    _cluster("memory_bytes", Kind.SIZE, "Memory of each pod.", flag="--memory"),
    _cluster("cpus", Kind.NUMBER, "CPUs of each pod: a share, no limit."),
    _cluster("queue", Kind.NAME, "Kueue's local queue."),
    _cluster("priority_class", Kind.NAME, "Priority class of the pods."),
    _cluster("node_selector", Kind.LABELS, "Labels that the nodes must have.", {}),
    _cluster(
        "tolerations", Kind.TOLERATIONS, "Taints that the pods tolerate.", (), flag="--toleration"
    ),
    _cluster("topology_key", Kind.NAME, "A node label that must have one value for all pods."),
)
PLACE = (
    *CLUSTER,
    _cluster(
        "device_class",
        Kind.NAME,
        "Device class of each rank, from the cluster's settings.",
        "cpu",
        also="--device",
        in_project=True,
    ),
    _cluster("pool", Kind.NAME, "The compute pool of the run."),
)
LAUNCHER = _cluster(
    "launcher", Kind.NAME, "Where the gang runs.", names.LOCAL, flag="--on", choices=LAUNCHERS
)
RANKS = _cluster("ranks", Kind.COUNT, "Processes, one device each.", 1, in_project=True)
CADENCE = (
    Field(
        "checkpoint_every_steps",
        Kind.STEPS,
        "Save every so many steps.",
        CheckpointCadence,
        "every_steps",
        default=10,
        flag="--checkpoint-every",
        inherits=True,
    ),
    Field(
        "checkpoint_every_s",
        Kind.NUMBER,
        "Save every so many seconds; the first of both counts.",
        CheckpointCadence,
        "every_s",
        inherits=True,
    ),
)
RETENTION = (
    _rule("keep_last", Kind.COUNT, "Newest checkpoints to keep."),
    _rule("keep_best", Kind.COUNT, "Also keep the best by their metric."),
    _rule(
        "metric",
        Kind.NAME,
        "Metric of the best: loss (of one noisy training step), or what an evaluation reports.",
        flag="--best-metric",
    ),
    _rule(
        "direction",
        Kind.NAME,
        "Whether the least or the greatest is best.",
        flag="--best-direction",
        choices=DIRECTIONS,
    ),
    _rule(
        "milestone_every_steps",
        Kind.COUNT,
        "Also keep every checkpoint whose step this divides.",
        flag="--keep-every",
    ),
    _rule(
        "delete_after_s",
        Kind.NUMBER,
        "Seconds from the decision that one may go until its bytes are removed.",
        flag="",
    ),
)
DECLARED = (
    Field(
        "snapshot_id",
        Kind.NAME,
        "Id of a snapshot; default: the newest usable one.",
        None,
        flag="--snapshot",
    ),
    Field("owner", Kind.TEXT, "Who answers for the run.", default="unknown"),
    Field(
        "team", Kind.TEXT, "Whose budget it is.", default="unknown", in_project=True, inherits=True
    ),
    Field(
        "stage",
        Kind.NAME,
        "What it is for, which limits it.",
        default="smoke",
        choices=STAGES,
        inherits=True,
    ),
    Field(
        "skip_gates",
        Kind.NAMES,
        "Declare it without these gates of its stage; they are recorded.",
        None,
        flag="--skip-gate",
        default=(),
        choices=tuple(GATES),
    ),
    Field("skip_why", Kind.TEXT, "Why a gate is skipped.", None, flag="--why"),
    Field(
        "workload_class",
        Kind.NAME,
        "Its place in the queue, and its objectives; default: the policy's.",
        flag="--class",
        in_project=True,
        inherits=True,
    ),
    Field(
        "expect",
        Kind.TEXT,
        "What you expect of it; asked of a branch that costs twice its source or more.",
    ),
    Field(
        "max_cost",
        Kind.NUMBER,
        "Save and end once it has cost so much, in the price table's currency.",
    ),
    Field(
        "on_call", Kind.TEXT, "Whom to call when it needs a person.", in_project=True, inherits=True
    ),
    Field(
        "experiment",
        Kind.NAME,
        "The question that it belongs to; `tracks diff --experiment NAME` answers.",
        inherits=True,
    ),
    Field("baseline", Kind.NAME, "The run of it that this one is compared with.", inherits=True),
    Field(
        "drills",
        Kind.NAMES,
        "Faults to play, such as preempt@23,grace=0.",
        None,
        flag="--drill",
        default=(),
    ),
)
ASKED = (
    Field(
        "run_id",
        Kind.NAME,
        "Its id, 1 to 40 of a-z, 0-9 and '-'; default: made from project and day.",
    ),
    Field("intent", Kind.TEXT, "What the run is for, in a sentence."),
)
COMPUTE = (LAUNCHER, RANKS, *PLACE)
FIELDS = (*ASKED, *DECLARED, *CADENCE, *RETENTION, *COMPUTE)
ROWS = {each.name: each for each in FIELDS}
NAMES = ROWS.keys()
TEXTS = tuple(each for each in FIELDS if each.kind is Kind.TEXT)
DEFAULTS = {each.name: each.default for each in (*DECLARED, *CADENCE, *RETENTION, *COMPUTE)}
_CADENCE_NAMES = frozenset(each.name for each in CADENCE)
_PLACE_NAMES = frozenset(each.name for each in PLACE)


def merge(
    given: Mapping[str, Any],
    *,
    source: Mapping[str, Any],
    project: Project | None,
    otherwise: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the value of each field: given > source > project > otherwise > default.

    source: what a branch inherits, {} of a run that is none. Where it runs elsewhere than its source
    did, what the source asked of its own place is not inherited. otherwise: of an edge, before the
    default.
    """
    is_moved = given.get(LAUNCHER.name, source.get(LAUNCHER.name)) != source.get(LAUNCHER.name)
    left_out = _PLACE_NAMES if is_moved else frozenset[str]()
    inherited = {name: value for name, value in source.items() if name not in left_out}
    by_project = {} if project is None else _of_project(project, given.keys())
    layers = (given, inherited, by_project, otherwise, DEFAULTS)
    return dict(ChainMap(*map(dict, layers)))


def _of_project(project: Project, given: Set[str]) -> dict[str, Any]:
    """Return what the project's file has. Its cadence is whole: who asks for one half of it asks for
    another cadence."""
    found = {each.name: each.of_project(project) for each in FIELDS}
    found = {name: value for name, value in found.items() if value is not None}
    if project.cadence is not None and not _CADENCE_NAMES & given:
        found |= {each.name: getattr(project.cadence, each.recorded) for each in CADENCE}
    return found


def inherited(declared: RunDeclared, compute: ComputeRequest) -> dict[str, Any]:
    """Return what a branch inherits of a run, of which an attempt ran on `compute`."""
    wrote = replace(declared, compute=compute)
    return {each.name: each.of_run(wrote) for each in FIELDS if each.inherits}
