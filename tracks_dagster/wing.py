"""Wings: what the core can do without, a folder of `wings/` each, whose first file says what it adds.

The core asks this list, and imports nothing of a wing before it is used; a wing sees the core, and no
other wing (import-linter checks both).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

# Folders of `wings/`, in the order in which what they add is listed.
NAMES = ("lab", "triage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand `x`, which is `x_command` in `module` of its wing.

    summary: its line of `tracks --help`; group: under which title; after: which command it follows.
    """

    module: str
    summary: str
    group: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wing:
    """What one wing adds. commands: by name."""

    commands: Mapping[str, Command]


@cache
def wings() -> Mapping[str, Wing]:
    """Return every wing by the name of its package."""
    packages = [f"tracks_dagster.wings.{name}" for name in NAMES]
    return {package: importlib.import_module(package).WING for package in packages}
