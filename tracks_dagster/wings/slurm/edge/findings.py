"""What gangs need and a Slurm cluster lacks, as `tracks doctor --slurm` lists it."""

from __future__ import annotations

import os
from pathlib import Path

from tracks_dagster.attempts.findings import Finding, Health
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import GangError, GangUnreachable
from tracks_dagster.track.ports import local_path
from tracks_dagster.wings.slurm.checkup import (
    ASSOCIATION_FIELDS,
    DRAINED_FORMAT,
    NODES_FORMAT,
    Facts,
    check,
)
from tracks_dagster.wings.slurm.effects.client import SlurmClient
from tracks_dagster.wings.slurm.settings import SlurmSettings


def slurm_findings(
    settings: Settings, slurm: SlurmSettings, client: SlurmClient, logs: Path
) -> list[Finding]:
    """Return what was found; asks, and submits nothing. logs: the folder of jobs' output."""
    if slurm.host is None:
        logs = nearest(logs)  # the rest is made
    return [_store(settings), *check(read_facts(client, logs), slurm)]


def nearest(path: Path) -> Path:
    """Return the path, or the first folder above it that can be seen; one may be closed to us."""
    return next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110


def read_facts(client: SlurmClient, logs: Path) -> Facts:
    """Ask Slurm's programs; who does not answer is not asked again."""
    problem, is_away = "", False

    def ask(*words: str) -> str | None:
        nonlocal problem, is_away
        if is_away:
            return None
        try:
            return client.ask(*words)
        except GangError as error:
            problem = problem or str(error)
            is_away = isinstance(error, GangUnreachable) or words[-1] == "config"
            return None

    config = ask("scontrol", "show", "config")
    # What asks nobody comes before the database of accounting, which may be away alone.
    logs_type = (ask("stat", "-f", "-c", "%T", "--", str(logs)) or "").strip() or None
    user = ask("id", "-un")
    associations = ("sacctmgr", "-n", "-P", "show", "assoc", f"user={(user or '').strip()}")
    return Facts(
        config=config,
        partitions=ask("scontrol", "show", "partition", "-o"),
        nodes=ask("sinfo", "-h", "-N", "-o", NODES_FORMAT),
        drained=ask("sinfo", "-R", "-o", DRAINED_FORMAT),
        associations=ask(*associations, f"format={ASSOCIATION_FIELDS}"),
        logs=str(logs),
        logs_type=logs_type,
        problem=problem,
    )


def _store(settings: Settings) -> Finding:
    """Say where nodes look for the store; whether they find it, only a job can tell."""
    path = local_path(settings.store_url)
    where = settings.store_url if path is None else f"the folder {path}, at the same path"
    words = f"Nodes look for it at {where}; only a job can tell whether they find it."
    return Finding(check="store, from nodes", health=Health.UNKNOWN, words=words)
