"""The snapshots that a run needs, made by Dagster's own assets before the run is declared.

The assets and their blocking checks run for real, in a process of their own: the UI shows them, and
this command imports no Dagster.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from tracks_dagster.data.effects.datasets.catalog import DATASETS, ShippedDatasets
from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.home.dagster_home import DagsterHome
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.projects.project import Project
from tracks_dagster.track.errors import OrchestratorError, UnknownRun
from tracks_dagster.track.names import snapshot_asset
from tracks_dagster.track.states.dataset_state import manifest, snapshot_id
from tracks_dagster.wiring import App

MATERIALIZE_S_MAX = 1800.0  # a source of a person's own may be large
OUTPUT_LINES_MAX = 15


def check_source(dataset: str, source: Path) -> str:
    """Return the id of the snapshot that `source` would give; writes nothing that stays.

    Raises InvalidInput when it cannot be read as that dataset, DataRejected naming bad rows.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ShippedDatasets(Path(folder)).prepare(dataset, source) as prepared,
    ):
        return snapshot_id(manifest(dataset, prepared))


def datasets_of(project: Project) -> list[str]:
    """Return the datasets that ship of those that the project trains on and is evaluated on."""
    named = [project.dataset, *(each.dataset for each in project.evals)]
    return [name for name in DATASETS if name in named]


def ensure_snapshots(app: App, home: DagsterHome, wanted: Sequence[str]) -> None:
    """Materialize the snapshots of these datasets that do not exist yet; raises OrchestratorError."""
    missing = [dataset for dataset in wanted if not _has_any(app.tracks, dataset)]
    if missing:
        _materialize(app, home, missing, sources={})


def ensure_snapshot_of(app: App, home: DagsterHome, dataset: str, source: Path, given: str) -> None:
    """Materialize the snapshot `given` of a person's own source unless it exists."""
    if not _exists(app.tracks, dataset, given):
        _materialize(app, home, [dataset], sources={dataset: source.absolute()})


def _has_any(tracks: Tracks, dataset: str) -> bool:
    """Whether there is a snapshot; the declaration refuses one in quarantine, and names it."""
    state = tracks.find_dataset(dataset)
    return state is not None and bool(state.snapshots)


def _exists(tracks: Tracks, dataset: str, wanted: str) -> bool:
    try:
        find_snapshot(tracks, dataset, wanted)
    except UnknownRun:
        return False
    return True


def _materialize(
    app: App, home: DagsterHome, datasets: Sequence[str], *, sources: Mapping[str, Path]
) -> None:
    """Run the assets of `datasets` and their checks in one Dagster run, and wait for its end."""
    prefix = app.settings.prefix
    assets = ["/".join(prefix.path(snapshot_asset(dataset))) for dataset in datasets]
    click.echo(f"making snapshots: {', '.join(assets)}", err=True)
    home.prepare()
    config = {
        "ops": {
            prefix.op(snapshot_asset(dataset)): {"config": {"source": str(path)}}
            for dataset, path in sources.items()
        }
    }
    command = [sys.executable, "-m", "dagster", "asset", "materialize"]
    command += ["-m", "tracks_dagster.definitions", "--select", ",".join(assets)]
    command += ["--config-json", json.dumps(config)] if sources else []
    try:
        done = subprocess.run(
            command,
            cwd=app.settings.root,
            env=home.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MATERIALIZE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OrchestratorError(
            f"Materializing {', '.join(assets)} took more than {MATERIALIZE_S_MAX:g} s and was "
            "ended; no run was declared."
        ) from error
    if done.returncode != 0:
        last_lines = "\n".join((done.stdout + done.stderr).splitlines()[-OUTPUT_LINES_MAX:])
        raise OrchestratorError(
            f"Materializing {', '.join(assets)} failed, so no run was declared. Its last lines:\n"
            f"{app.redact(last_lines)}"
        )
