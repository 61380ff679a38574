"""`tracks checkpoints save`: this very process plays the rank that is asked."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.histories import History
from tracks_dagster.processes.process import this_process
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import RankPlace
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.wiring import build


@pytest.fixture
def store(home: Path) -> ObjectStore:
    """The store of that home."""
    return build(Settings.from_environment()).store


@pytest.fixture
def training(store: ObjectStore) -> History:
    """A run that trains in this process."""
    me = this_process()
    place = RankPlace(
        rank=0,
        node="here",
        pid=me.pid,
        pid_started=me.started,
        boot_id=me.boot_id,
        device="cpu",
        accelerator="cpu",
    )
    history = History("r-1").declare().open().place(ranks=(place,), world_size=1).restore()
    history.write_to(store)
    return history


@pytest.fixture
def saves_when_asked(training: History, store: ObjectStore) -> Iterator[None]:
    """Commit step 23 at SIGUSR1."""

    def save(*_: object) -> None:
        training.commit(23, trigger="demand").write_to(store)

    before = signal.signal(signal.SIGUSR1, save)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("saves_when_asked")
def test_the_checkpoint_that_came_of_it_is_named(training: History, call: Call) -> None:
    result = call("checkpoints", "save", "r-1")
    assert result.exit_code == 0, result.stderr
    ref = training.state.checkpoints[0].ref
    assert "Step 23 of r-1, attempt 1, committed (demand): record" in result.stdout
    assert ref.manifest_sha256 in result.stdout


@pytest.mark.usefixtures("saves_when_asked")
def test_the_same_as_json(training: History, call: Call) -> None:
    result = json.loads(call("checkpoints", "save", "r-1", "--json").stdout)
    assert (result["ref"]["step"], result["problem"]) == (23, None)


def test_a_save_that_does_not_come_in_time_is_bad_news(training: History, call: Call) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    result = call("checkpoints", "save", "r-1", "--wait", "0.1")
    signal.signal(signal.SIGUSR1, before)
    assert result.exit_code == 1
    assert "No checkpoint of r-1/a01 came yet" in result.stdout


def test_a_process_that_does_not_listen_is_sent_nothing(training: History, call: Call) -> None:
    result = call("checkpoints", "save", "r-1")
    assert result.exit_code == 2
    assert "does not listen" in result.stderr
