"""What a query of a person takes is bounded, also inside of one call that cannot be interrupted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import Story
from tracks_dagster.cli.compare import ledger
from tracks_dagster.cli.in_child import in_child
from tracks_dagster.track.errors import InvalidInput, LedgerError

GIB = 2**30


def test_what_comes_of_the_work_comes_back() -> None:
    assert in_child(lambda: [1, {"a": None}], "It", seconds_max=60, bytes_max=GIB) == [
        1,
        {"a": None},
    ]
    big = "x" * 3_000_000
    assert in_child(lambda: big, "It", seconds_max=60, bytes_max=GIB) == big


def test_an_error_of_ours_is_raised_as_it_is() -> None:
    def fails() -> None:
        raise LedgerError("there is none")

    with pytest.raises(LedgerError, match="there is none"):
        in_child(fails, "It", seconds_max=60, bytes_max=GIB)


def test_what_takes_too_long_is_killed() -> None:
    began_s = time.monotonic()
    with pytest.raises(InvalidInput, match="It took longer than"):
        in_child(lambda: time.sleep(600), "It", seconds_max=0.3, bytes_max=GIB)
    assert time.monotonic() - began_s < 300


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is seen on Linux only")
def test_what_takes_too_much_memory_is_killed() -> None:
    def grows() -> None:
        held = []
        while True:
            held.append(b"x" * 10_000_000)

    with pytest.raises(InvalidInput, match="more than 1024 MiB of memory"):
        in_child(grows, "It", seconds_max=200, bytes_max=GIB)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is seen on Linux only")
def test_what_this_process_has_itself_is_not_counted() -> None:
    ballast = bytearray(b"x" * 200_000_000)
    done = in_child(lambda: time.sleep(0.3), "It", seconds_max=60, bytes_max=len(ballast) // 2)
    assert done is None


def test_what_dies_is_said() -> None:
    import os
    import signal

    with pytest.raises(InvalidInput, match="ended its process"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL), "It", seconds_max=60, bytes_max=GIB)


def test_one_call_that_nothing_interrupts_keeps_the_limits_of_a_query(
    story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "SQL_BYTES_MAX", GIB)
    refused = call("sql", "select length(repeat('x', 2000000000))")
    assert refused.exit_code == 2
    assert "The query took" in refused.stderr
