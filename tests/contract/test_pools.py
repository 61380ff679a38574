"""What ended in a pool of late, and which runs are due: the same answers on both databases."""

from __future__ import annotations

from datetime import timedelta

from tests.bodies import BEGIN
from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.holds.effects.holds import Pools
from tracks_dagster.holds.storm import StormRule
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.retry.effects.due import (
    runs_between_attempts,
    runs_of_a_person,
    runs_with_open_attempts,
)
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.reasons import TerminationReason

SPOT = ComputeRequest(launcher="k8s", device_class="h100", pool="spot")


def test_a_pool_shows_its_newest_ends_and_how_many_runs_it_works_for(
    store: FakeObjectStore, ledger: Ledger
) -> None:
    late = BEGIN + timedelta(hours=1)
    old = History("old").declare(compute=SPOT).open().end("preempted")
    new = History("new", begin=late).declare(compute=SPOT).open().end("node_failure")
    meant = History("meant", begin=late).declare(compute=SPOT).open().end("user_cancelled")
    training = History("training", begin=late).declare(compute=SPOT).open()
    elsewhere = History("elsewhere", begin=late).declare().open().end("preempted")
    for history in (old, new, meant, training, elsewhere):
        history.write_to(store)
    Projector(store, ledger).scan()
    pools = Pools(ledger, StormRule(window_s=300), now=late + timedelta(minutes=2))
    view = pools.view("spot")
    assert [(end.run_id, end.attempt_id) for end in view.ends] == [("new", 1)]
    assert view.ends[0].ended_at == new.state.attempts[0].ended_at
    assert view.run_count == 3  # old, new and training; the other waits for a person
    assert [end.run_id for end in pools.view("local/cpu").ends] == ["elsewhere"]
    assert pools.view("nowhere").ends == ()


def test_the_runs_that_are_due_are_found_oldest_end_first(
    store: FakeObjectStore, ledger: Ledger
) -> None:
    second = History("a", begin=BEGIN + timedelta(minutes=1)).declare().open().end("gpu_oom")
    first = History("b").declare().open().end("host_oom")
    drained = History("c").declare().open().stop("drain").end("user_cancelled")
    refused = History("d").declare().open().end("code_error").refuse()
    for history in (second, first, drained, refused, History("e").declare().open()):
        history.write_to(store)
    Projector(store, ledger).scan()
    ooms = [TerminationReason.GPU_OOM, TerminationReason.HOST_OOM]
    assert runs_between_attempts(ledger, ooms) == ["b", "a"]
    assert runs_between_attempts(ledger, None) == ["b", "a"]
    assert runs_with_open_attempts(ledger) == ["e"]
    assert sorted(runs_of_a_person(ledger)) == ["c", "d"]
