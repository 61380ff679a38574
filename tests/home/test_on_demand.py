"""A server that its first visitor starts: until then it is a socket, which costs nothing."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tracks_dagster.home import on_demand as module
from tracks_dagster.home.on_demand import OnDemand, on_demand

VISIT_S_MAX = 60.0

# Answers a given number of requests on the socket that it inherited, then ends.
SERVER = """
import http.server, os, socket, sys
fd = int(sys.argv[sys.argv.index("--fd") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
    def log_message(self, *arguments):
        print(*arguments)
server = http.server.HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=fd)
for _ in range(int(sys.argv[1])):
    server.handle_request()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that listens on a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found


def server_of(listener: socket.socket, tmp_path: Path, *, requests: int) -> OnDemand:
    """Return a server that ends after so many requests."""
    command = [sys.executable, "-c", SERVER, str(requests)]
    return OnDemand(listener, command, environment={}, log=tmp_path / "log")


def ask(server: OnDemand) -> str:
    """Return what it answers a visitor, while `wait` is called as `tracks up` does."""

    def visit() -> str:
        with urllib.request.urlopen(server.address, timeout=VISIT_S_MAX) as reply:
            return str(reply.read().decode())

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(visit)
        while not asked.done():
            server.wait(0.1)
        return asked.result()


def test_nothing_is_started_before_somebody_comes(listener: socket.socket, tmp_path: Path) -> None:
    server = server_of(listener, tmp_path, requests=1)
    server.wait(0.1)
    server.end()
    assert not (tmp_path / "log").exists()


def test_visitors_are_answered_by_one_server_and_after_its_end_by_another(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S_MIN", 0.0)
    server = server_of(listener, tmp_path, requests=2)
    pids = [ask(server) for _ in range(3)]
    server.end()
    assert pids[0] == pids[1] != pids[2]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids[2]), 0)


def test_one_that_fails_is_not_started_time_after_time(
    listener: socket.socket, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "print('failed')"]
    server = OnDemand(listener, command, environment={}, log=tmp_path / "log")
    with socket.create_connection(listener.getsockname()):
        server.wait(1.0)  # far less than AGAIN_S_MIN
    server.end()
    assert (tmp_path / "log").read_text() == "failed\n"


def test_it_takes_the_next_port_that_is_free(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with on_demand(port - 1, ["board"], environment={}, log=tmp_path / "log") as server:
            assert not server.address.endswith(f":{port}")
