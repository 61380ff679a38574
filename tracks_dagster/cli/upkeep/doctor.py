"""`tracks doctor`: what is missing before the first run, here and where gangs run."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from tracks_dagster.attempts.findings import Finding, Health
from tracks_dagster.clean_errors import clean_text
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import as_json, print_json, print_table
from tracks_dagster.home.home_folder import how_open
from tracks_dagster.settings import Settings, find_file
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import SettingsError, StoreError
from tracks_dagster.track.ports import local_path
from tracks_dagster.track.text.units import counted
from tracks_dagster.wing import launchers
from tracks_dagster.wiring import launching


def _places(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each place of a wing where gangs run."""
    for name, (_, launcher) in reversed(list(launchers().items())):
        text = f"Also check the place that {launcher.file or name} describes."
        command = click.option(f"--{name}", name, is_flag=True, help=text)(command)
    return command


@click.command("doctor")
@_places
@as_json
@click.pass_context
def doctor_command(ctx: click.Context, /, as_json: bool, **asked: bool) -> None:
    """Check what a run needs: the store, this machine, and where gangs run everything that they need.

    Where DAGSTER_HOME names a Dagster of yours: what works less there than with `tracks up`, and what
    is to be switched on.

    Starts nothing and makes no store. To test the store, it puts a random key twice, checks that the
    first one stays, and removes it; a store in a folder keeps the empty folders `probe` and
    `~partial`. Exit code 1 when something is missing; what this account may not read is reported as
    unknown.
    """
    settings = Settings.from_environment()
    places = [name for name, is_asked in asked.items() if is_asked]
    # What cannot be used is refused before anything is looked at.
    of_places = [found for name in places for found in launching(name).findings(settings)]
    of_dagster = _dagster(settings, os.environ.get("DAGSTER_HOME"))
    findings = [_home(settings), _store(settings), *_machine(settings), *of_dagster, *of_places]
    is_ready = all(finding.health is not Health.MISSING for finding in findings)
    if as_json:
        print_json({"is_ready": is_ready, "findings": [to_json(each) for each in findings]})
    else:
        rows = ((each.check, each.health.value, each.words) for each in findings)
        print_table(("check", "", "found"), rows)
        click.echo(_summary(findings, _files(settings, places)))
    ctx.exit(0 if is_ready else BAD_NEWS)


def _files(settings: Settings, places: Sequence[str]) -> list[Path]:
    variables = [launchers()[name][1].file for name in places]
    return [path for each in variables if each and (path := find_file(settings, each)) is not None]


def _home(settings: Settings) -> Finding:
    """Say where other users may read the home: it is ready anyway, so nothing is missing."""
    problem = how_open(settings.home)
    if problem is not None:
        return Finding(check="home", health=Health.UNKNOWN, words=problem)
    words = f"{settings.home} is, or will be made, for this user alone."
    return Finding(check="home", health=Health.OK, words=words)


def _store(settings: Settings) -> Finding:
    from tracks_dagster.stores import try_store

    check, path = "store", local_path(settings.store_url)
    if path is not None and not os.access(path, os.F_OK):
        words = f"{path} is not there yet; the first run makes it."
        return Finding(check=check, health=Health.UNKNOWN, words=words)
    try:
        store = try_store(settings.store_url)
    except (StoreError, SettingsError) as error:
        return Finding(check=check, health=Health.MISSING, words=str(error))
    words = f"{store.url} honours conditional writes."
    return Finding(check=check, health=Health.OK, words=words)


def _machine(settings: Settings) -> list[Finding]:
    """Say what this machine computes with. Its load is nothing missing, but may make runs slow."""
    from tracks_dagster.attempts.effects.local.this_machine import ThisMachine
    from tracks_dagster.processes.process import worker_environment
    from tracks_dagster.training.software import foresee_software

    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    home = next(each for each in (settings.home, *settings.home.parents) if each.is_dir())
    busy = f"; runs are slow while more than {cores} processes want them" if load > cores else ""
    words = (
        f"{counted(cores, 'core')}, load {load:.1f}{busy}; {memory / 2**30:.1f} GiB of memory, "
        f"{shutil.disk_usage(home).free / 2**30:.1f} GiB free for the home."
    )
    health = Health.UNKNOWN if busy else Health.OK
    found = [Finding(check="machine", health=health, words=words)]
    devices = ThisMachine().devices()
    models = Counter(each.name for each in devices.gpus)
    gpus = ", ".join(f"{count} × {name}" for name, count in models.items())
    software = foresee_software(worker_environment())
    cpu = f"none; a rank computes on the CPU, with {counted(software['threads'] or 1, 'thread')}"
    words = f"{devices.problem or gpus or cpu}."
    health = Health.UNKNOWN if devices.problem else Health.OK
    found.append(Finding(check="GPUs", health=health, words=words))
    version = software["torch"]
    if version is None:
        words = "not installed beside tracks: a project needs an interpreter of its own (python:)."
        return [*found, Finding(check="torch", health=Health.UNKNOWN, words=words)]
    built = f"built for CUDA {software['cuda']}" if software["cuda"] else "built for CPUs"
    misfit = devices.gpus and not software["cuda"]
    words = f"{version}, {built}{', so it uses none of the GPUs' if misfit else ''}."
    return [
        *found,
        Finding(check="torch", health=Health.UNKNOWN if misfit else Health.OK, words=words),
    ]


def _dagster(settings: Settings, folder: str | None) -> list[Finding]:
    """Say what works less in a deployment that is not ours, and what keeps attempts from their end."""
    if folder is None or Path(folder) == settings.home / "dagster":
        return []
    from tracks_dagster.home.deployment import find_deployment, what_is_wrong, works_less

    check = "Dagster"
    try:
        found = find_deployment(Path(folder), settings.prefix)
    except Exception as error:  # noqa: BLE001 - whatever its storage and its classes raise
        words = f"The instance of DAGSTER_HOME={folder} cannot be read: {clean_text(str(error))}"
        return [Finding(check=check, health=Health.UNKNOWN, words=words)]
    wrong = [
        Finding(check=check, health=Health.MISSING, words=each) for each in what_is_wrong(found)
    ]
    less = [
        Finding(check=check, health=Health.OK, words=each)
        for each in works_less(found, settings.prefix)
    ]
    return [*wrong, *less]


def _summary(findings: Sequence[Finding], paths: Sequence[Path]) -> str:
    count = Counter(finding.health for finding in findings)
    source = "".join(f"; the cluster's settings are {path}" for path in paths)
    counts = ", ".join(f"{count[health]} {health.value}" for health in Health if count[health])
    return f"{counts}{source}"
