"""What `nvidia-smi` says, read from answers of the shapes it gives, and whose memory is nobody's."""

from __future__ import annotations

from tracks_dagster.attempts.machine import (
    MIB,
    DeviceHolder,
    Devices,
    Gpu,
    orphan_memory,
    parse_gpus,
    parse_holders,
)

UUID = "GPU-5b6c9f0e-7d1a-4c55-8f0e-2f1d1a3c9b77"
GPUS = f"{UUID}, NVIDIA GeForce RTX 4090, 24564, 21538\n"
HOLDERS = f"""\
1381, /usr/lib/xorg/Xorg, {UUID}, 12
48213, /opt/venv/bin/python, {UUID}, 10240
48777, /opt/venv/bin/python, {UUID}, 10752
"""
# In a container: no name and no amount; without a process: an empty answer.
HOLDERS_IN_CONTAINER = f"48213, [Not Found], {UUID}, [N/A]\n"
NO_PERMISSION = "Failed to initialize NVML: Insufficient Permissions\n"

GPU = Gpu(
    uuid=UUID, name="NVIDIA GeForce RTX 4090", total_bytes=24564 * MIB, used_bytes=21538 * MIB
)


def test_devices_and_their_memory_are_read() -> None:
    assert parse_gpus(GPUS) == (GPU,)


def test_processes_and_what_they_hold_are_read() -> None:
    holders = parse_holders(HOLDERS)
    assert [(each.pid, each.used_bytes) for each in holders] == [
        (1381, 12 * MIB),
        (48213, 10240 * MIB),
        (48777, 10752 * MIB),
    ]
    assert holders[1].process == "/opt/venv/bin/python"


def test_what_the_driver_does_not_tell_is_not_known() -> None:
    [holder] = parse_holders(HOLDERS_IN_CONTAINER)
    assert (holder.pid, holder.used_bytes) == (48213, None)
    assert parse_gpus(f"{UUID}, NVIDIA GB10, [N/A], [N/A]\n")[0].total_bytes is None


def test_an_answer_of_another_shape_is_not_an_answer() -> None:
    assert parse_gpus(NO_PERMISSION) == parse_gpus("") == ()
    assert parse_holders("No running processes found\n") == ()


def test_memory_of_a_process_that_is_not_a_rank_of_a_living_attempt_is_an_orphans() -> None:
    devices = Devices(gpus=(GPU,), holders=parse_holders(HOLDERS))
    orphans = orphan_memory(devices, {48213: "a/a01", 48777: "b/a02"}, {"a/a01"})
    assert [(each.pid, each.attempt) for each in orphans] == [(1381, None), (48777, "b/a02")]
    assert "b/a02" in orphans[1].words


def test_memory_in_nobodys_name_is_reported_when_it_is_more_than_a_drivers_own() -> None:
    holder = DeviceHolder(pid=1, process="python", uuid=UUID, used_bytes=10240 * MIB)
    [orphan] = orphan_memory(Devices(gpus=(GPU,), holders=(holder,)), {1: "a/a01"}, {"a/a01"})
    assert (orphan.pid, orphan.used_bytes) == (None, (21538 - 10240) * MIB)
    quiet = DeviceHolder(pid=1, process="python", uuid=UUID, used_bytes=(21538 - 500) * MIB)
    assert orphan_memory(Devices(gpus=(GPU,), holders=(quiet,)), {1: "a/a01"}, {"a/a01"}) == ()


def test_where_a_holders_amount_is_unknown_nothing_is_called_nobodys() -> None:
    devices = Devices(gpus=(GPU,), holders=parse_holders(HOLDERS_IN_CONTAINER))
    assert orphan_memory(devices, {48213: "a/a01"}, {"a/a01"}) == ()
