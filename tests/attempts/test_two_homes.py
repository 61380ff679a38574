"""Two homes of one machine as settings make them, whose devices are given out in one `TRACKS_POOL`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.deciders import world_of
from tests.histories import History
from tracks_dagster.attempts.effects.sharing import share_devices
from tracks_dagster.attempts.effects.watch import survey
from tracks_dagster.scheduling.effects.leases import DevicePool, Shared
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.wiring import App, build


@pytest.fixture
def homes(tmp_path: Path) -> tuple[App, App]:
    """Two homes; one pretended device, which ours gives out too."""
    variables = {"TRACKS_POOL": str(tmp_path / "pool"), "TRACKS_DEVICES": "1"}
    ours, theirs = (
        build(Settings.from_environment({"TRACKS_HOME": str(tmp_path / name), **variables}))
        for name in ("ours", "theirs")
    )
    return ours, theirs


def opened(app: App, run_id: str) -> History:
    return written(
        app, History(run_id, begin=app.now()).declare(compute=ComputeRequest(ranks=1)).open()
    )


def written(app: App, history: History) -> History:
    history.write_to(app.store)
    app.tracks.project(history.name)
    return history


def shared(app: App) -> Shared:
    world = world_of(app.tracks, app.ledger, devices=app.devices)
    found = share_devices(world, survey(world).done, by="tests")
    assert found is not None
    return found


def pool_of(app: App) -> DevicePool:
    assert app.devices is not None
    return app.devices


def test_the_second_home_waits_until_the_run_of_the_first_has_ended(
    homes: tuple[App, App],
) -> None:
    ours, theirs = homes
    first = opened(theirs, "r-1")
    assert shared(theirs).leased == {"r-1/a01"}
    assert pool_of(theirs).confirm("r-1/a01", "dagster-1") is not None
    opened(ours, "r-2")
    (waits,) = shared(ours).waits
    assert "0 of 1 device free; after r-1/a01" in waits.why
    written(theirs, first.supervise().place().end("unknown"))
    assert shared(ours).leased == {"r-2/a01"}
    assert [line.held_by for line in pool_of(theirs).view()[0]] == [("r-2/a01",)]


def test_what_a_removed_home_had_stays_leased_until_a_person_gives_it_back(
    homes: tuple[App, App],
) -> None:
    ours, theirs = homes
    opened(theirs, "r-1")
    shared(theirs)
    pool_of(theirs).confirm("r-1/a01", "dagster-1")
    opened(ours, "r-2")
    shutil.rmtree(theirs.settings.home)
    found = shared(ours)
    assert found.leased == frozenset()
    assert "r-1/a01" in found.problems[0]
    pool_of(ours).release("r-1/a01", by="ann", why="that home was removed")
    assert shared(ours).leased == {"r-2/a01"}
