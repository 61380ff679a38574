"""Serves the board on 127.0.0.1: on a port of its own, or on the socket of who started it.

`tracks up` listens itself and starts the board when somebody connects; the board ends when nobody has
asked for anything for long, or when who started it is gone. So a home that nobody looks at pays for no
board.

The board has no password: it is bound to 127.0.0.1. A web site that makes a name of its own resolve to
127.0.0.1 would still reach it through somebody's browser (DNS rebinding), but its requests
carry that name in `Host`, and are refused here. Nothing is ever written: any method but GET and HEAD is
refused too.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tracks_dagster.board.effects.app import Board
from tracks_dagster.board.effects.sources import Sources
from tracks_dagster.home.on_demand import ADDRESS, IDLE_S_MAX
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput

CONNECTIONS_MAX = 64  # at once; more get a 503
BACKLOG = 128
HEAD_S_MAX = 10.0  # from a connection, or the answer before, to the whole head of a request
DRAIN_S_MAX = 2  # for answers that are under way when it ends
LOOK_EVERY_S = 2.0

HOSTS = ("127.0.0.1", "localhost", "[::1]")  # with any port: a tunnel has one of its own
METHODS = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def listen(port: int) -> socket.socket:
    """Return a socket on this machine's own address; port 0: a free one. Raises InvalidInput."""
    found = socket.socket()
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((ADDRESS, port))
        found.listen(BACKLOG)  # who opens the address that is printed waits for the first page
    except (OSError, OverflowError) as error:
        found.close()
        raise InvalidInput(
            f"The board cannot listen on {ADDRESS}:{port}: {error}. Name another port, or 0 for a free "
            "one: `tracks board --port 0`."
        ) from error
    return found


def serve(settings: Settings, listener: socket.socket, on_ready: Callable[[str], None]) -> None:
    """Answer until a signal ends it. on_ready: called with the address."""
    _serve(settings, listener, on_ready=on_ready)


def serve_on_demand(settings: Settings, fd: int) -> None:
    """Answer on the socket `fd` until nobody asks for IDLE_S_MAX, or the parent is gone."""
    _serve(settings, socket.socket(fileno=fd), is_on_demand=True)


def _serve(
    settings: Settings,
    listener: socket.socket,
    *,
    on_ready: Callable[[str], None] | None = None,
    is_on_demand: bool = False,
) -> None:
    sources = Sources(settings)
    guard = Guard(Board(sources).app())
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
        on_ready(f"http://{ADDRESS}:{listener.getsockname()[1]}")
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
        """Go on waiting where it was no whole head."""
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


class Guard:
    """Passes on what may be answered. last_at: when something was asked, by the monotonic clock."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.last_at = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what is not HTTP (the server's own start and end) is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self.last_at = time.monotonic()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = _refused(scope)
        await (refused or self._app)(scope, receive, send_with_headers)


def _refused(scope: MutableMapping[str, Any]) -> PlainTextResponse | None:
    """Return the refusal of a request; None where it may be answered."""
    host = Headers(scope=scope).get("host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() not in HOSTS:
        words = (
            "The board answers on this machine only: open it as http://127.0.0.1 or http://localhost "
            "with its port; from another machine through `ssh -L`.\n"
        )
        return PlainTextResponse(words, status_code=421)
    if scope["method"] not in METHODS:
        words = "The board only reads: GET and HEAD. The command line is what changes something.\n"
        allow = {"Allow": ", ".join(METHODS)}
        return PlainTextResponse(words, status_code=405, headers=allow)
    return None
