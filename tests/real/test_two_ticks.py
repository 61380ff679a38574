"""Sensor ticks in several processes at once open a retry exactly once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.deciders import settled_run
from tests.histories import History
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.next_sensor import reasons_of
from tracks_dagster.stores import open_store
from tracks_dagster.track.names import RETRY_PREEMPTED, run_track
from tracks_dagster.track.records import Kind
from tracks_dagster.track.track import read_records
from tracks_dagster.wiring import new_uid, utc_now

ROOT = Path(__file__).resolve().parents[2]
TICKS = 4
TICK_S_MAX = 120.0


@pytest.fixture(params=["a folder", "S3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store of either kind."""
    if request.param == "a folder":
        return str(tmp_path / "store")
    url: str = request.getfixturevalue("s3_url")
    return url


def test_of_ticks_at_once_exactly_one_opens_the_retry(store_url: str) -> None:
    store = open_store(store_url)
    history = History("r-1").declare().open().supervise("dead").place().restore().commit(10)
    history.end("preempted", last_step=13).write_to(store)
    ticks = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, store_url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(TICKS)
    ]
    for tick in ticks:
        assert tick.stdout is not None
        assert tick.stdout.readline() == "ready\n"
    for tick in ticks:
        assert tick.stdin is not None
        tick.stdin.write("\n")
        tick.stdin.flush()
    said = [tick.communicate(timeout=TICK_S_MAX)[0].strip() for tick in ticks]
    opened = [r for r in read_records(store, run_track("r-1")) if r.kind is Kind.ATTEMPT_OPENED]
    assert [record.attempt_id for record in opened] == [1, 2]
    assert sorted(said) == ["opened"] + ["waiting"] * (TICKS - 1)


def tick(store_url: str) -> None:
    """Be one tick of the preemption sensor: come up, wait for the word, decide."""
    store = open_store(store_url)
    tracks = Tracks(store, now=utc_now, new_uid=new_uid, project=lambda track: None)
    print("ready", flush=True)
    sys.stdin.readline()
    settled = settled_run(
        tracks,
        "r-1",
        reasons=reasons_of(RETRY_PREEMPTED),
        decided_by=RETRY_PREEMPTED,
        policy=DEFAULT_POLICY,
    )
    print(settled.what)


if __name__ == "__main__":
    tick(sys.argv[1])
