"""The door of the board: this machine's names, reading methods, and headers that keep pages at home.

The board has no password: it is bound to 127.0.0.1. A web site that makes a name of its own resolve to
127.0.0.1 would reach it all the same through somebody's browser (DNS rebinding), but its requests
carry that name in `Host`, and are refused here. Nothing is ever written: any method but GET and HEAD is
refused too.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
