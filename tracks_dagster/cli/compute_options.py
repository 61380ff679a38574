"""The options of `tracks run` and `tracks retry` for where a gang runs and what it asks for there.

They arrive together, as the fields of a `RunRequest` that they set: of `run` all of them, with their
defaults; of `retry` those that were given, for what is not given stays as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any

import click

from tracks_dagster.attempts.run_config import LAUNCHERS, check_is_on_cluster
from tracks_dagster.cli.common import Command
from tracks_dagster.track import names
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import Json
from tracks_dagster.track.text import units

_EXISTS = "Exists"

# field of a RunRequest → its option, where that is for a cluster only
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

# field of a RunRequest → what it is where nothing is given
_DEFAULTS: Mapping[str, Any] = {"launcher": names.LOCAL, "ranks_per_node": 1, "device_class": "cpu"}

_OPTIONS = (
    click.option(
        "--on",
        "launcher",
        type=click.Choice(LAUNCHERS),
        help="Where the gang runs. The options below, up to --pool, are for a cluster.",
    ),
    click.option("--ranks-per-node", type=int, help="Processes of each pod."),
    click.option(
        "--memory", "memory_bytes", metavar="SIZE", help="Memory of each pod, such as 64GiB."
    ),
    click.option("--cpus", type=float, help="CPUs of each pod: a share, no limit."),
    click.option(
        "--device-class",
        "--device",
        "device_class",
        help="Device class of each rank, from the cluster's settings.",
    ),
    click.option("--queue", help="Kueue's local queue."),
    click.option("--priority-class", help="Priority class of the pods."),
    click.option(
        "--node-selector",
        multiple=True,
        metavar="KEY=VALUE",
        help="A label that the nodes must have.",
    ),
    click.option(
        "--toleration",
        "tolerations",
        multiple=True,
        metavar="KEY[=VALUE]:EFFECT",
        help="A taint that the pods tolerate; KEY:EFFECT matches any value.",
    ),
    click.option("--topology-key", help="A node label that must have one value for all pods."),
    click.option("--pool", help="The compute pool of the run."),
)


def compute_options(command: Command) -> Command:
    """Add the options; the command gets `compute`, fields of a RunRequest by name, with the defaults.

    Raises InvalidInput for a value that cannot be read.
    """
    return _with_options(command, _DEFAULTS)


def compute_changes(command: Command) -> Command:
    """Add the options; the command gets `compute`, the fields that were given, by name.

    Raises InvalidInput for a value that cannot be read.
    """
    return _with_options(command, {})


def _with_options(command: Command, defaults: Mapping[str, Any]) -> Command:
    @functools.wraps(command)
    def packed(*args: Any, **given: Any) -> object:
        compute = {name: given.pop(name) for name in _FIELDS}
        read = {
            "memory_bytes": _size(compute["memory_bytes"]),
            "node_selector": _labels(compute["node_selector"]),
            "tolerations": tuple(_toleration(text) for text in compute["tolerations"]),
        }
        return command(*args, compute=_chosen({**compute, **read}), **given)

    for option in reversed(_OPTIONS):
        packed = option(packed)
    for each in packed.__click_params__:  # type: ignore[attr-defined]
        if each.name in defaults:
            each.default, each.show_default = defaults[each.name], True
    return packed  # type: ignore[return-value]  # click keeps the type


def _chosen(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a person gave: an option that was left out is None, or empty."""
    return {name: value for name, value in given.items() if value not in (None, (), {})}


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
