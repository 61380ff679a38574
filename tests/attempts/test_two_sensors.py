"""Two sensors that tick at once in one process, on a real folder, open exactly one attempt."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.deciders import settled_run
from tests.histories import History
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.stores import open_store
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Kind
from tracks_dagster.track.track import read_records
from tracks_dagster.wiring import new_uid, utc_now

ROUNDS = 8
ROUNDS_FULL = 500
SETTLERS = 2
DELAY_S_MAX = 0.003  # about what a decision takes: the one who begins later may still come first


def race(tracks: list[Tracks], run_id: str, random_delay: random.Random) -> list[str]:
    """Let every one of `tracks` settle the run at once, each a random moment later."""
    begin = threading.Barrier(len(tracks))
    delays_s = [random_delay.uniform(0, DELAY_S_MAX) for _ in tracks]
    said: list[str] = []

    def tick(number: int) -> None:
        begin.wait()
        time.sleep(delays_s[number])
        settled = settled_run(
            tracks[number],
            run_id,
            reasons=None,
            decided_by=f"sensor-{number}",
            policy=DEFAULT_POLICY,
        )
        said.append(settled.what)

    threads = [threading.Thread(target=tick, args=(n,)) for n in range(len(tracks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(said)


def opened(store: ObjectStore, run_id: str) -> list[int | None]:
    records = read_records(store, run_track(run_id))
    return [r.attempt_id for r in records if r.kind is Kind.ATTEMPT_OPENED]


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(ROUNDS_FULL, marks=pytest.mark.full)])
@pytest.mark.parametrize("share_memory", [True, False])
def test_of_two_sensors_at_once_exactly_one_opens_the_retry(
    tmp_path: Path, ledger: Ledger, rounds: int, share_memory: bool
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    store = open_store(str(tmp_path / "store"))
    project = Projector(store, ledger).project
    made = [
        Tracks(store, now=utc_now, new_uid=new_uid, project=project)
        for _ in range(1 if share_memory else SETTLERS)
    ]
    settlers = made * (SETTLERS // len(made))
    for number in range(rounds):
        run_id = f"r-{number}"
        history = History(run_id).declare().open().place().restore().commit(10)
        history.end(chance.choice(["preempted", "gpu_oom", "unknown"]), last_step=13)
        history.write_to(store)
        if chance.random() < 0.5:
            settlers[0].run(run_id)  # one of them may know the track already
        assert race(settlers, run_id, chance) == ["opened", "waiting"]
        assert opened(store, run_id) == [1, 2]
    rows = ledger.query("select count(*) as n from training_attempts where attempt_id = 2")
    assert rows[0]["n"] == rounds
