"""A failed attempt is picked at random by the ledger alone, on every database."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from tests.bodies import BEGIN
from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.review.effects.explain.reading import pick_failed

DAY_S = 86_400.0
NOW = BEGIN + timedelta(days=6)


def filled(ledger: Ledger, store: FakeObjectStore) -> None:
    """Two failed attempts of yesterday, one of last month, and one that ended as meant."""
    for run_id, days, reasons in (
        ("r-1", 5, ("preempted", "gpu_oom", "completed")),
        ("r-old", -30, ("hang",)),
    ):
        history = History(run_id, begin=BEGIN + timedelta(days=days)).declare()
        for reason in reasons:
            history.open().place().restore().end(reason, last_step=5)
        history.write_to(store)
    open_one = History("r-open", begin=BEGIN + timedelta(days=5)).declare().open()
    open_one.write_to(store)
    Projector(store, ledger).scan()


def test_only_attempts_that_failed_in_that_time_are_picked(
    ledger: Ledger, store: FakeObjectStore
) -> None:
    filled(ledger, store)
    picked = [pick_failed(ledger, now=NOW, last_s=7 * DAY_S, seed=seed) for seed in range(20)]
    found = Counter((p.run_id, p.attempt_id) for p in picked if p is not None)
    assert set(found) == {("r-1", 1), ("r-1", 2)}
    assert all(p is not None and p.count == 2 for p in picked)


def test_the_same_seed_picks_the_same(ledger: Ledger, store: FakeObjectStore) -> None:
    filled(ledger, store)
    first, again = (pick_failed(ledger, now=NOW, last_s=7 * DAY_S, seed=11) for _ in range(2))
    assert first == again


def test_a_longer_time_finds_the_older_ones(ledger: Ledger, store: FakeObjectStore) -> None:
    filled(ledger, store)
    picked = pick_failed(ledger, now=NOW, last_s=60 * DAY_S, seed=0)
    assert picked is not None
    assert picked.count == 3


def test_where_nothing_failed_nothing_is_picked(ledger: Ledger, store: FakeObjectStore) -> None:
    assert pick_failed(ledger, now=NOW, last_s=7 * DAY_S, seed=0) is None
