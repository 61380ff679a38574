"""The health of single devices: who is blamed, what is in quarantine, what is gone from its machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.attempts.test_sharing import HERE, held, opened, pool_of, shared, written
from tests.bodies import BEGIN
from tests.deciders import closed, settled_run, world_of
from tests.fakes import FakeClock, FakeGangs
from tests.histories import History
from tests.pools import on_nodes
from tests.queues import planned, runs, started, wants
from tracks_dagster.attempts.ports import GangPhase, GangReport
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.reasons.evidence import RankEnd
from tracks_dagster.retry.default_policy import DEFAULT_POLICY
from tracks_dagster.retry.effects.node_health import NodeHealth
from tracks_dagster.retry.effects.pool_nodes import quarantine_device, release_device, view_pool
from tracks_dagster.scheduling.effects.leases import DevicePool
from tracks_dagster.scheduling.leases import Found, find_name, without_quarantined
from tracks_dagster.scheduling.model import Device
from tracks_dagster.track.bodies import ComputeRequest, HeldDevices
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.records import format_time
from tracks_dagster.track.states.pool_state import PoolState

TWO = ("GPU-0", "GPU-1")
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."


def trained(run_id: str, *devices: str, begin_s: float = 0.0) -> History:
    """Return a run of this machine whose first attempt trains on these devices, a rank on each."""
    compute = ComputeRequest(ranks=len(devices))
    begin = BEGIN + timedelta(seconds=begin_s)
    history = History(run_id, begin=begin).declare(compute=compute).open(compute=compute)
    given = HeldDevices(pool=HERE.pool, seq=0, devices=devices, why="it is first")
    places = on_nodes(*[HERE.node] * len(devices))
    places = tuple(replace(p, device=name) for p, name in zip(places, devices, strict=True))
    return history.supervise(held=given).place(ranks=places, world_size=len(places))


def report(*codes: int | None, lines: tuple[str, ...] = (), log: str = "") -> GangReport:
    """Return the report on a gang that is gone; the ranks ended with these codes, in this order."""
    ends = tuple(
        RankEnd(
            rank=rank,
            exit_code=code,
            ended_at=format_time(BEGIN + timedelta(seconds=60 + rank)),
            log_tail=log if code else "",
        )
        for rank, code in enumerate(codes)
    )
    return GangReport(phase=GangPhase.GONE, ranks=ends, kernel_lines=lines)


def ended(tracks: Tracks, history: History, found: GangReport, **fields: object) -> History:
    """Close the newest attempt by that report."""
    written(tracks, history)
    gangs = FakeGangs()
    gangs.reports[history.run_id, 1] = found
    closed(tracks, gangs, history.run_id, **fields)  # type: ignore[arg-type]
    tracks.project(history.name)
    return history


def state_of(tracks: Tracks) -> PoolState:
    state = tracks.find_pool(HERE.pool)
    assert state is not None
    return state


def fail_on(
    tracks: Tracks, ledger: Ledger, pool: DevicePool, run_id: str, device: str, begin_s: float
) -> None:
    """Let a run's device break, and decide what follows."""
    ended(tracks, trained(run_id, device, begin_s=begin_s), report(1, lines=(XID,)))
    nodes = NodeHealth(tracks, ledger, DEFAULT_POLICY.nodes, devices=pool)
    settled_run(tracks, run_id, ledger=ledger, nodes=nodes)


@pytest.mark.parametrize(
    ("lines", "codes", "device"),
    [
        (
            (XID, "PCI:0000:3b:00 is GPU-1"),
            (1, 1),
            "GPU-1",
        ),  # the kernel's word, no matter who died first
        ((XID,), (1, 1), "GPU-0"),
        ((XID,), (None, 1), "GPU-1"),
        (("NVRM: Xid (PCI:0000:3b:00): 13, pid=7", "PCI:0000:3b:00 is GPU-1"), (1, 1), None),
    ],
)
def test_the_device_is_blamed_that_the_kernel_names_else_that_of_the_rank_that_failed_first(
    tracks: Tracks, lines: tuple[str, ...], codes: tuple[int | None, ...], device: str | None
) -> None:
    history = ended(tracks, trained("r-1", *TWO), report(*codes, lines=lines))
    [attempt] = tracks.run(history.run_id).attempts
    assert attempt.ended is not None
    assert (attempt.reason == "gpu_hardware") == (device is not None)
    assert attempt.ended.blamed_device == device


