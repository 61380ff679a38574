"""What this machine says of itself, with a script in `nvidia-smi`'s place."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tracks_dagster.attempts.effects.local import this_machine
from tracks_dagster.attempts.effects.local.this_machine import ThisMachine, find_devices, find_gone
from tracks_dagster.attempts.machine import CPU_SLOTS, MIB, Devices
from tracks_dagster.processes.process import boot_id, this_process
from tracks_dagster.scheduling.devices_given import DevicesGiven, cpu_threads, parse_given

ANSWERS = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "GPU-1, NVIDIA H200, 143771, 10944" ;;
  --query-compute-apps=*) echo "4242, python, GPU-1, 10500" ;;
esac
"""


def test_only_living_processes_are_found_with_their_start() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait()
    found = ThisMachine().look([os.getpid(), gone.pid])
    assert (found.node, found.boot_id) == (platform.node(), boot_id())
    assert found.living == {os.getpid(): this_process().started}
    if sys.platform == "linux":
        assert found.booted_at is not None
        assert found.booted_at < datetime.now(UTC)


def test_devices_and_their_holders_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "NVIDIA_SMI_S_MAX", 60.0)
    install(tmp_path, monkeypatch, ANSWERS)
    found = ThisMachine().devices()
    assert found.problem is None
    assert [(gpu.uuid, gpu.total_bytes) for gpu in found.gpus] == [("GPU-1", 143771 * MIB)]
    assert [(each.pid, each.used_bytes) for each in found.holders] == [(4242, 10500 * MIB)]


def test_a_machine_without_nvidia_smi_has_no_devices_and_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ThisMachine().devices() == Devices()


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\nexec /bin/sleep 60\n"])
def test_a_driver_that_fails_or_hangs_is_a_problem_and_holds_nobody_up(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "NVIDIA_SMI_S_MAX", 0.5)
    install(tmp_path, monkeypatch, script)
    found = ThisMachine().devices()
    assert found.gpus == ()
    assert found.problem is not None
    assert "nvidia-smi did not answer" in found.problem


def test_a_driver_whose_process_cannot_be_killed_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(
        subprocess.Popen, "kill", lambda asked: kills.append(asked)
    )  # as in a driver
    monkeypatch.setattr(this_machine, "NVIDIA_SMI_S_MAX", 0.2)
    monkeypatch.setattr(this_machine, "KILL_S_MAX", 0.1)
    install(tmp_path, monkeypatch, "#!/bin/sh\nexec /bin/sleep 60\n")
    found = ThisMachine().devices()
    assert found.problem is not None
    [asked] = kills
    assert asked.poll() is None  # it was not waited for
    monkeypatch.undo()
    asked.kill()
    asked.wait()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put `script` where `nvidia-smi` is looked for."""
    path = folder / "nvidia-smi"
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


MIG = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "GPU-1, A100, 40960, 10"; echo "GPU-2, A100, 40960, 10" ;;
  --query-compute-apps=*) ;;
  -L) echo "GPU 0: A100 (UUID: GPU-1)"
      echo "  MIG 3g.20gb     Device  0: (UUID: MIG-a)"
      echo "  MIG 3g.20gb     Device  1: (UUID: MIG-b)"
      echo "GPU 1: A100 (UUID: GPU-2)" ;;
esac
"""


def test_a_device_that_was_cut_into_slices_is_given_by_its_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "NVIDIA_SMI_S_MAX", 60.0)
    install(tmp_path, monkeypatch, MIG)
    found = find_devices(DevicesGiven(), "box", frozenset())
    assert [device.name for device in found.devices] == ["MIG-a", "MIG-b", "GPU-2"]
    assert [device.memory_bytes for device in found.devices] == [None, None, 40960 * MIB]


LINKED = """#!/bin/sh
case "$1" in
  --query-gpu=*) echo "GPU-5, H100, 81559, 10"; echo "GPU-6, H100, 81559, 10" ;;
  topo) echo asked >>"$0.asked"; printf '{topo}' ;;
esac
"""
NVLINKED = r"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"


def test_how_devices_are_linked_is_asked_once_where_the_driver_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "NVIDIA_SMI_S_MAX", 60.0)
    this_machine._islands.cache_clear()
    install(tmp_path, monkeypatch, LINKED.format(topo="'; exit 3; '"))
    for _ in range(2):
        found = find_devices(DevicesGiven(), "box", frozenset())
        assert [device.islands for device in found.devices] == [(), ()]
    install(tmp_path, monkeypatch, LINKED.format(topo=NVLINKED))
    for _ in range(2):
        found = find_devices(DevicesGiven(), "box", frozenset())
        assert {device.islands[0] for device in found.devices} == {"NVLink island (GPUs 0-1)"}
    asked = (tmp_path / "nvidia-smi.asked").read_text().split()
    assert len(asked) == 3  # twice in vain
    this_machine._islands.cache_clear()


@pytest.mark.parametrize(
    ("script", "slots"),
    [
        ("#!/bin/sh\nexit 9\n", CPU_SLOTS),  # by nvidia-smi's manual: no driver is loaded
        ("#!/bin/sh\nexit 15\n", None),  # a device fell off the bus: there are devices
        ("#!/bin/sh\nexec /bin/sleep 60\n", None),
    ],
)
def test_slots_are_given_only_where_no_device_can_be_there(
    script: str, slots: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "NVIDIA_SMI_S_MAX", 0.5)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    install(tmp_path, monkeypatch, script)
    found = find_devices(DevicesGiven(), "box", frozenset())
    assert len(found.devices) == (slots or 0)
    assert (found.problem is None) == (slots is not None)


def test_pretended_devices_ask_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "#!/bin/sh\nexec /bin/sleep 60\n")
    found = find_devices(DevicesGiven(pretended=2), "box", frozenset())
    assert [device.name for device in found.devices] == ["pretended:0", "pretended:1"]


@pytest.mark.parametrize(
    ("script", "gone"),
    [
        (MIG, ("GPU-3", "MIG-c")),
        ("#!/bin/sh\nexit 6\n", ("GPU-1", "GPU-3", "MIG-c")),  # by its manual: no device was found
        ("#!/bin/sh\nexit 9\n", ()),  # no driver is loaded, as after a boot: it does not tell
        ("#!/bin/sh\nexit 15\n", ()),
        ("#!/bin/sh\nexec /bin/sleep 60\n", ()),
    ],
)
def test_a_device_is_gone_only_where_the_driver_says_so(
    script: str, gone: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "NVIDIA_SMI_S_MAX", 0.5 if "sleep" in script else 60.0)
    install(tmp_path, monkeypatch, script)
    names = ("GPU-1", "GPU-3", "MIG-c", "pretended:0", "cpu:1")
    assert find_gone(DevicesGiven(), names) == gone
    assert find_gone(DevicesGiven(pretended=2), names) == ()


@pytest.mark.parametrize(
    ("text", "cpus", "threads"),
    [("", 8, 1), ("cpu:2", 8, 4), ("cpu:1", 8, 8), ("cpu:16", 8, 1), ("cpu:3", 8, 2), ("4", 8, 1)],
)
def test_a_rank_computes_with_its_slots_share_of_the_cores(
    text: str, cpus: int, threads: int
) -> None:
    assert cpu_threads(parse_given(text, None), cpus) == threads
