"""Dagster's storage in SQLite over connections that stay open: the same files, fewer connections."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from dagster import AssetKey, AssetMaterialization, DagsterInstance
from dagster._core.scheduler.instigation import InstigatorType, TickData, TickStatus
from dagster._core.test_utils import create_run_for_test
from sqlalchemy.pool import Pool

from tracks_dagster.home.dagster_home import local_config, write_config
from tracks_dagster.wings.embedded.edge.programs import PROGRAMS
from tracks_dagster.wings.embedded.edge.sqlite_storage import (
    KEPT_MAX,
    KeptEvents,
    KeptRuns,
    KeptSchedules,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[DagsterInstance]:
    """An instance as a home has it."""
    write_config(tmp_path, local_config(tmp_path, PROGRAMS, on_postgres=False))
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert isinstance(instance.run_storage, KeptRuns)
        assert isinstance(instance.event_log_storage, KeptEvents)
        assert isinstance(instance.schedule_storage, KeptSchedules)
        yield instance


def write(instance: DagsterInstance, name: str) -> str:
    """Store a run with an event, an asset and a tick of that name; return the run's id."""
    run = create_run_for_test(instance, job_name=name)
    instance.report_engine_event(name, run)
    instance.report_runless_asset_event(AssetMaterialization(AssetKey(name)))
    instance.create_tick(tick_of(name))
    return run.run_id


def tick_of(name: str) -> TickData:
    """Return a tick of a sensor of that name."""
    kind, status = InstigatorType.SENSOR, TickStatus.STARTED
    return TickData(name, name, kind, status, timestamp=0.0, selector_id=name)


def check(instance: DagsterInstance, found: dict[str, str]) -> None:
    """Check that all of it is there, for each name with the id of its run."""
    assert {run.job_name: run.run_id for run in instance.get_runs()} == found
    for name, run_id in found.items():
        [log] = instance.all_logs(run_id)
        assert log.dagster_event is not None
        assert log.dagster_event.message == name
        assert instance.get_latest_materialization_event(AssetKey(name)) is not None
        [tick] = instance.get_ticks(name, name)
        assert tick.instigator_name == name


def test_dagsters_own_classes_and_ours_go_on_with_what_the_other_left(
    ours: DagsterInstance, tmp_path: Path
) -> None:
    found = {"ours": write(ours, "ours")}
    write_config(tmp_path, "telemetry: {enabled: false}\n")
    with DagsterInstance.from_config(str(tmp_path)) as own:
        assert not isinstance(own.run_storage, KeptRuns)
        check(own, found)
        found["own"] = write(own, "own")
    check(ours, found)
    found["again"] = write(ours, "again")
    check(ours, found)


def test_what_is_read_and_written_again_opens_no_connection(ours: DagsterInstance) -> None:
    found = {"first": write(ours, "first")}
    check(ours, found)
    opened: list[object] = []
    sqlalchemy.event.listen(Pool, "connect", lambda connection, record: opened.append(connection))
    for number in range(2 * KEPT_MAX):
        ours.create_tick(tick_of(f"tick {number}"))
        check(ours, found)
    assert opened == []


FORKED = """
import os, sys
from dagster import DagsterInstance
from dagster._core.test_utils import create_run_for_test
with DagsterInstance.from_config(sys.argv[1]) as instance:
    create_run_for_test(instance, job_name="before")
    storage = instance.run_storage
    with storage.connect() as connection:
        mine = connection.connection.dbapi_connection
    if os.fork() == 0:
        with storage.connect() as connection:
            assert connection.connection.dbapi_connection is not mine
        create_run_for_test(instance, job_name="child")
        os._exit(0)
    _, status = os.wait()
    assert status == 0
    create_run_for_test(instance, job_name="after")
    assert {run.job_name for run in instance.get_runs()} == {"before", "child", "after"}
"""


def test_a_process_that_was_forked_has_connections_of_its_own(tmp_path: Path) -> None:
    write_config(tmp_path, local_config(tmp_path, PROGRAMS, on_postgres=False))
    command = [sys.executable, "-c", FORKED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
