"""What a rank says of its device and its process, with a driver that answers, hangs or is not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.fakes import FakeObjectStore
from tracks_dagster.training import journal as journal_module
from tracks_dagster.training.journal import Journal
from tracks_dagster.training.launch import utc_now
from tracks_dagster.training.signals.device_watch import (
    NOT_INSTALLED,
    STALE_S,
    DeviceWatch,
    NvmlWatch,
)

WAIT_S_MAX = 30.0
OWN = "1b8a"


class FakeNvml:
    """NVIDIA's library as far as it is asked. refuses: names of calls that are not supported here."""

    class NVMLError(Exception):
        """Any error of the library."""

    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815 - the library's name

    def __init__(self, *, refuses: tuple[str, ...] = (), name: str = f"GPU-{OWN}") -> None:
        self.refuses = refuses
        self.name = name
        self.xids = [79]
        self.hangs = threading.Event()
        self.is_hanging = threading.Event()
        self.let_go = threading.Event()
        self.asked: set[object] = set()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        answers: dict[str, Callable[..., Any]] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": self._handle,
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(used=2**30, total=2**36),
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=49, memory=10),
            "nvmlDeviceGetPowerUsage": lambda h: 312_500,
            "nvmlDeviceGetTemperature": lambda h, kind: 61,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda h: 0x1 | 0x40,
            "nvmlDeviceGetTotalEccErrors": lambda h, kind, counter: 2,
            "nvmlEventSetCreate": lambda: "events",
            "nvmlDeviceRegisterEvents": lambda h, kinds, events: None,
            "nvmlEventSetWait_v2": self._event,
        }

        def call(*arguments: Any) -> Any:
            if self.hangs.is_set():
                self.is_hanging.set()
                self.let_go.wait(WAIT_S_MAX)
            if name in self.refuses:
                raise self.NVMLError("Not Supported")
            self.asked |= set(arguments)
            return answers[name](*arguments)

        return call

    def _handle(self, uuid: str) -> str:
        if uuid != self.name:
            raise self.NVMLError("Not Found")
        return f"handle of {uuid}"

    def _event(self, events: str, timeout_ms: int) -> Any:
        if not self.xids:
            raise self.NVMLError("Timeout")
        return SimpleNamespace(eventData=self.xids.pop(0))


ALL: dict[str, Any] = {
    "memory_bytes": 2**30,
    "memory_total_bytes": 2**36,
    "util_percent": 49.0,
    "power_w": 312.5,
    "temperature_c": 61.0,
    "throttled": ["hw_thermal_slowdown"],
    "ecc": 2,
    "xid": 79,
}


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def watching() -> Iterator[Callable[..., NvmlWatch]]:
    """Makes a watch that asks every 10 ms, and ends it."""
    made: list[NvmlWatch] = []

    def make(load: Callable[[], Any], **given: Any) -> NvmlWatch:
        made.append(NvmlWatch(OWN, load=load, every_s=0.01, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_the_own_device_tells_all_and_no_other_is_asked(
    watching: Callable[..., NvmlWatch],
) -> None:
    nvml = FakeNvml()
    watch = watching(lambda: nvml)
    wait_for(lambda: watch.newest()[0] != {})
    assert watch.newest() == (ALL, "")
    handles = {each for each in nvml.asked if str(each).startswith("handle")}
    assert handles == {f"handle of GPU-{OWN}"}


def test_what_a_slice_of_a_device_does_not_tell_is_left_out(
    watching: Callable[..., NvmlWatch],
) -> None:
    refused = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlEventSetCreate")
    watch = watching(lambda: FakeNvml(refuses=refused, name=f"MIG-{OWN}"))
    wait_for(lambda: watch.newest()[0] != {})
    left_out = ("util_percent", "power_w", "xid")
    assert watch.newest() == ({k: v for k, v in ALL.items() if k not in left_out}, "")


def test_a_driver_that_hangs_costs_its_figures_and_says_so(
    watching: Callable[..., NvmlWatch],
) -> None:
    nvml, now_s = FakeNvml(), [0.0]
    watch = watching(lambda: nvml, clock=lambda: now_s[0])
    wait_for(lambda: watch.newest()[0] != {})
    nvml.hangs.set()
    assert nvml.is_hanging.wait(WAIT_S_MAX)
    now_s[0] = STALE_S
    assert watch.newest() == (ALL, "")
    now_s[0] = STALE_S + 1.0
    assert watch.newest() == ({}, "NVML has not answered for 31 s")
    nvml.let_go.set()


@pytest.mark.parametrize(
    ("refused", "problem"),
    [
        ("nvmlInit", "NVML: Not Supported"),
        ("nvmlDeviceGetHandleByUUID", "NVML: Not Supported"),
        ("nvmlDeviceGetMemoryInfo", "NVML: Not Supported"),  # the device is lost
    ],
)
def test_a_driver_without_the_device_is_explained(
    watching: Callable[..., NvmlWatch], refused: str, problem: str
) -> None:
    watch = watching(lambda: FakeNvml(refuses=(refused,)))
    wait_for(lambda: watch.newest()[1] != "")
    assert watch.newest() == ({}, problem)


def test_the_extra_that_is_missing_is_explained(watching: Callable[..., NvmlWatch]) -> None:
    def load() -> Any:
        raise ModuleNotFoundError("No module named 'pynvml'")

    watch = watching(load)
    wait_for(lambda: watch.newest()[1] != "")
    assert watch.newest() == ({}, NOT_INSTALLED)


def test_a_rank_on_a_cpu_tells_of_its_process_and_disk(tmp_path: Path) -> None:
    watch = DeviceWatch(torch.device("cpu"), tmp_path, computes=True, clean=str)
    found = watch.look()
    assert set(found) == {"rss_bytes", "cpu_percent", "disk_free_bytes", "read_bytes"}
    assert all(isinstance(each, int | float) and each >= 0 for each in found.values())
    assert watch.newest == found
    parent = DeviceWatch(torch.device("cpu"), tmp_path / "gone", computes=False, clean=str)
    assert parent.look() == {}  # another process trains, and the disk is not there


def test_a_device_that_a_drill_makes_idle_says_so(tmp_path: Path) -> None:
    watch = DeviceWatch(torch.device("cpu"), tmp_path, computes=True, clean=str)
    watch.play_idle()
    found = watch.look()
    assert (found["util_percent"], found["drill"]) == (3.0, "idle_device")


def test_every_heartbeat_has_a_line_of_the_device_beside_it(
    tmp_path: Path, store: FakeObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SHIP_EVERY_S", 0.01)
    watch = DeviceWatch(torch.device("cpu"), tmp_path, computes=True, clean=str)
    journal = Journal(tmp_path / "j" / "rank-0.jsonl", store, prefix="j/", now=utc_now, watch=watch)
    wait_for(lambda: b'"kind":"device"' in b"".join(store.objects.values()))
    journal.close(ship=True)
