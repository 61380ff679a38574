"""Dagster's own application, as our web server starts it: no other page commands it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver import cli
from starlette.types import ASGIApp, Message

from tests.visitors import Visitor
from tracks_dagster.defs.resources import webserver

MAKE = "create_app_from_workspace_process_context"
EVIL = {"Origin": "http://evil.example.com"}
BY_GET = "/graphql?query=mutation%7BsetNuxSeen%7D"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ASGIApp]:
    """Dagster's application of an instance without code, behind what our module puts before it."""
    made: list[Any] = []
    folder = str(tmp_path_factory.mktemp("dagster"))
    with pytest.MonkeyPatch.context() as patch, DagsterInstance.local_temp(folder) as instance:
        context = WorkspaceProcessContext(instance, EmptyWorkspaceTarget())
        patch.setattr(cli, MAKE, getattr(cli, MAKE))
        patch.setattr(
            cli,
            "main",
            lambda: made.append(getattr(cli, MAKE)(context)),
        )
        patch.setattr(sys, "argv", ["x", "-p", "3000", "--allow-host", "runs.example.com"])
        webserver.main()
        assert sys.argv == ["x", "-p", "3000"]
        with context:
            yield made[0]


def ask(app: ASGIApp, method: str, path: str, headers: dict[str, str]) -> int:
    return Visitor(app).ask(method, path, headers).status_code


def test_a_person_sees_the_pages_and_asks_by_post(app: ASGIApp) -> None:
    visitor = Visitor(app)
    assert visitor.get("/server_info").status_code == 200
    assert visitor.get("/").headers["X-Frame-Options"] == "SAMEORIGIN"
    assert visitor.get("/server_info", {"Host": "runs.example.com"}).status_code == 200
    own = {"Origin": "http://127.0.0.1:3001", "Content-Type": "application/json"}
    assert visitor.ask("POST", "/graphql?query={version}", own).status_code == 400  # it is asked


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", BY_GET, {}, 405),
        ("GET", BY_GET, EVIL, 403),
        ("GET", "/", {"Host": "evil.example.com"}, 421),
        ("POST", BY_GET, {"Content-Type": "text/plain"}, 415),
        ("POST", "/graphql", {**EVIL, "Content-Type": "application/json"}, 403),
        ("POST", "/report_asset_materialization/x", {}, 415),
    ],
)
def test_another_page_commands_nothing(
    app: ASGIApp, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    assert ask(app, method, path, headers) == status


@pytest.mark.parametrize(
    ("host", "origin", "is_answered"),
    [
        ("127.0.0.1:3000", "http://127.0.0.1:3000", True),
        ("127.0.0.1:3000", "http://evil.example.com", False),
        ("127.0.0.1:3000", "null", False),
        ("evil.example.com", "http://evil.example.com", False),
    ],
)
def test_a_web_socket_is_opened_for_its_own_page_alone(
    app: ASGIApp, host: str, origin: str, is_answered: bool
) -> None:
    answers: list[Message] = []
    asked: list[Message] = [
        {"type": "websocket.connect"},
        {"type": "websocket.disconnect", "code": 1000},
    ]

    async def receive() -> Message:
        return asked.pop(0)

    async def send(message: Message) -> None:
        answers.append(message)

    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    scope = {
        "type": "websocket",
        "path": "/graphql",
        "raw_path": b"/graphql",
        "query_string": b"",
        "root_path": "",
        "scheme": "ws",
        "headers": headers,
        "subprotocols": ["graphql-ws"],
    }
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert answers[0]["type"] == ("websocket.accept" if is_answered else "websocket.close")
