"""Dagster's command line in a pod that was asked for from outside of the cluster.

    python -m tracks_dagster.run_worker api execute_run …

Dagster's storage has a schema of its own in the database of TRACKS_POSTGRES_URL, which only the pod
knows, from a Secret: the URL that `dagster.yaml` refers to is made of it here.
"""

from __future__ import annotations

import os
import sys

from tracks_dagster.home.dagster_home import POSTGRES_VARIABLE, in_own_schema
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import SettingsError


def main() -> None:
    """Become Dagster's command line, by the same arguments; raises SettingsError without Postgres."""
    settings = Settings.from_environment()
    if settings.postgres_url is None:
        raise SettingsError(
            "A run worker in a pod needs TRACKS_POSTGRES_URL; name a Secret that has it in "
            "`run_worker: {env_secrets: […]}` of the cluster's settings."
        )
    variables = {**os.environ, POSTGRES_VARIABLE: in_own_schema(settings.postgres_url)}
    os.execve(sys.executable, [sys.executable, "-m", "dagster", *sys.argv[1:]], variables)


if __name__ == "__main__":
    main()
