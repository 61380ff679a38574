"""Which devices of a machine are given out, and which somebody else holds."""

from __future__ import annotations

import pytest

from tracks_dagster.attempts.machine import MIB, DeviceHolder, Devices, Gpu, pool_devices
from tracks_dagster.scheduling.devices_given import DevicesGiven, parse_given
from tracks_dagster.scheduling.leases import Found, check_demand
from tracks_dagster.scheduling.model import Device
from tracks_dagster.track.errors import InvalidInput

GIB = 1024 * MIB


def gpu(uuid: str, used_bytes: int | None = 300 * MIB) -> Gpu:
    return Gpu(uuid=uuid, name="H100", total_bytes=80 * GIB, used_bytes=used_bytes)


def given_out(found: Devices, text: str = "", visible: str | None = None, **more: object) -> Found:
    fields = {"node": "box", "cpus": 2, "leased": frozenset()} | more
    return pool_devices(parse_given(text, visible), found, **fields)  # type: ignore[arg-type]


def names(found: Found) -> list[str]:
    return [device.name for device in found.devices]


TWO = Devices(gpus=(gpu("GPU-aaa"), gpu("GPU-bbb")))


@pytest.mark.parametrize(
    ("text", "visible", "expected"),
    [
        ("", None, ["GPU-aaa", "GPU-bbb"]),
        ("", "1", ["GPU-bbb"]),  # a person's other devices stay out of it
        ("", "GPU-b", ["GPU-bbb"]),  # as CUDA reads it: by the start of a UUID
        ("GPU-aaa", "1", ["GPU-aaa"]),
        ("cpu:2", None, ["cpu:0", "cpu:1"]),
        ("3", None, ["pretended:0", "pretended:1", "pretended:2"]),
    ],
)
def test_what_is_there_is_given_unless_somebody_says_otherwise(
    text: str, visible: str | None, expected: list[str]
) -> None:
    assert names(given_out(TWO, text, visible)) == expected


def test_without_accelerators_there_are_plenty_of_slots() -> None:
    assert len(given_out(Devices()).devices) == 16
    assert len(given_out(Devices(), cpus=64).devices) == 64
    assert names(given_out(TWO, visible=""))[0] == "cpu:0"  # a person hides them all
    # of a kind that nvidia-smi does not know they are taken by their names
    assert names(given_out(Devices(), "GPU-7f,GPU-8a")) == ["GPU-7f", "GPU-8a"]


def test_a_device_named_that_is_not_there_is_reported() -> None:
    found = given_out(TWO, "GPU-zzz")
    assert found.devices == ()
    assert "none of the devices GPU-zzz is on this machine" in (found.problem or "")


@pytest.mark.parametrize(
    "text", ["0", "9999", "cpu:0", "cpu:", "-1", "x", "GPU-1,GPU-1", ",", "0,1"]
)
def test_devices_that_cannot_be_meant_are_refused_with_what_can(text: str) -> None:
    with pytest.raises(InvalidInput, match="TRACKS_DEVICES is"):
        parse_given(text, None)


def test_a_strangers_device_is_not_given_but_named_with_pid_and_owner() -> None:
    stranger = DeviceHolder(
        pid=4711, process="python", uuid="GPU-aaa", used_bytes=9 * GIB, owner="ada"
    )
    small = DeviceHolder(pid=12, process="Xorg", uuid="GPU-bbb", used_bytes=200 * MIB)
    found = given_out(Devices(gpus=TWO.gpus, holders=(stranger, small)))
    taken, free = found.devices
    assert taken.out == "pid 4711 (python) of ada holds 9.0 GiB of it, given to nobody here"
    assert free.out is None
    # what somebody of ours was given is his own memory
    ours = given_out(Devices(gpus=TWO.gpus, holders=(stranger,)), leased=frozenset({"GPU-aaa"}))
    assert [device.out for device in ours.devices] == [None, None]
    # in a container nobody may be named
    unnamed = given_out(Devices(gpus=(gpu("GPU-aaa", used_bytes=9 * GIB),)))
    assert "9.0 GiB of it is held in nobody's name" in (unnamed.devices[0].out or "")


ADAS = DeviceHolder(pid=4711, process="python", uuid="GPU-aaa", used_bytes=None, owner="ada")
XORG = DeviceHolder(pid=12, process="Xorg", uuid="GPU-aaa", used_bytes=200 * MIB)
OURS_TO_TELL = "pid 4711 (python) of ada is on it"


@pytest.mark.parametrize(
    ("used_bytes", "holders", "words"),
    [
        (70 * GIB, (ADAS,), f"{OURS_TO_TELL}, of which 70.0 GiB are in use, given to nobody here"),
        (70 * GIB, (XORG, ADAS), f"{OURS_TO_TELL}, of which 70.0 GiB are in use"),
        (1 * GIB, (XORG, ADAS), None),  # 824 MiB are left that may be hers
        (1 * GIB, (ADAS,), OURS_TO_TELL),
        (None, (ADAS,), f"{OURS_TO_TELL}, and how much it holds is not known"),
        (None, (XORG,), None),
    ],
)
def test_a_stranger_whose_memory_the_driver_does_not_tell_may_hold_all_that_is_in_use(
    used_bytes: int | None, holders: tuple[DeviceHolder, ...], words: str | None
) -> None:
    found = given_out(Devices(gpus=(gpu("GPU-aaa", used_bytes=used_bytes),), holders=holders))
    [device] = found.devices
    assert (device.out is None) is (words is None)
    assert (words or "") in (device.out or "")


@pytest.mark.parametrize(
    ("count", "devices", "words"),
    [
        (2, ("pretended:0", "pretended:1"), None),
        (3, ("pretended:0", "pretended:1"), "this machine has 2: pretended:0, pretended:1."),
        (17, tuple(f"cpu:{n}" for n in range(16)), "for example cpu:17"),
        (2, ("MIG-a", "MIG-b"), "cannot train on slices of devices"),
        (1, ("MIG-a",), None),
    ],
)
def test_a_gang_that_could_never_start_is_refused_with_what_there_is(
    count: int, devices: tuple[str, ...], words: str | None
) -> None:
    found = Found(devices=tuple(Device(name=name) for name in devices))
    if words is None:
        check_demand(count, found)
        return
    with pytest.raises(InvalidInput) as refused:
        check_demand(count, found)
    assert words in str(refused.value)


def test_nothing_is_refused_where_the_devices_are_not_known() -> None:
    check_demand(64, Found(problem="nvidia-smi did not answer"))
    assert DevicesGiven() == parse_given("", None)
