"""Dagster's daemon of a home: `python -m tracks_dagster.wings.embedded.edge.daemon WORKSPACE SOCKETS`.

Its parts are Dagster's own, with two differences: how often a sensor ticks (`paced_sensors` beside
this), and the code server, of which there is one (`one_code_server` beside this).
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tracks_dagster.projects.effects.project_file import FILE
from tracks_dagster.projects.effects.registered import FOLDER, SHIPPED
from tracks_dagster.settings import Settings
from tracks_dagster.wings.embedded.edge.one_code_server import CodeServer, Stamps
from tracks_dagster.wings.embedded.edge.plain_imports import import_plain

BESIDE = Path(__file__).parents[3]  # the checkout, or where packages are installed
PACKAGES = ("tracks_dagster", "assets", "resources", "sensors")


def main(arguments: Sequence[str]) -> None:
    """Be the daemon until SIGTERM or Ctrl-C."""
    workspace, sockets = map(Path, arguments)
    settings = Settings.from_environment()
    server = CodeServer(sockets, root=settings.root, stamps=partial(loaded_files, settings))
    try:
        server.start()
        # Only now: it takes as long as the code server's own imports.
        import_plain()
        from tracks_dagster.wings.embedded.edge.paced_sensors import run_daemons

        server.wait()
        with server.kept():
            run_daemons(workspace)
    finally:
        server.close()


def loaded_files(settings: Settings) -> Stamps:
    """Return what a code server loads: our packages, and the files of projects."""
    paths = [path for package in PACKAGES for path in (BESIDE / package).rglob("*.py")]
    paths += [settings.examples / name / FILE for name in SHIPPED]
    paths += (settings.home / FOLDER).glob(f"*/{FILE}")
    return {str(path): _stamp(path) for path in paths}


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1:])
