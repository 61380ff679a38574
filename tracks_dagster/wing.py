"""Wings: what the core can do without, a folder of `wings/` each, whose first file says what it adds.

The core asks this list, and imports nothing of a wing before it is used; a wing sees the core, and no
other wing (import-linter checks both).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from types import ModuleType

from tracks_dagster.track.errors import SettingsError

# Folders of `wings/`, in the order in which what they add is listed.
NAMES = ("embedded", "history", "kubernetes", "lab", "slurm", "triage", "tune", "watch", "agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand `x`, which is `x_command` in `module` of its wing.

    summary: its line of `tracks --help`; group: under which title; after: which command it follows,
    none where it is the group's first.
    """

    module: str
    summary: str
    group: str
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A place where gangs run. module: of its wing, with the functions of `wiring.Launching`.

    file: the variable of the settings without which the place is not set up, one of the wing's. runs:
    what `tracks up --NAME` does, which has Dagster's runs there too; empty where it cannot. asks: who
    answers there, as `tracks stop` names what it waits for. drained: a module with
    `drained_nodes(settings)`, which returns `attempts.findings.DrainedNode`s; empty where it has none.
    lets_go: an attempt's Dagster run ends once its gang is started, and `watch_attempts` watches it:
    one process asks for all.
    """

    module: str
    file: str = ""
    runs: str = ""
    asks: str = ""
    drained: str = ""
    lets_go: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wing:
    """What one wing adds. commands, launchers: by name.

    definitions: modules, each with a function `definitions(site)` that returns jobs, schedules and
    sensors of Dagster.
    settings: its files, by the variable that names one, each with how the home's own is called.
    home: a module with `PROGRAMS`, those of Dagster that serve a home on this machine; one wing's.
    watching: a module with the functions of `review.effects.watching.Watching`; one wing's.
    packages: what its extra of pyproject brings, as they are imported; all of it is used, or nothing.
    """

    commands: Mapping[str, Command] = field(default_factory=dict)
    launchers: Mapping[str, Launcher] = field(default_factory=dict)
    definitions: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    home: str = ""
    watching: str = ""
    extra: str = ""
    packages: tuple[str, ...] = ()


@cache
def wings() -> Mapping[str, Wing]:
    """Return every wing by the name of its package."""
    packages = [f"tracks_dagster.wings.{name}" for name in NAMES]
    return {package: importlib.import_module(package).WING for package in packages}


def load(package: str, module: str) -> ModuleType:
    """Import a module of a wing; raises as `check_installed`."""
    check_installed(package)
    return importlib.import_module(f"{package}.{module}")


def check_installed(package: str) -> None:
    """Raise SettingsError where the wing's extra is not installed, or only half of it."""
    wing = wings()[package]
    if lacking := not_installed(wing.packages):
        raise SettingsError(install_line(package.rpartition(".")[2], lacking, wing.extra))


def not_installed(packages: Iterable[str]) -> list[str]:
    """Return those of the packages that are not there, without importing one."""
    return [each for each in packages if find_spec(each) is None]


def install_line(what: str, lacking: Iterable[str], extra: str) -> str:
    """Say what is not installed, and how to install it."""
    return (
        f"{sys.executable} lacks what {what} needs ({', '.join(lacking)}). Install it: "
        f"{sys.executable} -m pip install 'tracks-dagster[{extra}]'"
    )


@cache
def launchers() -> Mapping[str, tuple[str, Launcher]]:
    """Return the launchers of all wings by name, each with its wing's package."""
    return {
        name: (package, launcher)
        for package, wing in wings().items()
        for name, launcher in wing.launchers.items()
    }


@cache
def settings_files() -> Mapping[str, str]:
    """Return the files of all wings: the variable of each, and how the home's own is called."""
    return {name: file for wing in wings().values() for name, file in wing.settings.items()}
