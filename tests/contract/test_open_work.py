"""What sensors may have to look at, asked of each database in one query."""

from __future__ import annotations

from dataclasses import replace

from tests.bodies import declared
from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.retry.effects.due import open_work
from tracks_dagster.wings.embedded.sensor_pace import Work


def test_open_runs_and_evals_under_way_are_work_and_what_is_over_is_not(ledger: SqlLedger) -> None:
    store = FakeObjectStore()
    History("r-new").declare().write_to(store)
    History("r-open").declare().open().supervise("d").place().alert().alert().write_to(store)
    History("r-ended").declare().open().end("gpu_oom").write_to(store)
    evaluated = History("r-evaluated").declare().open().supervise("d").place().commit(40)
    evaluated.open_eval(evaluated.state.checkpoints[-1].ref).end().write_to(store)
    over = History("r-over").declare().open().supervise("d").place().commit(40)
    over.end().finish().write_to(store)
    of_commits = (replace(declared().evals[0], every=1),)
    training = History("r-training").declare(evals=of_commits).open().supervise("d").place()
    training.restore().commit(10).commit(20).write_to(store)
    Projector(store, ledger).scan()
    assert sorted((Work(**row) for row in open_work(ledger)), key=repr) == [
        Work(kind="commits", name="r-training", number=2),
        Work(kind="eval", name="r-evaluated/heldout-loss@40", number=1),
        Work(kind="news", name="r-open", number=5),
        Work(kind="run", name="r-ended", number=1, reason="gpu_oom"),
        Work(kind="run", name="r-evaluated", number=1, reason="completed"),
        Work(kind="run", name="r-new", number=0),
        Work(kind="run", name="r-open", number=1),
        Work(kind="run", name="r-training", number=1),
    ]
