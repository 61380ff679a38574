"""The fields of a run's declaration: one row each, from which everything that offers them follows.

From this table follow which value counts where several places have one, what a branch inherits, what
belongs to a cluster, the options of the commands, the keys of tracks.yaml, the fields of the launchpad,
what a policy may require, the ledger's columns and the reference in docs/runs.md. A new field is a
field of a record's body and one row here. What starts a run besides (its code, config, source) has no
row.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from tracks_dagster.track import bodies
from tracks_dagster.track.bodies import (
    DIRECTIONS,
    GATES,
    CheckpointCadence,
    ComputeRequest,
    RetentionRule,
    RunDeclared,
)
from tracks_dagster.track.names import LOCAL, STAGES
from tracks_dagster.track.records import Json


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `training_runs`. meaning: what it holds; since: as of a `ledger.facts` Fact.

    absent: the name of why it may be unknown, empty where it never is; why: that in words. beside:
    another field, whose absence explains this one's too.
    """

    meaning: str
    absent: str = ""
    why: str = ""
    beside: str = ""
    since: int = 9


@dataclass(frozen=True, slots=True, eq=False)  # a row is itself alone
class Field:
    """One field of a declaration.

    name: of a value that somebody gives; a launchpad calls it so too. words: a sentence that people
    read. of: the part of the record that has it, None where that has it in another form only; recorded:
    its name there. default: where nothing else has a value. flag: its option, None for one of its name,
    empty for none; also: another of its options. key: in tracks.yaml, empty for none (of a cadence
    below `checkpoint`, of a rule below `retention`); example: a value there. inherits: a branch takes
    it over from its source. required: how its option goes on where a policy requires it, empty where
    none may.
    """

    name: str
    kind: Kind
    words: str
    default: Any = None
    of: type | None = RunDeclared
    recorded: str = ""
    flag: str | None = None
    also: str = ""
    choices: tuple[str, ...] = ()
    key: str = ""
    example: Json = None
    inherits: bool = False
    required: str = ""
    column: Column | None = None

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

    @property
    def advice(self) -> str:
        """How it is given, in words."""
        by_key = f", or {self.key}: in its tracks.yaml" if self.key else ""
        return f"{self.option} {self.required}{by_key}"


def _compute(name: str, kind: Kind, words: str, default: Any = None, **more: Any) -> Field:
    return Field(name, kind, words, default, of=ComputeRequest, inherits=True, **more)


def _rule(name: str, kind: Kind, words: str, **more: Any) -> Field:
    default = getattr(RetentionRule(), name)
    key = name.removesuffix("_s")
    return Field(name, kind, words, default, of=RetentionRule, key=key, inherits=True, **more)


# fmt: off
# Called as the launcher whose jobs it is of.
SLURM = _compute("slurm", Kind.LABELS,
                 "Slurm: of its jobs account, time_limit, exclude, container_image …; docs/slurm.md.",
                 {}, key="slurm", example={"time_limit": "24h"})
CLUSTER = (
    _compute("ranks_per_node", Kind.COUNT, "Ranks of each node or pod.", 1),
    _compute("memory_bytes", Kind.SIZE, "Memory of each node or pod.", flag="--memory"),
    _compute("cpus", Kind.NUMBER, "CPUs of each node or pod: on Kubernetes a share, no limit."),
    _compute("queue", Kind.NAME, "Kueue's local queue, or Slurm's partition."),
    _compute("priority_class", Kind.NAME, "Priority class of the pods, or Slurm's QOS."),
    _compute("node_selector", Kind.LABELS, "Kubernetes: labels that the nodes must have.", {}),
    _compute("tolerations", Kind.TOLERATIONS, "Kubernetes: taints that the pods tolerate.", (),
             flag="--toleration"),
    _compute("topology_key", Kind.NAME, "Kubernetes: a node label that must have one value for all."),
    SLURM,
)
PLACE = (
    *CLUSTER,
    _compute("device_class", Kind.NAME, "Device class of each rank, from the cluster's settings.",
             "cpu", also="--device", key="device", example="cpu",
             column=Column("the class of device it asked for")),
    _compute("pool", Kind.NAME, "The compute pool of the run."),
)
LAUNCHER = _compute("launcher", Kind.NAME, "Where the gang runs.", LOCAL, flag="--on",
                    key="launcher", example="kubernetes",
                    column=Column("local, kubernetes or slurm"))
RANKS = _compute("ranks", Kind.COUNT, "Processes, one device each.", 1, key="ranks", example=1,
                 column=Column("processes of a gang, one device each"))
