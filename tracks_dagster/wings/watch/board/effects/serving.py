"""Serves the board: on a port of its own, of this machine or for others, or on its starter's socket.

`tracks up` listens itself and starts the board when somebody connects; the board ends when nobody has
asked for anything for long, or when who started it is gone. So a home that nobody looks at pays for no
board.

On 127.0.0.1 the board asks for no password; all is behind the guard of our web servers. Without
`may_write` nothing is written: any method but GET and HEAD is refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.middleware.gzip import GZipMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from tracks_dagster.home.admission import Visitors
from tracks_dagster.home.guard import ANYBODY_HERE, Guard
from tracks_dagster.home.guard import HEADERS as GUARD_HEADERS
from tracks_dagster.home.on_demand import ADDRESS, IDLE_S_MAX
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.watch.board.effects.acting import Acting
from tracks_dagster.wings.watch.board.effects.app import Board
from tracks_dagster.wings.watch.board.effects.sources import Sources

CONNECTIONS_MAX = 64  # at once; more get a 503
BACKLOG = 128
HEAD_S_MAX = 10.0  # from a connection, or the answer before, to the whole head of a request
DRAIN_S_MAX = 2  # for answers that are under way when it ends
LOOK_EVERY_S = 2.0
PLAIN_BYTES_MAX = 1000  # of an answer: a longer one is compressed for who takes it so

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    **GUARD_HEADERS,
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",  # with "no-referrer" a form of ours has the Origin "null"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who is let in, and to what. prefix: the path below which proxies serve it, "" for none."""

    visitors: Visitors = ANYBODY_HERE
    may_write: bool = False
    prefix: str = ""


ONLY_HERE = Access()


def listen(port: int, address: str = ADDRESS) -> socket.socket:
    """Return a socket on an address of this machine; port 0: a free one. Raises InvalidInput."""
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
        found.listen(BACKLOG)  # who opens the address that is printed waits for the first page
    except (OSError, OverflowError) as error:
        found.close()
        raise InvalidInput(
            f"The board cannot listen on {address}:{port}: {error}. Name another port, or 0 for a free "
            "one: `tracks board --port 0`."
        ) from error
    return found


def serve(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    *,
    access: Access = ONLY_HERE,
) -> None:
    """Answer until a signal ends it. on_ready: called with the address."""
    _serve(settings, listener, access, on_ready=on_ready)


def serve_on_demand(settings: Settings, fd: int, *, access: Access = ONLY_HERE) -> None:
    """Answer on the socket `fd` until nobody asks for IDLE_S_MAX, or the parent is gone."""
    _serve(settings, socket.socket(fileno=fd), access, is_on_demand=True)


def guarded(sources: Sources, access: Access = ONLY_HERE) -> Guard:
    """Return the board behind its door."""
    board = Board(
        sources,
        acting=Acting(sources.settings) if access.may_write else None,
        user_header=access.visitors.user_header,
        prefix=access.prefix,
    )
    app = GZipMiddleware(board.app(), minimum_size=PLAIN_BYTES_MAX, compresslevel=6)
    return Guard(app, visitors=access.visitors, only_reads=not access.may_write, headers=HEADERS)


def _serve(
    settings: Settings,
    listener: socket.socket,
    access: Access,
    *,
    on_ready: Callable[[str], None] | None = None,
    is_on_demand: bool = False,
) -> None:
    sources = Sources(settings)
    guard = guarded(sources, access)
    server = uvicorn.Server(
        uvicorn.Config(
            guard,
            http=PromptProtocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            backlog=BACKLOG,
            timeout_graceful_shutdown=DRAIN_S_MAX,
        )
    )
    if is_on_demand:
        threading.Thread(target=_end_unused, args=(server, guard), daemon=True).start()
    if on_ready is not None:
        address, port = listener.getsockname()[:2]
        on_ready(f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}")
    try:
        server.run(sockets=[listener])
    finally:
        sources.close()


class PromptProtocol(H11Protocol):
    """Closes a connection that asks for nothing: without that, a few dozen that are silent would be all
    that there may be, for as long as they like."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request's head."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Go on waiting where it was not a whole head."""
        super().data_received(data)
        self._await_head()

    def on_response_complete(self) -> None:
        """Wait for the next head."""
        super().on_response_complete()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self._due is not None:
            self._due.cancel()

    def _await_head(self) -> None:
        cycle: Any = self.cycle  # None before the first request
        is_asked = cycle is not None and not cycle.response_complete
        if is_asked and self._due is not None:
            self._due.cancel()
            self._due = None
        elif not is_asked and self._due is None:
            self._due = self.loop.call_later(HEAD_S_MAX, self.transport.close)


def _end_unused(server: uvicorn.Server, guard: Guard) -> None:
    parent = os.getppid()
    while os.getppid() == parent and time.monotonic() - guard.last_at < IDLE_S_MAX:
        time.sleep(LOOK_EVERY_S)
    server.should_exit = True
