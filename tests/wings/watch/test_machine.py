"""An accelerator that nobody holds: an alert in its pool's track after an hour, once."""

from __future__ import annotations

from datetime import timedelta

from tests.fakes import FakeClock, FakeObjectStore
from tests.pools import PoolHistory
from tracks_dagster.attempts.effects.idle import see
from tracks_dagster.attempts.machine import DeviceHolder, Devices, Gpu
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.wings.watch.health.effects.listing import read_alerts
from tracks_dagster.wings.watch.health.effects.watch import watch_machine

GIB = 1024**3
GPUS = tuple(Gpu(uuid=f"GPU-{n}", name="L4", total_bytes=22 * GIB, used_bytes=0) for n in (0, 1))
POOL = "local/node-1"


class Machine:
    """Two GPUs, looked at every half minute, as the daemon does."""

    def __init__(self, store: FakeObjectStore, tracks: Tracks, clock: FakeClock) -> None:
        self.store, self.tracks, self.clock = store, tracks, clock
        pool = PoolHistory(POOL).lease("r-1/a01", "GPU-0")
        pool.write_to(store)
        tracks.project(pool.name)

    def watch(self, minutes: float, *, used: tuple[str, ...] = ()) -> list[str]:
        """Return what was recorded meanwhile. used: the GPUs that somebody is on."""
        holders = tuple(DeviceHolder(pid=1, process="p", uuid=u, used_bytes=GIB) for u in used)
        found = Devices(gpus=GPUS, holders=holders)
        done: list[str] = []
        for _ in range(int(minutes * 2)):
            self.clock.at += timedelta(seconds=30)
            day = see(self.store, found, (), node="node-1", now=self.clock.at)
            assert day is not None
            done += watch_machine(self.tracks, POOL, day, self.clock.at).decided
        return done


def test_an_hour_without_a_holder_is_one_alert_and_a_holder_ends_it(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    machine = Machine(store, tracks, clock)
    assert machine.watch(59, used=("GPU-0",)) == []
    assert machine.watch(10, used=("GPU-0",)) == [
        "local/node-1: Nobody has held 1 accelerator of node-1 for 60 min."
    ]
    [line] = read_alerts(tracks, ledger).lines
    assert (line.run_id, line.pool, line.rule) == (None, POOL, "device_unheld")
    assert machine.watch(120, used=("GPU-0",)) == []
    assert machine.watch(5, used=("GPU-0", "GPU-1")) == ["local/node-1: It is held, used or gone."]
    assert read_alerts(tracks, ledger).lines == ()
    assert len(read_alerts(tracks, ledger, ended=True).lines) == 1


def test_midnight_begins_no_hour_again_and_a_pause_of_the_daemon_does(
    store: FakeObjectStore, tracks: Tracks, ledger: Ledger, clock: FakeClock
) -> None:
    clock.at = clock.at.replace(hour=23, minute=20)
    machine = Machine(store, tracks, clock)
    assert machine.watch(59, used=("GPU-0",)) == []
    clock.advance(3600)  # nobody looked
    assert machine.watch(59, used=("GPU-0",)) == []
    assert len(machine.watch(3, used=("GPU-0",))) == 1
