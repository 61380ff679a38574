"""A project trains on files of its own, in a real gang: frozen, fetched, verified, or refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.asked import Asked, declare
from tests.fakes import FakeOrchestrator
from tracks_dagster.attempts.effects.local.launcher import LocalLauncher
from tracks_dagster.attempts.effects.local.project_code import read_project_code
from tracks_dagster.attempts.effects.supervise import Supervisor
from tracks_dagster.data.effects.snapshots import Added, add_files
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.settings import Settings
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.states.run_state import AttemptState
from tracks_dagster.wiring import App, build

TRACKS_YAML = "name: reads\nentry: train.py\ndataset: corpus\n"
TRAIN = """
import numpy, torch
from tracks_dagster.training import attempt

with attempt.join() as a:
    tokens = numpy.memmap(a.data() / "sub" / "train.bin", dtype=numpy.uint16, mode="r")
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    a.register(model=model, optimizer=optimizer)
    rows = torch.from_numpy(tokens.astype(numpy.float32))[:, None]
    sampler = a.sampler(len(rows), seed=1, global_batch=2)
    for step, batch in a.steps(torch.utils.data.DataLoader(rows, batch_sampler=sampler), until=2):
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        a.report(step, loss=loss)
    print("read from", a.data(), "token", int(tokens[0]))
"""


@pytest.fixture
def app(tmp_path: Path) -> App:
    return build(Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")}))


@pytest.fixture
def gangs(app: App) -> Iterator[LocalLauncher]:
    launcher = LocalLauncher(app.settings.work)
    yield launcher
    for folder in app.settings.work.glob("*/a*"):
        launcher.kill(AttemptRef(folder.parent.name, 1))


def add(app: App, folder: Path, *, in_place: bool) -> Added:
    cache = app.settings.cache
    return add_files(
        app.tracks, app.datasets, "corpus", str(folder), in_place=in_place, cache=cache
    )


def train(app: App, gangs: LocalLauncher, project: Path, run_id: str) -> AttemptState:
    found = read_project_code(project, store_url=app.store.url, clean=app.redact)
    request = Asked(found=found).but(run_id=run_id, intent="A test.", owner="ann")
    declare(app.tracks, request)
    attempt = Supervisor(
        tracks=app.tracks,
        gangs=gangs,
        orchestrator=FakeOrchestrator(),
        foresee=lambda *_: {},
        policy=DEFAULT_POLICY,
        dagster_run_id="mine",
        host="node-1",
        sleep=lambda seconds: time.sleep(0.1),
        on_growth=lambda state: None,
    ).supervise(run_id, 1)
    assert attempt is not None
    return attempt


def test_a_project_reads_its_frozen_files_and_changed_ones_in_place_end_its_attempt(
    app: App, gangs: LocalLauncher, tmp_path: Path
) -> None:
    data, project = tmp_path / "corpus", tmp_path / "project"
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "train.bin").write_bytes(b"\x07\x00" * 8)
    project.mkdir()
    (project / "tracks.yaml").write_text(TRACKS_YAML)
    (project / "train.py").write_text(TRAIN)

    copied = add(app, data, in_place=False).body
    first = train(app, gangs, project, "copied")
    assert first.opened.snapshot is not None
    assert first.opened.snapshot.snapshot_id == copied.snapshot_id
    assert first.ended is not None
    assert (first.ended.reason, first.ended.last_step) == ("completed", 2)
    cached = app.settings.cache / "data" / copied.snapshot_id
    log = (app.settings.work / "copied" / "a01").glob("**/*.log")
    assert f"read from {cached} token 7" in "".join(path.read_text() for path in log)

    add(app, data, in_place=True)
    (data / "sub" / "train.bin").write_bytes(b"\x08\x00" * 8)
    second = train(app, gangs, project, "in-place")
    assert second.ended is not None
    assert (second.ended.reason, second.ended.last_step) == ("bad_input_data", None)
    assert "sub/train.bin" in " ".join(second.ended.lines)
