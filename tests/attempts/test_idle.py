"""Devices that nobody holds: looks, gaps, days, and the line of the account."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import BEGIN, History
from tracks_dagster.attempts.effects.idle import read_days, see
from tracks_dagster.attempts.idle import IdleDay, idle_total, tallied
from tracks_dagster.attempts.machine import DeviceHolder, Devices, Gpu
from tracks_dagster.defs.sensors.watch_attempts import _see
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.review.effects.goodput import read_goodput
from tracks_dagster.review.effects.goodput_text import format_goodput
from tracks_dagster.track.errors import StoreUnavailable
from tracks_dagster.wiring import App

GIB = 1024**3
PRICES = Prices(currency="USD", per_device_hour={"L4": 2.0, "cpu": 1.0})


def gpu(number: int, *, used_bytes: int = 0) -> Gpu:
    return Gpu(uuid=f"GPU-{number}", name="L4", total_bytes=22 * GIB, used_bytes=used_bytes)


STRANGER = DeviceHolder(pid=7, process="python", uuid="GPU-1", used_bytes=GIB)
LEASED = ("GPU-0", "GPU-2")
FOUND = Devices(gpus=(gpu(0), gpu(1), gpu(2), gpu(3, used_bytes=2 * GIB)), holders=(STRANGER,))


def test_the_time_since_the_look_before_counts_as_what_the_look_finds() -> None:
    day = IdleDay(day="2026-01-31", node="n")
    for seconds in (0, 30, 60):
        day = tallied(day, FOUND, {"GPU-0"}, BEGIN + timedelta(seconds=seconds))
    seconds = {name: (d.seen_s, d.others_s, d.idle_s) for name, d in day.devices.items()}
    assert seconds == {
        "GPU-0": (60.0, 0.0, 0.0),  # ours
        "GPU-1": (60.0, 60.0, 0.0),  # a stranger's
        "GPU-2": (60.0, 0.0, 60.0),
        "GPU-3": (60.0, 60.0, 0.0),  # memory in nobody's name, as in a container
    }


def test_a_device_of_which_a_slice_is_leased_is_not_idle() -> None:
    found = Devices(gpus=(replace(gpu(0), slices=("MIG-a", "MIG-b")),))
    day = IdleDay(day="2026-01-31", node="n")
    for seconds in (0, 30):
        day = tallied(day, found, {"MIG-b"}, BEGIN + timedelta(seconds=seconds))
    assert day.devices["GPU-0"].idle_s == 0.0


@pytest.mark.parametrize("passed_s", [-3600.0, 121.0, 86_400.0])
def test_time_in_which_nobody_looked_is_nobodys(passed_s: float) -> None:
    day = tallied(IdleDay(day="2026-01-31", node="n"), FOUND, (), BEGIN)
    day = tallied(day, FOUND, (), BEGIN + timedelta(seconds=passed_s))
    assert {device.seen_s for device in day.devices.values()} == {0.0}
    day = tallied(day, FOUND, (), BEGIN + timedelta(seconds=passed_s + 30))
    assert day.devices["GPU-2"].idle_s == 30.0


def test_idle_hours_stand_beside_the_account_in_money(
    store: FakeObjectStore, ledger: Ledger
) -> None:
    History().declare().write_to(store)
    Projector(store, ledger).scan()
    for turn in range(0, 7201, 60):
        see(store, FOUND, LEASED, node="n", now=BEGIN + timedelta(seconds=turn))
    see(store, Devices(), (), node="without", now=BEGIN)
    found = idle_total(read_days(store, since=None, until=date(2030, 1, 1)), PRICES)
    assert found is not None
    # Two hours of four devices; 0 and 2 are leased, 1 and 3 are in use by others.
    assert (found.devices, found.seen_hours, found.idle_hours) == (4, pytest.approx(8.0), 0.0)
    store.delete(next(iter(store.list("daemon/devices/"))))
    for turn in range(0, 7201, 60):
        only = Devices(gpus=(gpu(4),))
        see(store, only, (), node="n", now=BEGIN + timedelta(seconds=turn))
    as_of = BEGIN + timedelta(hours=3)
    goodput = read_goodput(ledger, as_of=as_of, prices=PRICES, store=store)
    assert (
        "held by nobody: 2.000 device hours, 4.00 USD, of 2.000 in which the daemon saw 1 device"
    ) in format_goodput(goodput)
    of_family = read_goodput(ledger, as_of=as_of, family="gpt", store=store)
    assert of_family.nobody is None
    assert list(read_days(store, since=date(2026, 2, 1), until=date(2026, 2, 2))) == []


def test_the_watcher_sees_the_devices_of_its_machine_and_who_has_them(
    store: FakeObjectStore, tracks: Tracks
) -> None:
    devices = SimpleNamespace(
        leased=lambda: frozenset({"GPU-0"}), tracks=tracks, here=SimpleNamespace(pool="local/n")
    )
    app = SimpleNamespace(
        look_at_devices=lambda: FOUND, store=store, devices=devices, now=lambda: BEGIN
    )
    assert not _see(cast(App, app)).problems
    app.now = lambda: BEGIN + timedelta(seconds=30)
    assert not _see(cast(App, app)).problems
    [day] = read_days(store, since=None, until=BEGIN.date())
    assert {name: each.idle_s for name, each in day.devices.items()} == {
        "GPU-0": 0.0,
        "GPU-1": 0.0,
        "GPU-2": 30.0,
        "GPU-3": 0.0,
    }

    def unreadable() -> frozenset[str]:
        raise StoreUnavailable("it is away")

    devices.leased = unreadable
    assert _see(cast(App, app)).problems == ("devices not seen: it is away",)
    app.look_at_devices = lambda: Devices(problem="nvidia-smi did not answer")
    assert _see(cast(App, app)).problems == ("devices not seen: nvidia-smi did not answer",)
