"""The folder TRACKS_HOME: whether it can be used, and the file that says which layout it has."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from tracks_dagster.core.errors import SettingsError

HOME_FORMAT = 1  # of its layout; a home of a greater one is refused


def check_home(home: Path) -> None:
    """Raise SettingsError when `home` cannot be used; a home that is not there yet can be."""
    for folder in (home, *home.parents):
        if os.access(folder, os.F_OK):
            if folder.is_dir() and not os.access(
                folder, os.X_OK | (os.R_OK if folder == home else 0)
            ):
                raise SettingsError(
                    f"TRACKS_HOME is {home}, and this user may not look into {folder}; ask its owner, "
                    "or choose another TRACKS_HOME."
                )
            break
    if os.access(home, os.F_OK) and not home.is_dir():  # False too where this user may not look
        raise SettingsError(
            f"TRACKS_HOME is {home}, which is a file; name a folder, or one that can be created."
        )
    found = _read_format(home / "format.json")
    if found is not None and found > HOME_FORMAT:
        raise SettingsError(
            f"TRACKS_HOME {home} was written by a newer version (format {found}; this one reads "
            f"{HOME_FORMAT}). Update this checkout, or choose another TRACKS_HOME."
        )


def prepare_home(home: Path) -> None:
    """Create `home` and its format.json if they are not there; safe from several processes."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        path = home / "format.json"
        if not path.exists():
            scratch = home / f".format-{uuid.uuid4().hex}"
            scratch.write_text(json.dumps({"format": HOME_FORMAT}) + "\n")
            scratch.replace(path)
    except OSError as error:
        raise SettingsError(
            f"TRACKS_HOME {home} cannot be written ({error.strerror}); choose a folder that can."
        ) from error


def _read_format(path: Path) -> int | None:
    try:
        return int(json.loads(path.read_text())["format"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path} does not say which format this home has ({error}); it is a TRACKS_HOME of "
            "ours only with one. Restore the file, or choose another TRACKS_HOME."
        ) from error
