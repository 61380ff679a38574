"""The environment of a process that trains or evaluates: it talks to the object store only."""

from __future__ import annotations

import os

# No credentials of a database, and no Dagster instance to join.
_KEPT_BACK = ("DAGSTER_", "TRACKS_POSTGRES_URL", "PGPASSWORD")


def worker_environment() -> dict[str, str]:
    """Return this process's variables without those that a worker must not have."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_BACK)}
