"""The file that says who is sent alerts, if a person wrote one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tracks_dagster.settings import Settings, find_file

if TYPE_CHECKING:
    from tracks_dagster.wings.watch.notifying.delivery import Delivery

VARIABLE = "TRACKS_NOTIFY"


def find_notify_file(settings: Settings) -> Path | None:
    """Return the file with who is sent alerts, or None when there is none."""
    return find_file(settings, VARIABLE)


def load_notify(
    settings: Settings, environment: Mapping[str, str] | None = None
) -> Delivery | None:
    """Return who is sent alerts, and how; None where nobody is.

    A value `$NAME` of the file is looked up in the environment. Raises SettingsError naming every error
    of the file with its line.
    """
    return read_file(find_notify_file(settings), os.environ if environment is None else environment)


def read_file(path: Path | None, environment: Mapping[str, str]) -> Delivery | None:
    """Return what the file says, None without one; raises as `load_notify`."""
    if path is None:
        return None
    from tracks_dagster.track.effects.settings_file import open_settings
    from tracks_dagster.wings.watch.notifying.effects import notify_file

    file = open_settings(path, "The notify file", list_key=notify_file.LIST_KEY)
    return notify_file.read_notify(file, environment)
