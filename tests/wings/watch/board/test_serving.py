"""The board listens on this machine's own address, and one that nobody looks at ends."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.watch.board.effects import serving
from tracks_dagster.wings.watch.board.effects.serving import listen


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


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server with the board's protocol and number of connections, over an application of one word."""

    async def word(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("here")(scope, receive, send)

    monkeypatch.setattr(serving, "HEAD_S_MAX", 0.5)
    config = uvicorn.Config(
        word,
        http=serving.PromptProtocol,
        lifespan="off",
        log_level="critical",
        limit_concurrency=serving.CONNECTIONS_MAX,
    )
    with listen(0) as listener:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_connections_that_ask_for_nothing_do_not_shut_the_board(
    first: bytes, board: tuple[str, int]
) -> None:
    silent = [socket.create_connection(board) for _ in range(serving.CONNECTIONS_MAX)]
    for each in silent:
        each.sendall(first)
        each.settimeout(120)
    for each in silent:
        assert each.recv(1) == b""  # it is closed
        each.close()
    with urllib.request.urlopen(f"http://127.0.0.1:{board[1]}/") as reply:
        assert reply.read() == b"here"


def test_a_connection_that_is_kept_is_answered_again_and_then_closed(
    board: tuple[str, int],
) -> None:
    with socket.create_connection(board) as kept:
        kept.settimeout(120)
        for _ in range(3):
            kept.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while b"here" not in (data := kept.recv(4096)):
                assert data
        assert kept.recv(1) == b""
