"""A visitor of a web application in this process: no server, no port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx
from starlette.types import ASGIApp


class Visitor:
    """Asks an application for its pages, as a browser on this machine does."""

    def __init__(self, app: ASGIApp, address: str = "http://127.0.0.1:3001") -> None:
        self._app = app
        self._address = address

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Return the answer to GET; redirects are not followed."""
        return self.ask("GET", path, headers)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: str = ""
    ) -> httpx.Response:
        """Return the answer to any method. headers: of the characters of latin-1, a byte each."""
        sent = [(name.encode(), text.encode("latin-1")) for name, text in (headers or {}).items()]

        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url=self._address) as client:
                return await client.request(method, path, headers=sent, content=body or None)

        return asyncio.run(asked())
