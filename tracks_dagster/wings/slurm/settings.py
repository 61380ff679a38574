"""A person's `slurm.yaml` as a value: how gangs run on a Slurm cluster.

What one attempt asks for (`bodies.ComputeRequest`) overrides these settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SLURM = "slurm"  # the launcher, as records name it
CPU = "cpu"  # the device class that every cluster has
PYXIS, APPTAINER = "pyxis", "apptainer"
CONTAINERS = (PYXIS, APPTAINER)
TRACKS = "{tracks}"  # where a site's template has our lines
NOTICE_S_MAX = 65_535  # of sbatch --signal


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
