"""The sensor that sends curves to trackers, on a real application."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance, SkipReason, build_sensor_context

from tests.plain_site import export_curves
from tests.stories import RUN_ID, Story
from tracks_dagster.definitions import defs
from tracks_dagster.defs.site import Site
from tracks_dagster.track.errors import SettingsError
from tracks_dagster.wings.watch.edge.export_curves import definitions
from tracks_dagster.wiring import App


@pytest.fixture
def trackers(app: App, tmp_path: Path) -> Path:
    """The file of trackers, with TensorBoard in a folder beside it."""
    file = app.settings.home / "trackers.yaml"
    file.write_text(f"- tensorboard: {tmp_path}/tensorboard\n")
    return file


def tick(app: App, instance: DagsterInstance) -> str:
    with build_sensor_context(
        instance=instance, resources={"app": app}, definitions=defs
    ) as context:
        result = export_curves(context)
    assert isinstance(result, SkipReason)
    return result.skip_message or ""


@pytest.mark.usefixtures("trackers")
def test_a_tick_sends_what_is_new_and_says_so(
    app: App, instance: DagsterInstance, tmp_path: Path
) -> None:
    folder, story = tmp_path / "tensorboard", Story(app.store)
    story.attempt("preempted", last_step=23, commits=(10, 20))
    story.write_tracks()
    app.tracks.project(story.history.name)
    assert tick(app, instance) == f"{RUN_ID}: 20 steps to TensorBoard's folder {folder}, up to 20"
    assert tick(app, instance) == "no run has anything new"
    assert len(list((folder / RUN_ID).glob("events.out.tfevents.*"))) == 1


def test_a_mistake_in_the_file_fails_the_tick_with_its_line(
    app: App, instance: DagsterInstance, trackers: Path
) -> None:
    trackers.write_text("\n- tensorbord: /data\n")
    with pytest.raises(SettingsError, match="line 2: "):
        tick(app, instance)


@pytest.mark.parametrize(("exports", "count"), [(None, 0), (False, 0), (True, 1)])
def test_who_has_no_file_has_no_such_sensor_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exports: bool | None, count: int
) -> None:
    monkeypatch.setenv("TRACKS_HOME", str(tmp_path))
    monkeypatch.delenv("TRACKS_TRACKERS", raising=False)
    assert len(definitions(Site(exports_curves=exports))) == count
    (tmp_path / "trackers.yaml").touch()
    assert len(definitions(Site(exports_curves=exports))) == (0 if exports is False else 1)
