"""Dagster's web server behind our guard: `python -m tracks_dagster.defs.resources.webserver`.

It takes the options of Dagster's own.

On a laptop `tracks up` starts it; in the image it has the name `dagster-webserver`, by which Dagster's
Helm chart starts it. --allow-host NAME, as often as one likes: a name by which others come, through a
proxy; the host of TRACKS_UI_URL is allowed too.
"""

import argparse
import sys
from typing import Any

from dagster_webserver import app, cli

from tracks_dagster.home.admission import Visitors, check_hosts, host_of
from tracks_dagster.home.guard import Guard
from tracks_dagster.settings import Settings


def main() -> None:
    """Serve the UI until SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--allow-host", action="append", default=[])
    given, sys.argv[1:] = parser.parse_known_args()
    hosts = check_hosts(given.allow_host) | host_of(Settings.from_environment().ui_url)
    visitors = Visitors(hosts=hosts)
    make = app.create_app_from_workspace_process_context

    def guarded(*arguments: Any, **options: Any) -> Guard:
        return Guard(make(*arguments, **options), visitors=visitors, only_reads=False)

    setattr(cli, make.__name__, guarded)
    cli.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
