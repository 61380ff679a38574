"""What a machine tells of a gang's end, where it may be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tracks_dagster.training import machine as this_machine
from tracks_dagster.training.machine import MachineWatch

KILLED = "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:75172kB"


def kernel_says(monkeypatch: pytest.MonkeyPatch, *lines: str, at_s: float = 100.0) -> None:
    """Let the kernel's log hold `lines`."""
    records = [(at_s, line) for line in lines]
    monkeypatch.setattr(this_machine, "_LOG", Path(os.devnull))
    monkeypatch.setattr(this_machine, "_kernel_records", lambda descriptor: records)


def test_lines_of_other_processes_and_of_before_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    theirs = "NVRM: Xid (PCI:0000:3b:00): 31, pid=99, name=python"
    kernel_says(monkeypatch, KILLED, xid, theirs, "usb 1-1: new device")
    assert this_machine.kernel_lines_since(99.0, {4711}) == [KILLED, xid]
    assert this_machine.kernel_lines_since(99.0, {1}) == [xid]
    assert this_machine.kernel_lines_since(200.0, {4711}) == []


def test_lines_of_a_device_that_others_were_given_are_left_out_and_ones_own_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for place, uuid in (("0000:3B:00.0", "GPU-mine"), ("0000:5e:00.0", "GPU-theirs")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(f"Model: \t H100\nGPU UUID: \t {uuid}\n")
    monkeypatch.setattr(this_machine, "_NVIDIA", tmp_path)
    mine = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    theirs = "NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus."
    kernel_says(monkeypatch, mine, theirs, at_s=1e12)
    found = MachineWatch(tmp_path, ["GPU-mine"]).report_since_start({1}, is_killed=False)
    assert found["kernel_lines"] == [mine, "PCI:0000:3b:00 is GPU-mine"]
    # a gang that was given none, or a slice of one, may use either
    for given in ([], ["MIG-a"]):
        found = MachineWatch(tmp_path, given).report_since_start({1}, is_killed=False)
        assert found["kernel_lines"][:2] == [mine, theirs]


def test_a_kernel_log_that_may_not_be_read_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(this_machine, "_LOG", tmp_path / "none")
    (line,) = this_machine.kernel_lines_since(0.0, {1})
    assert line.startswith("kernel log not readable")


@pytest.mark.parametrize(
    ("name", "text", "counters"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\n", {"max": 4, "oom_kill": 1}),
        (
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            {"oom_kill": 2, "failcnt": 7},
        ),
    ],
)
def test_both_versions_of_this_machines_are_read(
    tmp_path: Path, name: str, text: str, counters: dict[str, int]
) -> None:
    (tmp_path / name).write_text(text)
    if name == "memory.oom_control":
        (tmp_path / "memory.failcnt").write_text("7\n")
    found = this_machine.read_counters(tmp_path)
    assert {key: found[key] for key in counters} == counters


def test_a_cgroup_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    assert this_machine.NOT_READABLE in this_machine.read_counters(None)
    assert this_machine.NOT_READABLE in this_machine.read_counters(tmp_path)
    (tmp_path / "memory.events").write_text("oom_kill many\n")
    assert this_machine.NOT_READABLE in this_machine.read_counters(tmp_path)


def test_a_kill_in_a_shared_cgroup_counts_only_where_the_kernel_does_not_name_somebody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.events").write_text("oom_kill 3\n")
    monkeypatch.setattr(this_machine, "find_cgroup", lambda: group)
    machine = MachineWatch(tmp_path)
    (group / "memory.events").write_text("oom_kill 4\n")
    kernel_says(monkeypatch, KILLED, at_s=1e12)
    assert machine.report_since_start({4711}, is_killed=True)["cgroup"] == {"oom_kill": 1}
    assert machine.report_since_start({1}, is_killed=True)["cgroup"] == {"oom_kill_unclear": 1}
    monkeypatch.setattr(this_machine, "_LOG", tmp_path / "none")
    assert machine.report_since_start({1}, is_killed=True)["cgroup"] == {"oom_kill": 1}
    # Nobody of this gang was killed: it was a neighbour, or a process that it got on without.
    assert machine.report_since_start({1}, is_killed=False)["cgroup"] == {"oom_kill_unclear": 1}


def test_a_cgroup_that_may_not_be_looked_into_ends_no_gang(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def forbidden(self: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", forbidden)
    assert this_machine.find_cgroup() is None
