"""Config, compute and cadence of a run that is to be declared: as a person asks, and checked.

Checked before anything is written. `CheckGang` checks what only the cluster's settings know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields

from tracks_dagster.attempts.ports import GangSpec
from tracks_dagster.track import names
from tracks_dagster.track.bodies import CheckpointCadence, ComputeRequest
from tracks_dagster.track.declared_fields import LAUNCHER, SLURM, Field
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.redact import Redact, redact_json
from tracks_dagster.track.text.units import in_quotes
from tracks_dagster.wing import launchers

LAUNCHERS = (names.LOCAL, *launchers())
RANKS_MAX = 4096
ITEMS_MAX = 32  # labels, tolerations: the request is part of a record of at most 16 KiB

# Raises InvalidInput with all that keeps a gang from being started; asks no cluster.
CheckGang = Callable[[GangSpec], None]

# What of a request describes its gang; which nodes are to be left out is found out later.
COMPUTE_FIELDS = tuple(f.name for f in fields(ComputeRequest) if f.name != "excluded_nodes")
ANYWHERE = frozenset({"launcher", "ranks", "device_class", "pool"})  # the others: on a cluster only
CLUSTER_FIELDS = tuple(name for name in COMPUTE_FIELDS if name not in ANYWHERE)


def choices_of(row: Field) -> tuple[str, ...]:
    """Return the values that a field may have, empty for any; wings bring launchers."""
    return LAUNCHERS if row is LAUNCHER else row.choices


def check_compute(compute: ComputeRequest) -> None:
    """Raise InvalidInput with all that is wrong with the request, whatever the cluster is."""
    if compute.launcher not in LAUNCHERS:
        raise InvalidInput(f"{unknown('launcher', compute.launcher, LAUNCHERS)}")
    if compute.launcher == names.LOCAL:
        check_is_on_cluster(compute.launcher, _cluster_fields_given(compute))
    if compute.slurm and compute.launcher != SLURM.name:
        raise InvalidInput(
            f"{SLURM.option} is of gangs on Slurm, and the run's launcher is {compute.launcher}; "
            "leave it out."
        )
    problems = [*_sizes(compute), *_names(compute), *_nodes(compute)]
    if problems:
        raise InvalidInput(" ".join(problems))


def check_is_on_cluster(launcher: str, given: Collection[str]) -> None:
    """Raise InvalidInput for a local run that asks for something of a cluster (`given`)."""
    if launcher == names.LOCAL and given:
        listed, verb = ", ".join(sorted(given)), "asks" if len(given) == 1 else "ask"
        places = "".join(f"say --on {name} (launcher: {name}), or " for name in LAUNCHERS[1:])
        raise InvalidInput(
            f"{listed} {verb} something of a cluster, and the run is to be local; {places}leave it out."
        )


def _cluster_fields_given(compute: ComputeRequest) -> list[str]:
    untouched = ComputeRequest()
    return [n for n in CLUSTER_FIELDS if getattr(compute, n) != getattr(untouched, n)]


def _sizes(compute: ComputeRequest) -> Iterator[str]:
    ranks, per_node = compute.ranks, compute.ranks_per_node
    if per_node < 1 or ranks % per_node:
        fitting = [n for n in range(1, min(ranks, max(per_node, 1)) + 1) if ranks % n == 0]
        yield (
            f"{ranks} ranks cannot be {per_node} on each node: every node has as many; use "
            f"{fitting[-1]}, for example."
        )
    if compute.memory_bytes is not None and compute.memory_bytes < 1:
        yield f"memory_bytes is {compute.memory_bytes}; a pod needs 1 or more."
    if compute.cpus is not None and not (math.isfinite(compute.cpus) and compute.cpus > 0):
        yield f"cpus is {compute.cpus:g}; a pod needs more than 0."


def _names(compute: ComputeRequest) -> Iterator[str]:
    """Yield what no cluster has. An empty name is allowed: it refuses what the settings say."""
    known: tuple[tuple[str, re.Pattern[str], str], ...] = (
        ("queue", QUEUE_NAME, "team-a"),
        ("priority_class", DNS_NAME, "training-high"),
        ("topology_key", LABEL_KEY, "topology.kubernetes.io/zone"),
    )
    for name, pattern, example in known:
        value = getattr(compute, name)
        if value and not pattern.fullmatch(value):
            yield f"{name} is {value!r}, which names nothing on a cluster; for example {example}."


def _nodes(compute: ComputeRequest) -> Iterator[str]:
    for key, value in compute.node_selector.items():
        if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
            yield f"node_selector {key}={value} is not a label of a node; for example gpu=a100."
    for toleration in compute.tolerations:
        for words in toleration_problems(toleration):
            yield f"toleration {dict(toleration)}: {words}"
    for name in ("node_selector", "tolerations", SLURM.name):
        if (count := len(getattr(compute, name))) > ITEMS_MAX:
            yield f"{name} has {count} entries; at most {ITEMS_MAX} fit a record."


def refuse_secrets(recorded: Mapping[str, Json], clean: Redact) -> None:
    """Raise InvalidInput for a secret in what is recorded as it is, and which training could not use
    with a word hidden in it."""
    for key, value in recorded.items():
        if redact_json({key: value}, clean) != {key: value}:
            raise InvalidInput(
                f"{key} holds what looks like a secret, and the record would keep it for ever. Give it "
                "to the trainer by its environment, and name it here otherwise."
            )


def check_ranks(ranks: int) -> None:
    """Raise InvalidInput unless that many processes can train."""
    if not 1 <= ranks <= RANKS_MAX:
        raise InvalidInput(f"{ranks} ranks cannot train; use 1 to {RANKS_MAX}.")


def check_cadence(
    cadence: CheckpointCadence, *, may_be_off: bool, saves_itself: bool = False
) -> None:
    """Raise InvalidInput for checkpoints that cannot be saved so.

    may_be_off: whether the policy allows a run that saves neither by steps nor by time. saves_itself:
    its trainer is a command that publishes folders, whom nobody can ask for one.
    """
    every_steps, every_s = cadence.every_steps, cadence.every_s
    if saves_itself and (every_steps is not None or every_s is not None):
        raise InvalidInput(
            "This trainer publishes folders when it likes (checkpoint: folder in its tracks.yaml), so "
            "steps or seconds between checkpoints have no effect; leave them out, and change the "
            "trainer's own key for it, if it has one."
        )
    if every_steps is None and every_s is None and not (may_be_off or saves_itself):
        raise InvalidInput(
            "Without periodic checkpoints a run loses all its work at the first failure. Save every "
            "so many steps or seconds (`tracks run --checkpoint-every N`, --checkpoint-every-s "
            "SECONDS; in the launchpad checkpoint_every_steps, checkpoint_every_s). Where that is "
            "meant, the policy file says so: limits: {checkpoints_may_be_off: true}."
        )
    if every_steps is not None and every_steps < 1:
        raise InvalidInput(
            f"A checkpoint every {every_steps} steps is not possible; use 1 or more."
        )
    if every_s is not None and not every_s > 0:
        raise InvalidInput(f"A checkpoint every {every_s} s is not possible; use more than 0.")


# --- names, labels and tolerations as Kubernetes accepts them ---------------------------------------


EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OPERATORS = ("Equal", "Exists")
DNS_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
QUEUE_NAME = re.compile(r"(?=.{1,63}$)" + DNS_NAME.pattern)  # Kueue: a name that fits a label
LABEL_KEY = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def toleration_problems(given: Mapping[str, Json]) -> Iterator[str]:
    """Yield what the API server would refuse of a toleration, or what it would never match by."""
    effect, operator = given.get("effect"), given.get("operator", OPERATORS[0])
    if effect not in (None, "", *EFFECTS):
        yield unknown("effect of a taint", str(effect), EFFECTS)
    if operator not in OPERATORS:
        yield unknown("operator of a toleration", str(operator), OPERATORS)
    for key in ("key", "value"):
        if key in given and not isinstance(given[key], str):
            yield f"{key}: {in_quotes(given[key])}"
    if not given.get("key") and operator != "Exists":
        yield "key is missing: name the taint's key, or write operator: Exists for all of them."
    if operator == "Exists" and given.get("value"):
        yield "value cannot stand beside operator: Exists, which takes every value."
    if "tolerationSeconds" in given and effect != "NoExecute":
        yield "tolerationSeconds needs effect: NoExecute."
