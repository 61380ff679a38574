"""Who takes devices in triage's plan beside the runs that were named, and what was not looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bodies import placed
from tests.fakes import FakeGangs
from tests.histories import History
from tests.six_variants import NODE, FakeMachine, write_variants
from tracks_dagster.attempts.machine import Devices, Gpu
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.scheduling.model import Plan
from tracks_dagster.track.bodies import ComputeRequest
from tracks_dagster.track.names import LOCAL
from tracks_dagster.wings.kubernetes.settings import KUBERNETES
from tracks_dagster.wings.triage.effects.triage import GivenDevices, Sources, triage

GIB = 2**30
ONE_DEVICE = GivenDevices(devices=1, memory_bytes=24 * GIB, slots=12)
ONE_SLOT = GivenDevices(slots=1)


def write_living(
    sources: Sources, gangs: FakeGangs, launcher: str = LOCAL, accelerator: str = "cpu"
) -> None:
    """Add a run that lives beside the nine variants. accelerator: where its ranks were placed; it was
    declared without one, as every run on this machine is."""
    write_variants(sources.store, gangs)
    ranks = tuple(replace(rank, accelerator=accelerator) for rank in placed("").ranks)
    beside = History("beside").declare(compute=ComputeRequest(launcher=launcher))
    beside.open().supervise().place(ranks=ranks).restore().write_to(sources.store)
    gangs.reports["beside", 1] = GangReport(phase=GangPhase.ALIVE, where=NODE)
    Projector(sources.store, sources.ledger).scan()


@pytest.mark.parametrize("names", [["v2-2"], ["v2-2", "beside"], []])
@pytest.mark.parametrize(
    ("launcher", "accelerator", "starts"),
    [
        (KUBERNETES, "H100", "now"),
        (LOCAL, "cpu", "now"),
        (LOCAL, "H100", "later"),
    ],
)
def test_of_living_runs_only_those_on_this_machines_accelerators_hold_given_devices(
    launcher: str,
    accelerator: str,
    starts: str,
    names: list[str],
    sources: Sources,
    gangs: FakeGangs,
) -> None:
    write_living(sources, gangs, launcher, accelerator)
    found = triage(sources, ONE_DEVICE, run_ids=names)
    assert found.plan.order[0] == "v2-2"
    assert (found.plan.start("v2-2") is not None) == (starts == "now")


@pytest.mark.parametrize(
    ("asked", "gpus", "device"),
    [(ONE_SLOT, 0, "cpu:0"), (ONE_SLOT, 1, "GPU-0"), (ONE_DEVICE, 0, "device 1")],
)
def test_a_run_that_was_never_placed_takes_an_accelerator_where_there_is_one(
    asked: GivenDevices, gpus: int, device: str, sources: Sources, machine: FakeMachine
) -> None:
    machine.found = Devices(
        gpus=tuple(
            Gpu(uuid=f"GPU-{number}", name="H100", total_bytes=GIB, used_bytes=0)
            for number in range(gpus)
        )
    )
    History("wants").declare(compute=ComputeRequest()).write_to(sources.store)
    Projector(sources.store, sources.ledger).scan()
    [start] = triage(sources, asked).plan.starts
    assert start.devices == (device,)


def test_a_run_that_ran_on_cpus_goes_on_there_whatever_devices_are_given(sources: Sources) -> None:
    history = History("ran").declare(compute=ComputeRequest()).open().supervise().place()
    history.restore().end("preempted", last_step=3).write_to(sources.store)
    Projector(sources.store, sources.ledger).scan()
    [start] = triage(sources, ONE_DEVICE).plan.starts
    assert (start.devices, start.why) == (("cpu:0",), "1 CPU slot free")


@pytest.mark.parametrize("asked", [ONE_SLOT, ONE_DEVICE])
def test_what_runs_on_a_cluster_is_left_to_its_own_queue(
    asked: GivenDevices, sources: Sources
) -> None:
    compute = ComputeRequest(launcher=KUBERNETES, device_class="gpu")
    History("far").declare(compute=compute).write_to(sources.store)
    Projector(sources.store, sources.ledger).scan()
    assert triage(sources, asked).plan == Plan()


def test_a_run_on_cpus_that_was_not_named_keeps_its_slot(
    sources: Sources, gangs: FakeGangs
) -> None:
    write_living(sources, gangs)
    declared = History("wants").declare(compute=ComputeRequest())
    declared.write_to(sources.store)
    Projector(sources.store, sources.ledger).scan()
    [waits] = triage(sources, ONE_SLOT, run_ids=["wants"]).plan.waits
    assert (waits.starts, waits.after) == ("later", ("beside",))


@pytest.mark.parametrize(("runs_max", "more"), [(3, True), (4, False)])  # four are not over
def test_unfinished_runs_that_were_not_looked_at_are_reported(
    runs_max: int,
    more: bool,
    sources: Sources,
    gangs: FakeGangs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tracks_dagster.wings.triage.effects.reading.RUNS_MAX", runs_max)
    write_variants(sources.store, gangs)
    Projector(sources.store, sources.ledger).scan()
    named = triage(sources, ONE_DEVICE, run_ids=["v2-2"])
    assert (named.more, named.unfinished_more) == (False, more)
    every = triage(sources, ONE_DEVICE)
    assert (every.more, every.unfinished_more) == (more, more)
