"""Who takes devices in triage's plan beside the runs that were named, and what was not looked at."""

from __future__ import annotations

import pytest

from tests.fakes import FakeClock, FakeGangs, FakeObjectStore
from tests.histories import History
from tests.six_variants import MORNING, NODE, FakeMachine, write_variants
from tracks_dagster.adapters.ledger.sql_ledger import SqlLedger
from tracks_dagster.core.bodies import ComputeRequest
from tracks_dagster.core.ports import GangPhase, GangReport
from tracks_dagster.services.projector import Projector
from tracks_dagster.services.triage.judge import Sources, triage
from tracks_dagster.services.triage.room import Asked

ONE_DEVICE = Asked(devices=1, memory_bytes=24 * 2**30, slots=12)
ONE_SLOT = Asked(slots=1)


@pytest.fixture
def gangs() -> FakeGangs:
    return FakeGangs(NODE)


@pytest.fixture
def sources(store: FakeObjectStore, ledger: SqlLedger, gangs: FakeGangs) -> Sources:
    return Sources(
        store=store,
        ledger=ledger,
        launcher_of=lambda name: gangs,
        machine=FakeMachine(),
        now=FakeClock(MORNING),
        clean=lambda text: text,
    )


def write_living(sources: Sources, gangs: FakeGangs, compute: ComputeRequest) -> None:
    """Add a run that lives beside the nine variants."""
    write_variants(sources.store, gangs)
    beside = History("beside").declare(compute=compute).open().supervise().place().restore()
    beside.write_to(sources.store)
    gangs.reports["beside", 1] = GangReport(phase=GangPhase.ALIVE, where=NODE)
    Projector(sources.store, sources.ledger).scan()


@pytest.mark.parametrize(
    ("compute", "starts"),
    [
        (ComputeRequest(launcher="kubernetes", ranks=8, device_class="gpu"), "now"),
        (ComputeRequest(launcher="local", device_class="cpu"), "now"),
        (ComputeRequest(launcher="local", device_class="gpu"), "later"),
    ],
)
def test_of_runs_that_were_not_named_only_those_on_this_machines_accelerators_take_given_devices(
    compute: ComputeRequest, starts: str, sources: Sources, gangs: FakeGangs
) -> None:
    write_living(sources, gangs, compute)
    [planned] = triage(sources, ONE_DEVICE, run_ids=["v2-2"]).plan
    assert planned.starts == starts


def test_a_run_on_cpus_that_was_not_named_keeps_its_slot(
    sources: Sources, gangs: FakeGangs
) -> None:
    write_living(sources, gangs, ComputeRequest(launcher="local", device_class="cpu"))
    declared = History("wants").declare(compute=ComputeRequest(device_class="cpu"))
    declared.write_to(sources.store)
    Projector(sources.store, sources.ledger).scan()
    [planned] = triage(sources, ONE_SLOT, run_ids=["wants"]).plan
    assert (planned.starts, planned.after) == ("later", ("beside",))


@pytest.mark.parametrize(("runs_max", "more"), [(3, True), (4, False)])  # four are not over
def test_unfinished_runs_that_were_not_looked_at_are_told(
    runs_max: int,
    more: bool,
    sources: Sources,
    gangs: FakeGangs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tracks_dagster.services.triage.reading.RUNS_MAX", runs_max)
    write_variants(sources.store, gangs)
    Projector(sources.store, sources.ledger).scan()
    named = triage(sources, ONE_DEVICE, run_ids=["v2-2"])
    assert (named.more, named.unfinished_more) == (False, more)
    every = triage(sources, ONE_DEVICE)
    assert (every.more, every.unfinished_more) == (more, more)
