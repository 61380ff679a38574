"""The one door of every web server of ours, the board and Dagster's UI."""

from __future__ import annotations

import time
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from tracks_dagster.home.admission import Asked, Visitors, refuse

HEADERS = {
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ANYBODY_HERE = Visitors()
REFUSED = 1008  # of a WebSocket: https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1


class Guard:
    """Passes on what may be answered. last_at: when something was asked, by the monotonic clock.

    visitors and only_reads: as of `admission.refuse`. headers: of every answer that lacks them.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        visitors: Visitors = ANYBODY_HERE,
        only_reads: bool = True,
        headers: Mapping[str, str] = HEADERS,
    ) -> None:
        self._app = app
        self._visitors = visitors
        self._only_reads = only_reads
        self._headers = headers
        self.last_at = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; what is not one (the server's own start and end) is passed on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        self.last_at = time.monotonic()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = refuse(_asked(scope), self._visitors, only_reads=self._only_reads)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        elif scope["type"] == "websocket":
            await WebSocketClose(code=REFUSED)(scope, receive, send)
        else:
            words, headers = f"{refusal.words}\n", dict(refusal.headers)
            answer = PlainTextResponse(words, status_code=refusal.status, headers=headers)
            await answer(scope, receive, send_with_headers)


def _asked(scope: Scope) -> Asked:
    headers = Headers(scope=scope)
    return Asked(
        method=scope.get("method"),
        path=scope["path"],
        query=scope["query_string"].decode("latin-1"),
        headers={name: headers.getlist(name) for name in headers},
    )