def test_the_second_strike_takes_a_device_out_of_the_queue_and_a_release_brings_it_back(
    tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    found = Found(devices=tuple(Device(name=name) for name in TWO))
    pool = pool_of(tracks, look=lambda leased: found)
    for number in (1, 2):
        clock.at = BEGIN + timedelta(hours=number)
        fail_on(tracks, ledger, pool, f"r-{number}", "GPU-1", begin_s=3600.0 * number)
    state = state_of(tracks)
    assert state.nodes == ()  # the machine itself is in no quarantine
    [device] = state.devices
    assert [(s.body.node, s.body.device) for s in device.strikes] == [(HERE.node, "GPU-1")] * 2
    assert device.quarantine_at(tracks.now()) is not None
    opened(tracks, "r-5", ranks=2)
    opened(tracks, "r-6")
    world = world_of(tracks, ledger, devices=pool)
    waits = {each.key: each.why for each in shared(world).waits}
    assert "out is GPU-1 (in quarantine until" in waits["r-5/a01"]
    assert "GPU-1" not in {name for names in held(pool).values() for name in names}
    [line] = view_pool(tracks, ledger, DEFAULT_POLICY.nodes, HERE.pool).nodes
    assert (line.node, line.strikes, line.quarantined_until is not None) == ("GPU-1", 2, True)
    assert release_device(tracks, HERE.pool, "GPU-1", by="ann", why="a new riser") is not None
    assert release_device(tracks, HERE.pool, "GPU-1", by="ann", why="once more") is None
    marked = without_quarantined(found, state_of(tracks), tracks.now())
    assert [each.out for each in marked.devices] == [None, None]


def test_a_person_takes_a_device_out_for_a_time(tracks: Tracks, clock: FakeClock) -> None:
    found = Found(devices=tuple(Device(name=name) for name in TWO))
    quarantine_device(tracks, HERE.pool, "GPU-0", for_s=3600, by="ann", why="a loud fan")
    marked = without_quarantined(found, state_of(tracks), tracks.now())
    assert [each.out for each in marked.devices] == [
        f"in quarantine until {clock() + timedelta(hours=1):%Y-%m-%d %H:%M} UTC by ann: a loud fan",
        None,
    ]
    clock.advance(3601)
    assert without_quarantined(found, state_of(tracks), tracks.now()) == found


@pytest.mark.parametrize("codes", [(1, 1), (None, 1)])
def test_a_device_that_left_its_machine_ends_its_attempt_as_a_fault_of_hardware(
    tracks: Tracks, codes: tuple[int | None, ...]
) -> None:
    pool = pool_of(tracks, gone=lambda names: tuple(n for n in names if n == "GPU-1"))
    crash = "RuntimeError: CUDA error: unspecified launch failure"
    ended(tracks, trained("r-1", *TWO), report(*codes, log=crash), devices=pool)
    [attempt] = tracks.run("r-1").attempts
    assert attempt.ended is not None
    assert (attempt.reason, attempt.ended.blamed_device) == ("gpu_hardware", "GPU-1")
    assert "GPU-1 is not on this machine any more" in attempt.ended.lines[0]


def test_what_did_its_work_needs_its_devices_no_more(tracks: Tracks) -> None:
    pool = pool_of(tracks, gone=lambda names: tuple(names))
    ended(tracks, trained("r-1", *TWO), report(0, 0), devices=pool)
    assert tracks.run("r-1").attempts[0].reason != "gpu_hardware"


def test_a_lease_of_a_device_that_is_gone_holds_up_nobody(tracks: Tracks, ledger: Ledger) -> None:
    there = ["GPU-0", "GPU-1"]

    def look(leased: frozenset[str]) -> Found:
        missing = tuple(sorted(leased - set(there)))
        return Found(devices=tuple(Device(name=name) for name in there), gone=missing)

    def gone(names: object) -> tuple[str, ...]:
        return tuple(n for n in names if n not in there)  # type: ignore[attr-defined]

    pool = pool_of(tracks, look=look, gone=gone)
    world = world_of(tracks, ledger, devices=pool)
    for number in (1, 2, 3):
        opened(tracks, f"r-{number}")
    assert shared(world).leased == {"r-1/a01", "r-2/a01"}
    assert pool.confirm("r-2/a01", "dagster-2") is not None
    there.remove("GPU-0")  # r-1's, which has not started
    assert pool.confirm("r-1/a01", "dagster-1") is None  # it would train on a CPU
    assert shared(world).leased == {"r-2/a01"}
    there[:] = ["GPU-7"]  # r-2's is gone too, and it has started: its own end frees it
    assert shared(world).leased == {"r-1/a01", "r-2/a01"}
    assert held(pool) == {"r-2/a01": ("GPU-1",), "r-1/a01": ("GPU-7",)}


def test_a_plan_goes_on_without_a_device_that_is_gone() -> None:
    """The one who holds it can neither make room with it nor end the plan."""
    lost = runs("old/a01", "GPU-9", left_s=60.0, workload_class="sweep", began_s=-7.0)
    both = runs("both/a01", "GPU-0", "GPU-9", left_s=90.0, workload_class="sweep", began_s=-7.0)
    devices = [Device(name=name) for name in TWO]
    plan = planned(
        [wants("new/a01"), wants("hot/a01", workload_class="urgent")], [lost, both], devices
    )
    assert set(started(plan).values()) == {("GPU-1",)}
    assert len(plan.waits) == 1


def test_a_machine_that_lost_its_only_device_trains_on_no_cpu_unasked(
    tracks: Tracks, ledger: Ledger
) -> None:
    found = Found(devices=(Device(name="GPU-0"),))
    slot = Device(name="cpu:0", kind="cpu")
    first = pool_of(tracks, look=lambda leased: found)
    one = opened(tracks, "r-1")
    assert shared(world_of(tracks, ledger, devices=first)).leased == {"r-1/a01"}
    first.confirm("r-1/a01", "dagster-1")
    written(tracks, one.supervise().place().end("gpu_hardware", last_step=3))
    opened(tracks, "r-2")
    lost = pool_of(tracks, look=lambda _: Found(devices=(slot,), instead="exit status 9"))
    after = shared(world_of(tracks, ledger, devices=lost))
    assert after.leased == frozenset()
    why = {each.key: each.why for each in after.waits}["r-2/a01"]
    assert "GPU-0 was given before, and this machine has no device now (exit status 9)" in why
    assert "TRACKS_DEVICES=cpu:1 trains on its CPUs" in why
    asked = pool_of(tracks, look=lambda _: Found(devices=(slot,)))
    assert "r-2/a01" in shared(world_of(tracks, ledger, devices=asked)).leased


def test_a_device_is_meant_by_the_start_of_its_name() -> None:
    names = ["GPU-ab1", "GPU-ab2", "cpu:0", "pretended:1"]
    assert find_name("GPU-ab2", names, is_known=True) == "GPU-ab2"
    assert find_name("pretended:1", names, is_known=True) == "pretended:1"
    whole = f"GPU-{'0' * 36}"
    assert find_name(whole, [], is_known=False) == whole  # the driver hangs, a person knows
    for given, words in (
        ("GPU-ab", "names several devices of this machine; it has: GPU-ab1, GPU-ab2"),
        ("GPU-zz", "names no device of this machine; it has: GPU-ab1, GPU-ab2, pretended:1"),
        ("cpu:0", "is a slot on CPUs"),
    ):
        with pytest.raises(InvalidInput) as refused:
            find_name(given, names, is_known=True)
        assert words in str(refused.value)
