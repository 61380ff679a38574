"""Gangs on a Slurm cluster, as the core asks for them: the functions of `wiring.Launching`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracks_dagster.attempts.effects.sweeping import sweep
from tracks_dagster.attempts.findings import DrainedNode, Finding
from tracks_dagster.attempts.orphans import StandingGangs
from tracks_dagster.attempts.ports import GangLauncher, GangSpec
from tracks_dagster.ledger.effects.ticks import Tick
from tracks_dagster.settings import Settings, find_file
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.effects.settings_file import open_settings
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.text.redact import Redact, redact
from tracks_dagster.wings.slurm.effects.client import SlurmClient
from tracks_dagster.wings.slurm.effects.launcher import SlurmLauncher, logs_of
from tracks_dagster.wings.slurm.effects.slurm_file import read_slurm
from tracks_dagster.wings.slurm.settings import SLURM, SlurmSettings, run_options, software_of
from tracks_dagster.wings.slurm.submission import submission
from tracks_dagster.wiring import App, new_uid, utc_now

if TYPE_CHECKING:
    from tracks_dagster.home.dagster_home import DagsterHome

VARIABLE = "TRACKS_SLURM"


def load_slurm(settings: Settings) -> SlurmSettings:
    """Return how gangs run on Slurm.

    Raises SettingsError naming every error of the file with its line, or where one would lie.
    """
    path = find_file(settings, VARIABLE)
    if path is None:
        raise SettingsError(
            "There are no settings for gangs on Slurm; write at least `python: …` to "
            f"{settings.home / 'slurm.yaml'}, or name another file in {VARIABLE}."
        )
    return read_slurm(open_settings(path, "Slurm's settings"))


def open_launcher(settings: Settings, store: ObjectStore, clean: Redact) -> GangLauncher:
    """Return the launcher; Slurm is asked when a gang is. Raises SettingsError."""
    slurm = load_slurm(settings)
    return SlurmLauncher(
        SlurmClient(slurm, clean=clean),
        slurm,
        store,
        folder=folder_of(settings),
        now=utc_now,
        new_uid=new_uid,
        clean=clean,
    )


def folder_of(settings: Settings) -> Path:
    """Return where the home keeps what Slurm answered last, and jobs' output."""
    return settings.home / "slurm"


def check_gang(settings: Settings, spec: GangSpec) -> None:
    """Raise InvalidInput for a gang that could not be submitted, as far as settings show."""
    submission(spec, load_slurm(settings), token="", output="")


def drain_grace_s(settings: Settings) -> float:
    """Return how long a gang gets to finish a step and save."""
    return load_slurm(settings).notice_s


def software(settings: Settings, compute: ComputeRequest) -> Mapping[str, Json]:
    """Return the image of the gang, where it has one: what the nodes have is known once it runs."""
    try:
        image = software_of(load_slurm(settings), run_options(compute.slurm, [])).container_image
    except SettingsError:
        return {}
    return {} if image is None else {"image": image}


def findings(settings: Settings) -> Sequence[Finding]:
    """Return what gangs need and the cluster lacks; raises SettingsError."""
    from tracks_dagster.wings.slurm.edge.findings import slurm_findings

    slurm = load_slurm(settings)
    clean = partial(redact, secrets=settings.secrets)
    logs = logs_of(slurm, folder_of(settings))
    return slurm_findings(settings, slurm, SlurmClient(slurm, clean=clean), logs)


def drained_nodes(settings: Settings) -> Sequence[DrainedNode]:
    """Return the nodes that Slurm itself keeps jobs off; raises SettingsError and GangError."""
    from tracks_dagster.wings.slurm.checkup import DRAINED_FORMAT, read_drained

    client = SlurmClient(load_slurm(settings), clean=partial(redact, secrets=settings.secrets))
    return read_drained(client.ask("sinfo", "-R", "-o", DRAINED_FORMAT))


def upkeep(app: App) -> Tick[None]:
    """Cancel what outlived its attempt; raises as the launcher is opened."""
    launcher = app.launcher_of(SLURM)
    if not isinstance(launcher, StandingGangs):
        return Tick(is_done=False)
    return sweep(app.tracks, app.ledger, launcher)


def open_home(settings: Settings) -> DagsterHome:
    """Refuse: Dagster's own runs stay where the home is."""
    raise SettingsError(
        "Dagster's runs are not run as jobs of Slurm: start `tracks up` without it."
    )
