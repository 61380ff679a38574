"""The program `tracks`, and `python -m tracks_dagster`: the command line, where it is installed.

An environment for gangs alone has this package without what the command needs; the error here says so.
"""

from __future__ import annotations

import gc
import sys

WRONG_USE = 2
# A command's classes and functions live to its end: looking through them after every 700 new objects,
# as Python does by itself, was a sixth of `tracks snapshots add`.
OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])
    try:
        from tracks_dagster.cli import main as command
    except ModuleNotFoundError as error:
        print(
            f"tracks: {sys.executable} has what a gang needs, and the command needs more "
            f"({error.name} is missing). Install it: {sys.executable} -m pip install "
            "'tracks-dagster[control]'",
            file=sys.stderr,
        )
        sys.exit(WRONG_USE)
    command(prog_name="tracks")


if __name__ == "__main__":
    main()
