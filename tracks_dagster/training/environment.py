"""What a rank reads from its environment, and what it knows of the place where it runs.

Beside `settings`, this is the only reader of environment variables: torchrun's own, and those that a
launcher sets for an attempt. Nothing here starts a process group or touches the store.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from tracks_dagster.processes.process import this_process
from tracks_dagster.track import names
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Json, canonical_json, sha256_hex
from tracks_dagster.track.text.redact import secrets_of
from tracks_dagster.training.software import THREADS_DEFAULT, TRACKS, platform_name

CACHE = "cache"  # in a folder of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlace:
    """Which attempt this process trains, and where its record and its files are.

    opened_seq: the seq of the attempt's `attempt_opened`; work: the gang's folder on this machine;
    cache: where this machine keeps snapshots of files for all its gangs. data_url: of the store that
    has its snapshot, where that is another one. ends_at_s: Unix time of the gang's time limit, by its
    node's clock; notice_s: from SIGTERM to the end. None: not known.
    """

    store_url: str
    run_id: str
    attempt_id: int
    opened_seq: int
    work: Path
    cache: Path
    data_url: str | None = None
    ends_at_s: float | None = None
    notice_s: float | None = None

    @property
    def ref(self) -> AttemptRef:
        """The attempt."""
        return AttemptRef(self.run_id, self.attempt_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnvironment:
    """One rank of a gang. attempt: None when no launcher started it (a notebook, plain torchrun).

    has_group: it was started as torchrun starts one, so that a script may expect a process group, also
    of one rank. threads: how many the rank computes with on the CPU. node, pod: what a cluster calls
    them; None: the host's own name, and no pod. asked, granted: as of `AttemptPlaced`. secrets: values
    that no text may show.
    """

    rank: int
    world_size: int
    local_rank: int
    threads: int
    image: str | None
    attempt: AttemptPlace | None
    has_group: bool = False
    node: str | None = None
    pod: str | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    granted: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = field(default=(), repr=False)


def read_environment(environ: Mapping[str, str]) -> RankEnvironment:
    """Return what `environ` holds; raises SettingsError naming the variable that is missing or bad."""
    run_id = environ.get(names.ENV_RUN_ID)
    attempt = None
    if run_id is not None:
        work = Path(_text(environ, names.ENV_WORK))
        attempt = AttemptPlace(
            store_url=_text(environ, names.ENV_STORE),
            run_id=names.check_run_id(run_id),
            attempt_id=_number(environ, names.ENV_ATTEMPT_ID),
            opened_seq=_number(environ, names.ENV_OPENED_SEQ),
            work=work,
            cache=Path(environ.get(names.ENV_CACHE) or work / CACHE),
            ends_at_s=_seconds(environ, names.ENV_ENDS_AT),
            notice_s=_seconds(environ, names.ENV_TERMINATION_GRACE_S),
        )
    return RankEnvironment(
        rank=_number(environ, "RANK", 0),
        world_size=_number(environ, "WORLD_SIZE", 1),
        local_rank=_number(environ, "LOCAL_RANK", 0),
        threads=_number(environ, "OMP_NUM_THREADS", THREADS_DEFAULT),
        image=environ.get(names.ENV_IMAGE),
        attempt=attempt,
        has_group="RANK" in environ,
        node=environ.get(names.ENV_NODE) or None,
        pod=environ.get(names.ENV_POD) or None,
        asked=_asked(environ),
        granted=_granted(environ),
        secrets=secrets_of(environ),
    )


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    """Return a number that a cluster may give; None where it gives none that is read."""
    value = environ.get(name, "")
    return float(value) if value.isascii() and value.isdecimal() else None


def _asked(environ: Mapping[str, str]) -> dict[str, str]:
    try:
        return {str(k): str(v) for k, v in parse_json(environ.get(names.ENV_ASKED) or "{}").items()}
    except (ValueError, AttributeError) as error:
        raise SettingsError(f"{names.ENV_ASKED} is not a mapping; a launcher sets it.") from error


def _granted(environ: Mapping[str, str]) -> dict[str, str]:
    found = {
        "cluster_queue": environ.get(names.ENV_CLUSTER_QUEUE),
        "switches": environ.get(names.ENV_SWITCHES),
    }
    return {name: value for name, value in found.items() if value}


def place_to_json(place: AttemptPlace) -> dict[str, Json]:
    """Return a place as JSON, for the other ranks."""
    return {**asdict(place), "work": str(place.work), "cache": str(place.cache)}


def place_from_json(place: Mapping[str, Json]) -> AttemptPlace:
    """Return the place that `place_to_json` wrote."""
    return AttemptPlace(**{**place, "work": Path(place["work"]), "cache": Path(place["cache"])})


def device_of(rank: RankEnvironment) -> torch.device:
    """Return the rank's own GPU where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank.local_rank)
    return torch.device("cpu")


def describe_place(
    rank: int, device: torch.device, *, node: str | None = None, pod: str | None = None
) -> RankPlace:
    """Return where this process runs; node, pod: as in `RankEnvironment`."""
    process = this_process()
    name, accelerator = "cpu", "cpu"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, accelerator = f"GPU-{properties.uuid}", properties.name
    return RankPlace(
        rank=rank,
        node=node or socket.gethostname(),
        pid=process.pid,
        pid_started=process.started,
        boot_id=process.boot_id,
        device=name,
        accelerator=accelerator,
        pod=pod,
    )


def describe_software() -> dict[str, Json]:
    """Return what a result depends on besides code, config and data; the same all over one image."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numpy": np.__version__,
        TRACKS: version(TRACKS),
        "platform": platform_name(),
        "threads": torch.get_num_threads(),
    }


def digest_of(description: Mapping[str, Json]) -> str:
    """Return the sha256 of a description as canonical JSON."""
    return sha256_hex(canonical_json(dict(description)))


def _text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise SettingsError(
            f"{names.ENV_RUN_ID} is set and {name} is not: a launcher sets both. Unset "
            f"{names.ENV_RUN_ID} to train alone, outside an attempt."
        )
    return environ[name]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = _text(environ, name) if default is None else environ.get(name, str(default))
    if not text.isdigit():
        raise SettingsError(f"{name} = {text!r} is not a whole number; a launcher sets it.")
    return int(text)
