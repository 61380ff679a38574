"""The collecting job and its schedule, executed by Dagster in this process."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dagster import DagsterInstance, RunRequest, build_schedule_context

from tests.plain_site import collect_checkpoints, collect_checkpoints_every_15_minutes
from tests.stories import RUN_ID, Story
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import build


class Leftovers:
    def sweep(self, *, older_than_s: float = 0.0) -> int:
        return 7


def test_the_job_collects_every_run_and_says_what_it_did(tmp_path: Path) -> None:
    home = tmp_path / "home"
    app = build(Settings(home=home, store_url=str(home / "store"), root=tmp_path))
    story = Story(app.store)
    story.attempt("preempted", last_step=53, commits=(10, 20, 30, 40, 50))
    story.write_tracks()
    app.projector.scan()
    app = replace(app, leftovers=Leftovers())
    with DagsterInstance.ephemeral() as instance:
        done = collect_checkpoints.execute_in_process(instance=instance, resources={"app": app})
    assert done.success
    [output] = [each for each in done.all_node_events if each.is_successful_output]
    metadata = output.step_output_data.metadata
    counts = {name: metadata[name].value for name in ("runs", "superseded", "swept")}
    assert counts == {"runs": 1, "superseded": 2, "swept": 7}
    statuses = [c.status for c in app.tracks.run(RUN_ID).checkpoints]
    assert statuses == ["superseded", "superseded", "committed", "committed", "committed"]


def test_a_repeated_tick_requests_the_same_pass() -> None:
    tick = datetime(2026, 1, 31, 2, 15, tzinfo=UTC)
    keys = set()
    for _ in range(2):
        with build_schedule_context(scheduled_execution_time=tick) as context:
            request = collect_checkpoints_every_15_minutes(context)
            assert isinstance(request, RunRequest)
            keys.add(request.run_key)
    assert keys == {"20260131T0215"}
