"""The board behind its door: what is refused, and headers that keep a page at home."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.visitors import Visitor
from tracks_dagster.home.guard import Guard
from tracks_dagster.wings.watch.board.effects.serving import HEADERS, POLICY


async def answer(request: Request) -> Response:
    """Answer anything; what asks for it brings a policy of its own."""
    own = {"Content-Security-Policy": "default-src 'none'"} if "own" in request.query_params else {}
    return PlainTextResponse("inside", headers=own)


@pytest.fixture
def visitor() -> Visitor:
    """A visitor of a board that says one word."""
    methods = ["GET", "POST", "PUT", "DELETE"]
    app = Starlette(routes=[Route("/", answer, methods=methods)])
    return Visitor(Guard(app, headers=HEADERS))


def test_a_name_that_somebody_made_resolve_to_this_machine_is_refused(visitor: Visitor) -> None:
    reply = visitor.get("/", headers={"Host": "evil.example"})
    assert reply.status_code == 421
    assert "inside" not in reply.text
    assert "http://127.0.0.1" in reply.text  # what to open instead


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_reading_is_answered(visitor: Visitor, method: str) -> None:
    reply = visitor.ask(method, "/")
    assert reply.status_code == 405
    assert reply.headers["Allow"] == "GET, HEAD"


def test_a_page_may_load_nothing_from_elsewhere_and_be_framed_by_nobody(visitor: Visitor) -> None:
    headers = visitor.get("/").headers
    assert headers["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY
    assert "http" not in POLICY  # no host but its own
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"  # of no address of ours another learns
    assert visitor.get("/?own=1").headers["Content-Security-Policy"] == "default-src 'none'"


def test_a_refusal_has_the_same_headers(visitor: Visitor) -> None:
    assert "Content-Security-Policy" in visitor.get("/", headers={"Host": "evil.example"}).headers
