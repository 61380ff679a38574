"""Which leases hold: by the track of the run, by the machine's boot, by time where nobody came."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.histories import History
from tests.pools import PoolHistory
from tracks_dagster.scheduling.leases import (
    LEASE_S_MAX,
    Here,
    Holder,
    device_environment,
    has_ended,
    two_machines,
    why_over,
)
from tracks_dagster.track.states.pool_state import Lease

HERE = Here(node="box", boot_id="boot-2", machine_id="m-1")
KEY = "r-1/a01"
OPEN = History("r-1").declare().open()
ENDED = History("r-1").declare().open().supervise().place().end("completed", last_step=40)


def leased(*, confirmed: bool = False, key: str = KEY, **changes: str) -> Lease:
    history = PoolHistory(HERE.pool).lease(key, "GPU-1", **changes)
    if confirmed:
        history.confirm(0)
    lease = history.state.lease_of(key)
    assert lease is not None
    return lease


@pytest.mark.parametrize(
    ("holder", "waited_s", "over"),
    [
        (Holder(lease=leased(), state=OPEN.state), LEASE_S_MAX, None),
        (Holder(lease=leased(), state=OPEN.state), LEASE_S_MAX + 1, "nobody came for it in 600 s"),
        # a clock that was set back by hours holds nothing for hours
        (Holder(lease=leased(), state=OPEN.state), -LEASE_S_MAX - 1, "nobody came for it in 600 s"),
        # what has started keeps its devices, however long it takes
        (Holder(lease=leased(confirmed=True), state=OPEN.state), 1e7, None),
        (Holder(lease=leased(confirmed=True), state=ENDED.state), 0.0, "r-1/a01 has ended"),
        # a run that no track has any more can record nothing
        (Holder(lease=leased(confirmed=True)), 0.0, "r-1/a01 has ended"),
        # nobody can tell: it holds
        (Holder(lease=leased(confirmed=True), unread="no such host"), 1e7, None),
        (Holder(lease=leased(), unread="no such host"), 1e7, "nobody came for it in 600 s"),
        # its home may be gone too, but its processes are
        (
            Holder(lease=leased(confirmed=True), unread="no such host", is_gone=True),
            0.0,
            "nothing of r-1/a01 lives any more",
        ),
        # no process outlives a boot
        (
            Holder(
                lease=leased(confirmed=True, boot_id="boot-1", machine_id="m-1"),
                unread="no such host",
            ),
            0.0,
            "the machine was booted since",
        ),
        # of another machine, or of one that does not say which it is, nobody knows that
        (
            Holder(
                lease=leased(confirmed=True, boot_id="boot-1", machine_id="m-2"), state=OPEN.state
            ),
            0.0,
            None,
        ),
        (Holder(lease=leased(confirmed=True, boot_id="boot-1"), state=OPEN.state), 0.0, None),
    ],
)
def test_a_lease_holds_until_one_of_three_things(
    holder: Holder, waited_s: float, over: str | None
) -> None:
    now = holder.lease.at + timedelta(seconds=waited_s)
    assert why_over(holder, HERE, now) == over


def test_an_eval_has_ended_when_that_try_at_it_has() -> None:
    trained = History("r-1").declare().open().supervise().place().restore().commit(40)
    trained.open_eval(trained.state.checkpoints[-1].ref)
    opened = trained.state.evals[-1].opened
    key = f"r-1/{opened.eval_id}"
    assert not has_ended(trained.state, f"{key}/1")
    assert has_ended(trained.state, f"{key}/2")
    trained.end_eval(opened)
    assert has_ended(trained.state, f"{key}/1")


def test_two_machines_of_one_name_are_distinguished() -> None:
    assert two_machines([leased(machine_id="m-1"), leased()], HERE) is None
    words = two_machines([leased(machine_id="m-2")], HERE)
    assert words is not None
    assert "r-1/a01 holds devices of machine m-2, this is m-1" in words
    assert "TRACKS_POOL" in words


@pytest.mark.parametrize(
    ("devices", "hides", "seen"),
    [
        (("GPU-1", "GPU-2"), False, "GPU-1,GPU-2"),
        (("MIG-1",), False, "MIG-1"),
        (("pretended:0",), True, ""),
        (("cpu:0", "cpu:1"), True, ""),
        (("cpu:0",), False, None),  # there may be accelerators of a kind that is not known here
    ],
)
def test_what_starts_sees_its_own_devices_and_no_others(
    devices: tuple[str, ...], hides: bool, seen: str | None
) -> None:
    given = device_environment(devices, hides_gpus=hides)
    assert given["TRACKS_LEASED_DEVICES"] == ",".join(devices)
    assert given.get("CUDA_VISIBLE_DEVICES") == given.get("HIP_VISIBLE_DEVICES") == seen
