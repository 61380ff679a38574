"""The folder TRACKS_HOME: whether it can be used, and the file with its layout's version."""

from __future__ import annotations

import json
import os
import stat
import uuid
from pathlib import Path

from tracks_dagster.track.errors import SettingsError
from tracks_dagster.track.json_text import parse_json

PRIVATE = 0o700
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


def make_private(folder: Path) -> None:
    """Create the folder, with those above it, for this user alone; one that is there stays as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=PRIVATE)  # a umask only takes away from it
    except FileExistsError:
        if not folder.is_dir():
            raise


def how_open(folder: Path) -> str | None:
    """Return a warning that other users may enter the folder, and the remedy; None if they may not."""
    if not folder.is_dir():
        return None
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & 0o077:
        return None
    return (
        f"{folder} has mode {mode:04o}: other users of this machine may read the logs of ranks in it. "
        f"`chmod 700 {folder}` narrows it."
    )


def prepare_home(home: Path) -> None:
    """Create `home` and its format.json if they are not there; safe from several processes."""
    try:
        make_private(home)
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
        return int(parse_json(path.read_text())["format"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path} does not say which format this home has ({error}); it is a TRACKS_HOME of "
            "ours only with one. Restore the file, or choose another TRACKS_HOME."
        ) from error
