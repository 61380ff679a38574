"""A person's `slurm.yaml` as a value: how gangs run on a Slurm cluster.

What one attempt asks for (`bodies.ComputeRequest`) overrides these settings: what has no field there,
by `RunOptions`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tracks_dagster.track.text import units
from tracks_dagster.track.text.nearest import unknown
from tracks_dagster.track.text.units import in_quotes, shown
from tracks_dagster.wings.slurm.rows import limit_s

SLURM = "slurm"  # the launcher, as records name it
CPU = "cpu"  # the device class that every cluster has
PYXIS, APPTAINER = "pyxis", "apptainer"
CONTAINERS = (PYXIS, APPTAINER)
TRACKS = "{tracks}"  # where a site's template has our lines
NOTICE_S_MAX = 65_535  # of sbatch --signal
NICE_MAX = 2_147_483_645  # of sbatch --nice; a negative one is for operators


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClass:
    """One kind of device. gres: as sbatch names one of them, `gpu:a100`; None for CPUs."""

    gres: str | None = "gpu"
    partition: str | None = None
    constraint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSettings:
    """What gangs of one workload class ask for, in place of what the settings say for all."""

    partition: str | None = None
    qos: str | None = None
    account: str | None = None
    nice: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """How a gang is submitted, and what each of its nodes gets.

    python: the interpreter on the nodes. host: of an ssh destination with Slurm's client; None: it is
    on this machine. time_limit_s: of each job, None for the partition's own. notice_s: from SIGTERM
    to the end: before the time limit, and when a gang is drained; longer than a save takes.
    scheduling_timeout_s: for a job to begin, then its attempt ends. work: a folder of each node for its
    ranks' files. logs: a folder that the nodes and this machine see, for what Slurm says in a job's
    output; None: the home's. environment: variables of each rank, never secrets; pass_environment:
    names of variables that are handed over from here. template: a site's script, with TRACKS alone in a
    line. options: more words for sbatch. classes: workload class → what its gangs ask for.
    """

    python: str
    host: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    exclude: tuple[str, ...] = ()
    nice: int | None = None
    time_limit_s: int | None = None
    notice_s: int = 120
    scheduling_timeout_s: float = 7 * 86_400.0
    device_classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    classes: Mapping[str, ClassSettings] = field(default_factory=dict)
    container: str | None = None
    container_image: str | None = None
    container_mounts: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    pass_environment: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    template: str | None = None
    work: str = "/tmp"
    logs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What one run asks for in place of the settings; None: nothing, "": what Slurm does by itself."""

    account: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    nice: int | str | None = None
    reservation: str | None = None
    time_limit: int | str | None = None  # in seconds
    container_image: str | None = None
    container_mounts: tuple[str, ...] | str | None = None
    modules: tuple[str, ...] | str | None = None
    prologue: tuple[str, ...] | str | None = None


def software_of(settings: SlurmSettings, own: RunOptions) -> SlurmSettings:
    """Return the settings with the software that a run names for its jobs."""
    named = {name: getattr(own, name) for name in _SOFTWARE}
    given = {name: value or _SOFTWARE[name] for name, value in named.items() if value is not None}
    return replace(settings, **given)


def run_options(given: Mapping[str, str], problems: list[str]) -> RunOptions:
    """Return what a run asks for by name; adds to `problems` what cannot be meant."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _READ:
            words = unknown("option of a run's jobs", name, sorted(_READ))
            problems.append(f"{words}{_ELSEWHERE.get(name, '')}")
            continue
        try:
            found[name] = _READ[name](value) if value else ""
        except ValueError as error:
            problems.append(f"{name} of the run's jobs: {error}")
    return RunOptions(**found)


def matching(pattern: re.Pattern[str], what: str, example: str) -> Callable[[object], str]:
    """Return what takes only a text of that pattern, and raises ValueError for others."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"{shown(value)} is not {what}; write for example {example}.")
        return value

    return read


read_name = matching(re.compile(r"[\w.@+-]{1,80}", re.ASCII), "a name that Slurm may have", "gpu")
read_constraint = matching(
    re.compile(r"[\w.:&|*()\[\],-]{1,200}", re.ASCII), "a constraint", "a100&ib"
)
read_nodes = matching(re.compile(r"[\w.\[\],-]{1,200}", re.ASCII), "a list of nodes", "node[01,07]")


read_module = matching(re.compile(r"[\w./+-]{1,100}", re.ASCII), "a module", "cuda/12.4")


def read_line(value: object) -> str:
    """Return a text of one line; raises ValueError for others."""
    if not isinstance(value, str):
        raise ValueError(in_quotes(value))
    if "\n" in value or "\0" in value:
        raise ValueError("one line of the script each; begin the next one with `- `.")
    return value


def _nice(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,10}", value) or not -NICE_MAX <= int(value) <= NICE_MAX:
        raise ValueError(f"{value!r} is not a nice value; write a whole number, 100 for example.")
    return int(value)


def _time_limit(value: str) -> int:
    """Return seconds: of `2h`, and of `2:00:00` or `1-12:00:00` as Slurm writes it."""
    of_slurm = limit_s(value)
    return int(of_slurm) if of_slurm else units.whole_seconds(value)


def _each(read: Callable[[object], str]) -> Callable[[str], tuple[str, ...]]:
    return lambda value: tuple(read(each.strip()) for each in value.split(","))


_SOFTWARE: Mapping[str, Any] = {  # what a run may name of it, and what an empty value means
    "container_image": None,
    "container_mounts": (),
    "modules": (),
    "prologue": (),
}
_READ: Mapping[str, Callable[[str], Any]] = {
    "account": read_name,
    "constraint": read_constraint,
    "container_image": read_line,
    "container_mounts": _each(read_line),
    "exclude": read_nodes,
    "modules": _each(read_module),
    "nice": _nice,
    "prologue": lambda value: (read_line(value),),
    "reservation": read_name,
    "time_limit": _time_limit,
}
_ELSEWHERE = {
    "partition": " A run's partition is its queue: --queue.",
    "qos": " A run's QOS is its priority class: --priority-class.",
    "gres": " A run's devices are those of its device class: --device-class.",
}