CADENCE = (
    Field("checkpoint_every_steps", Kind.STEPS, "Save every so many steps.", 10,
          of=CheckpointCadence, recorded="every_steps", flag="--checkpoint-every",
          key="every_steps", inherits=True),
    Field("checkpoint_every_s", Kind.NUMBER,
          "Save every so many seconds; the first of both counts.",
          of=CheckpointCadence, recorded="every_s", key="every", inherits=True),
)
RETENTION = (
    _rule("keep_last", Kind.COUNT, "Newest checkpoints to keep."),
    _rule("keep_best", Kind.COUNT, "Also keep the best by their metric."),
    _rule("metric", Kind.NAME, "Metric of the best: loss (of one noisy training step), or what an "
          "evaluation reports.", flag="--best-metric"),
    _rule("direction", Kind.NAME, "Whether the least or the greatest is best.",
          flag="--best-direction", choices=DIRECTIONS),
    _rule("milestone_every_steps", Kind.COUNT,
          "Also keep every checkpoint whose step this divides.", flag="--keep-every"),
    _rule("delete_after_s", Kind.NUMBER,
          "Seconds from the decision that one may go until its bytes are removed.", flag=""),
)
DECLARED = (
    Field("snapshot_id", Kind.NAME, "Id of a snapshot; default: the newest usable one.", of=None,
          flag="--snapshot"),
    Field("owner", Kind.TEXT, "Who answers for the run.", "unknown", required="NAME",
          column=Column("whose run it is")),
    Field("team", Kind.TEXT, "Whose budget it is.", "unknown", key="team", example="research",
          inherits=True, required="NAME", column=Column("of the owner")),
    Field("stage", Kind.NAME, "What it is for, which limits it.", "smoke", choices=STAGES,
          inherits=True, column=Column("kitchen_sink, smoke, canary or full")),
    Field("skip_gates", Kind.NAMES,
          "Declare it without these gates of its stage; they are recorded.", (), of=None,
          flag="--skip-gate", choices=GATES),
    Field("skip_why", Kind.TEXT, "Why a gate is skipped.", of=None, flag="--why"),
    Field("workload_class", Kind.NAME,
          "Its place in the queue, and its objectives; default: the policy's.", flag="--class",
          key="class", example="single", inherits=True,
          column=Column("as declared: its place in the queue, and its objectives", "no_class",
                        "none was named: it is of the policy's default_class", since=10)),
    Field("expect", Kind.TEXT,
          "What you expect of it; asked of a branch that costs twice its source or more.",
          required='"…" says what you expect of it',
          column=Column("what its owner expected of it", "no_expectation",
                        "nobody said what to expect", since=10)),
    Field("max_cost", Kind.NUMBER,
          "Save and end once it has cost so much, in the price table's currency.",
          required="AMOUNT",
          column=Column("what it may cost, in the price table's currency, as declared", "no_cap",
                        "no cap in money was given", since=10)),
    Field("on_call", Kind.TEXT, "Whom to call when it needs a person.", key="on_call",
          example="ada", inherits=True, required="NAME",
          column=Column("whom to call when it needs a person", "no_on_call", "nobody was named",
                        since=10)),
    Field("experiment", Kind.NAME,
          "The question that it belongs to; `tracks diff --experiment NAME` answers.",
          inherits=True, required="NAME",
          column=Column("the question that it belongs to", "no_experiment",
                        "it belongs to no experiment", since=10)),
    Field("baseline", Kind.NAME, "The run of it that this one is compared with.", inherits=True,
          column=Column("the run of the experiment that it is compared with", "no_baseline",
                        "it names none to compare with", beside="experiment", since=10)),
    Field("drills", Kind.NAMES, "Faults to play, such as preempt@23,grace=0.", (), of=None,
          flag="--drill"),
)
ASKED = (
    Field("run_id", Kind.NAME,
          "Its id, 1 to 40 of a-z, 0-9 and '-'; default: made from project and day."),
    Field("intent", Kind.TEXT, "What the run is for, in a sentence.",
          required='"…" says what the run is for', column=Column("what it is for, in a sentence")),
)
# fmt: on
COMPUTE = (LAUNCHER, RANKS, *PLACE)
FIELDS = (*ASKED, *DECLARED, *CADENCE, *RETENTION, *COMPUTE)
ROWS = {each.name: each for each in FIELDS}
NAMES = ROWS.keys()
DEFAULTS = {each.name: each.default for each in (*DECLARED, *CADENCE, *RETENTION, *COMPUTE)}
KEYED = tuple(each for each in (*COMPUTE, *DECLARED) if each.key)  # of tracks.yaml, at its top
TEXTS = tuple(each for each in FIELDS if each.kind is Kind.TEXT)
# All that is cleaned of secrets before it is stored.
WORDS = bodies.WORDS | {each.name for each in TEXTS}
_CADENCE_NAMES = frozenset(each.name for each in CADENCE)
_PLACE_NAMES = frozenset(each.name for each in PLACE)


def merge(
    given: Mapping[str, Any],
    *,
    source: Mapping[str, Any],
    project: Mapping[str, Any],
    otherwise: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the value of each field: given > source > project > otherwise > default.

    source: what a branch inherits, {} of a run that is not one. Where it runs elsewhere than its source
    did, what the source asked of its own place is not inherited; nor what the project asks of the place
    that its file names. project: by its file, whose cadence is whole: who gives one half of it asks for
    another. otherwise: of an edge, before the default. What is asked of Slurm is merged name by name,
    and a project's counts only where the run is there.
    """
    inherited = _without(_PLACE_NAMES, source) if _is_moved(given, source) else source
    is_elsewhere = LAUNCHER.name in project and _is_moved({**source, **given}, project)
    by_project = _without(_PLACE_NAMES, project) if is_elsewhere else project
    by_project = (
        _without(_CADENCE_NAMES, by_project) if _CADENCE_NAMES & given.keys() else by_project
    )
    layers = (given, inherited, by_project, otherwise, DEFAULTS)
    found = dict(ChainMap(*map(dict, layers)))
    is_there = found[LAUNCHER.name] == SLURM.name
    asked = (given, inherited, by_project if is_there else {})
    return {
        **found,
        SLURM.name: dict(ChainMap(*(dict(each.get(SLURM.name) or {}) for each in asked))),
    }


def _is_moved(given: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether another launcher is given than `before` has."""
    launcher = before.get(LAUNCHER.name)
    return bool(given.get(LAUNCHER.name, launcher) != launcher)


def _without(names: frozenset[str], values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def inherited(declared: RunDeclared, compute: ComputeRequest) -> dict[str, Any]:
    """Return what a branch inherits of a run, of which an attempt ran on `compute`."""
    wrote = replace(declared, compute=compute)
    return {each.name: each.of_run(wrote) for each in FIELDS if each.inherits}
