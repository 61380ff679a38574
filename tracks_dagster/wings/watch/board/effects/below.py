"""The board below a path of another server: `https://runs.example.com/tracks/`.

A proxy may pass the path on as it came, or without what it is reached under; of several in a row each
may take its own part away. So any end of the prefix is taken off what is asked for. Where addresses
begin is decided in one place, as an answer leaves: pages name theirs as if there were no prefix.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.watch.board.effects import pages

PARTS_MAX = 8
PAGES = frozenset(  # what follows the first slash of the board's own addresses
    {
        *("runs", "compare", "experiments", "runbooks", "find", "lineage", "metrics", "alerts"),
        *("views", "media", "curves.json", "compare.json", "runs.csv", "runs.json"),
        *("studies", "studies.csv", "studies.json", *pages.FILES),
    }
)
_PREFIX = re.compile(r"(?:/[A-Za-z0-9][A-Za-z0-9._~-]*)*")
_ADDRESS = re.compile(r'(?<=[\s])(href|src|action)="/(?!/)')


def check_prefix(text: str) -> str:
    """Return a prefix without its last slash; "" for none. Raises InvalidInput, also for one of which a
    part is called as a page of the board is."""
    prefix = text.rstrip("/")
    parts = prefix.split("/")[1:]
    if _PREFIX.fullmatch(prefix) is None or len(parts) > PARTS_MAX:
        raise InvalidInput(f"{text!r} is not a path to serve below; give one such as /tracks.")
    own = next((part for part in parts if part in PAGES), None)
    if own is not None:
        raise InvalidInput(
            f"{text!r} has a part {own!r}, as a page of the board is called: which is meant could not "
            "be known. Choose another, such as /tracks."
        )
    return prefix


def address_below(prefix: str, address: str) -> str:
    """Return where a page of the board is for those who come by the prefix."""
    return f"{prefix}{address}" if address.startswith("/") else address


def page_below(prefix: str, html: str) -> str:
    """Return a page whose addresses of the board begin with the prefix.

    Texts are escaped, a quotation mark too, so that nothing else looks like an attribute.
    """
    return _ADDRESS.sub(rf'\1="{prefix}/', html) if prefix else html


class Below:
    """Takes the prefix, or what proxies left of it, off the path that is asked for."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        parts = prefix.split("/")[1:] if prefix else []
        self._ends = ["/" + "/".join(parts[at:]) for at in range(len(parts))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as if it had been asked for without."""
        if scope["type"] == "http":
            path = scope["path"]
            end = next((e for e in self._ends if path == e or path.startswith(f"{e}/")), "")
            scope = {**scope, "path": path.removeprefix(end) or "/", "raw_path": None}
        await self._app(scope, receive, send)
