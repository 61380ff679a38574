"""The mode of a new file: private below a folder that nobody else may enter, as TRACKS_HOME is."""

from __future__ import annotations

from collections.abc import Iterable

OTHERS = 0o077  # what a mode gives to the group and to everybody


def file_mode(folders: Iterable[int]) -> int:
    """Return the mode of a new file, for the umask to narrow; folders: modes of all those above it."""
    is_private = any(not mode & OTHERS for mode in folders)
    return 0o600 if is_private else 0o666
