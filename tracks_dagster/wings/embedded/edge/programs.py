"""Dagster's programs of a home as this wing has them."""

from __future__ import annotations

import json
from pathlib import Path

from tracks_dagster.home.programs import Programs

# Until a run that was launched has begun; then it counts as failed. The daemon sees to it that only one
# whose process lives is waited for so long (`run_monitoring`): it is slow, not lost.
RUN_START_S_MAX = 7200


def storage(folder: Path) -> str:
    """Return what dagster.yaml says of storage in SQLite: Dagster's own places, by classes of ours."""
    places = {
        "run_storage": ("KeptRuns", folder / "history"),
        "event_log_storage": ("KeptEvents", folder / "history" / "runs"),
        "schedule_storage": ("KeptSchedules", folder / "schedules"),
    }
    return "".join(
        f"{name}:\n  module: tracks_dagster.wings.embedded.edge.sqlite_storage\n  class: {kept}\n"
        f"  config: {{base_dir: {json.dumps(str(place))}}}\n"
        for name, (kept, place) in places.items()
    )


PROGRAMS = Programs(
    daemon=("tracks_dagster.wings.embedded.edge.daemon",),
    webserver="tracks_dagster.wings.embedded.edge.webserver",
    launcher=("tracks_dagster.wings.embedded.edge.run_launcher", "ProcessRunLauncher"),
    start_s_max=RUN_START_S_MAX,
    storage=storage,
    has_code_server=True,
)
