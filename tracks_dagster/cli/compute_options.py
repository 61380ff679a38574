"""The options of `tracks run` that say where a gang runs and what it asks for there.

They arrive together, as the fields of a `RunRequest` that they set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from tracks_dagster.core import names, units
from tracks_dagster.core.errors import InvalidInput
from tracks_dagster.core.records import Json
from tracks_dagster.services.compute import LAUNCHERS, check_is_on_cluster

Command = TypeVar("Command", bound=Callable[..., object])

_EXISTS = "Exists"

# field of a RunRequest → its option, where that says something of a cluster only
_CLUSTER = {
    "ranks_per_node": "--ranks-per-node",
    "memory_bytes": "--memory",
    "cpus": "--cpus",
    "device_class": "--device-class",
    "queue": "--queue",
    "priority_class": "--priority-class",
    "node_selector": "--node-selector",
    "tolerations": "--toleration",
    "topology_key": "--topology-key",
    "pool": "--pool",
}
_FIELDS = ("launcher", *_CLUSTER)

_OPTIONS = (
    click.option(
        "--on",
        "launcher",
        type=click.Choice(LAUNCHERS),
        default=names.LOCAL,
        show_default=True,
        help="Where the gang runs. What follows, up to --pool, is asked of a cluster.",
    ),
    click.option(
        "--ranks-per-node", type=int, default=1, show_default=True, help="Processes of each pod."
    ),
    click.option("--memory", "memory_bytes", metavar="SIZE", help="Of each pod, as 64GiB."),
    click.option("--cpus", type=float, help="Of each pod."),
    click.option(
        "--device-class",
        default="cpu",
        show_default=True,
        help="What each rank runs on, of the cluster's settings.",
    ),
    click.option("--queue", help="Kueue's local queue."),
    click.option("--priority-class", help="Of the pods."),
    click.option(
        "--node-selector", multiple=True, metavar="KEY=VALUE", help="A label that nodes must have."
    ),
    click.option(
        "--toleration",
        "tolerations",
        multiple=True,
        metavar="KEY[=VALUE]:EFFECT",
        help="A taint that pods put up with; KEY:EFFECT takes every value of it.",
    ),
    click.option("--topology-key", help="A node label of which all pods share one value."),
    click.option("--pool", help="The compute pool that the run is counted to."),
)


def compute_options(command: Command) -> Command:
    """Add the options; the command gets `compute`, fields of a RunRequest by name.

    Raises InvalidInput for a value that cannot be read.
    """

    @functools.wraps(command)
    def packed(*args: Any, **given: Any) -> object:
        compute = {name: given.pop(name) for name in _FIELDS}
        read = {
            "memory_bytes": _size(compute["memory_bytes"]),
            "node_selector": _labels(compute["node_selector"]),
            "tolerations": tuple(_toleration(text) for text in compute["tolerations"]),
        }
        return command(*args, compute={**compute, **read}, **given)

    for option in reversed(_OPTIONS):
        packed = option(packed)
    return packed  # type: ignore[return-value]  # click keeps the type


def check_place(launcher: str, chosen: Collection[str]) -> None:
    """Raise InvalidInput where a run stays local though a person chose what only a cluster has.

    chosen: the names of the options that were given, as fields of a RunRequest.
    """
    check_is_on_cluster(launcher, [option for name, option in _CLUSTER.items() if name in chosen])


def _size(text: str | None) -> int | None:
    try:
        return None if text is None else units.size_bytes(text)
    except ValueError as error:
        raise InvalidInput(f"--memory: {error}") from error


def _labels(pairs: tuple[str, ...]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidInput(
                f"--node-selector {pair!r} is not KEY=VALUE; write for example gpu=a100."
            )
        if found.setdefault(key, value) != value:
            raise InvalidInput(
                f"--node-selector {key} is {found[key]!r} and {value!r}; no node has both."
            )
    return found


def _toleration(text: str) -> Mapping[str, Json]:
    """Return the toleration that `text` means, as in a pod's spec."""
    taint, separator, effect = text.rpartition(":")
    key, has_value, value = taint.partition("=")
    if not separator or not key or not effect:
        raise InvalidInput(
            f"--toleration {text!r} is not KEY=VALUE:EFFECT or KEY:EFFECT; write for example "
            "gpu=yes:NoSchedule."
        )
    if has_value:
        return {"key": key, "operator": "Equal", "value": value, "effect": effect}
    return {"key": key, "operator": _EXISTS, "effect": effect}
