"""What the project around a script says to one that trains alone, outside an attempt.

    python -m tracks_dagster.alone_project FOLDER RANKS

A program of its own, which `training.alone` asks: a gang sees neither settings nor projects. It reads
and writes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tracks_dagster.data.effects.snapshots import find_snapshot
from tracks_dagster.projects.effects.project_file import find_project, read_project
from tracks_dagster.projects.project import Project, resolve_config
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.settings import Settings
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import TracksError
from tracks_dagster.track.records import Json
from tracks_dagster.track.roles import roles_of


def read_beside(folder: Path, ranks: int) -> dict[str, Json]:
    """Return the folder of the project, its config with the roles of the keys, the newest usable
    snapshot of its dataset with the store and the cache that it is read by; problem: why none is there.

    {} where `folder` lies in no project. Raises SettingsError or InvalidInput for one that is wrong.
    """
    home = find_project(folder)
    if home is None:
        return {}
    project = read_project(home)
    config = resolve_config(project, {}, ranks=ranks)
    roles = roles_of(project.roles, config)
    return {"folder": str(home), "config": config, "roles": roles, **_snapshot(project)}


def _snapshot(project: Project) -> dict[str, Json]:
    if project.dataset is None:
        return {}
    try:
        settings = Settings.from_environment()
        snapshot = find_snapshot(open_tracks_to_read(settings), project.dataset)
    except TracksError as error:
        return {
            "problem": f"The dataset {project.dataset}, which it names, cannot be read: {error}"
        }
    store = {"data_url": settings.store_url, "cache": str(settings.cache)}
    return {"snapshot": to_json(snapshot), **store}


if __name__ == "__main__":
    try:
        print(json.dumps(read_beside(Path(sys.argv[1]), int(sys.argv[2]))))
    except TracksError as error:
        sys.exit(str(error))
