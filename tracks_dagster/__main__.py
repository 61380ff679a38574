"""The program `tracks`, and `python -m tracks_dagster`: the command line, where it is installed.

An environment for gangs alone has this package without what the command needs; the error here says so.
"""

from __future__ import annotations

import sys

WRONG_USE = 2


def main() -> None:
    """Run the command line, or say how to install what it needs."""
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
