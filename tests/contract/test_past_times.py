"""How long runs of a task took before, asked of each database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.bodies import BEGIN, CONFIG, declared
from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.scheduling.effects.recurrence import PastTimes
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.states.checkpoints import CheckpointRef

SOURCE = CheckpointRef("r-0", 1, 20, "runs/r-0/attempts/1/l/step-20/", "a" * 64)
BRANCH = {"branched_from": SOURCE}
LONGER = {"config": {**CONFIG, "steps": 400}}
WIDER = {"compute": ComputeRequest(ranks=4)}


def ran(store: FakeObjectStore, number: int, device_s: float, **changes: Any) -> History:
    history = History(f"r-{number}", begin=BEGIN + timedelta(hours=number))
    history.declare(evals=(), promotion=None, **changes).open().place().restore().commit(40)
    history.end("completed", last_step=40, device_seconds=device_s).finish()
    history.write_to(store)
    return history


@pytest.mark.parametrize(
    ("asked", "expected_s"),
    [
        ({}, 120.0),  # 240 device seconds on two ranks, between 200 and 1800
        (LONGER, 1000.0),
        (WIDER, 50.0),
        (BRANCH, 70.0),
        ({"team": "another"}, None),
        ({"config": {"seed": 7}}, None),  # which names no number of steps
    ],
    ids=["same", "more steps", "more ranks", "a branch", "another team", "no steps"],
)
def test_a_run_is_expected_to_take_as_long_as_those_of_its_task_that_succeeded(
    ledger: SqlLedger, asked: dict[str, Any], expected_s: float | None
) -> None:
    store = FakeObjectStore()
    for number, device_s in enumerate((200.0, 240.0, 1800.0), start=1):
        ran(store, number, device_s)
    ran(store, 4, 2000.0, **LONGER)
    ran(store, 5, 200.0, **WIDER)
    ran(store, 6, 140.0, **BRANCH)
    failed = History("r-7", begin=BEGIN).declare().open().place()
    failed.end("code_error", device_seconds=2.0).write_to(store)
    Projector(store, ledger).scan()
    past = PastTimes(ledger)
    for _ in range(2):
        assert past.expected_s(replace(declared("new"), **asked)) == expected_s
