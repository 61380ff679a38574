"""The file of trackers that a person wrote, if there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracks_dagster.settings import Settings, find_file
from tracks_dagster.track.errors import SettingsError

if TYPE_CHECKING:
    from tracks_dagster.wings.watch.effects.trackers.tracker_file import NamedTracker

VARIABLE = "TRACKS_TRACKERS"


def load_trackers(settings: Settings) -> tuple[NamedTracker, ...]:
    """Return where curves are sent; nowhere without a file.

    Raises SettingsError naming every error of the file with its line.
    """
    path = find_file(settings, VARIABLE)
    if path is None:
        return ()
    from tracks_dagster.track.effects.settings_file import open_settings
    from tracks_dagster.wings.watch.effects.trackers import tracker_file

    file = open_settings(path, "The file of trackers", list_key=tracker_file.LIST_KEY)
    return tracker_file.read_trackers(file)


def asks_for_trackers() -> bool:
    """Tell whether the environment's home has a file of trackers; not where it names no usable one."""
    try:
        return find_file(Settings.from_environment(), VARIABLE) is not None
    except SettingsError:  # whatever uses the application says what is wrong
        return False
