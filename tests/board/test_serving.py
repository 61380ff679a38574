"""The board listens on this machine's own address, and one that nobody looks at ends."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest

from tracks_dagster.board.effects import serving
from tracks_dagster.board.effects.serving import listen
from tracks_dagster.track.errors import InvalidInput


def test_it_is_bound_to_this_machines_own_address() -> None:
    with listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        socket.create_connection(listener.getsockname()).close()  # who comes early waits


def test_a_port_that_is_taken_is_said_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"127.0.0.1:{port}: .*`tracks board --port 0`"):
            listen(port)


def watched(*, asked_s_ago: float) -> bool:
    """Return whether a server that was asked so long ago has to end, when the watch over it is done."""
    server = SimpleNamespace(should_exit=False)
    guard = SimpleNamespace(last_at=time.monotonic() - asked_s_ago)
    serving._end_unused(server, guard)  # type: ignore[arg-type]
    return server.should_exit


def test_it_ends_when_nobody_asks_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving.time, "sleep", lambda seconds: pytest.fail("it has been long"))
    assert watched(asked_s_ago=serving.IDLE_S_MAX + 1)


def test_it_ends_when_who_started_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter((4711, 4711, 1))
    monkeypatch.setattr(serving.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(serving, "LOOK_EVERY_S", 0.0)
    assert watched(asked_s_ago=0.0)
    assert next(parents, None) is None
