"""The board below a path of a proxy, which passes the path on as it came, or in part."""

from __future__ import annotations

import re
from html import unescape

import pytest
from starlette.applications import Starlette

from tests.visitors import Visitor
from tests.wings.watch.board.conftest import LIVE, OVER, Home
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.wings.watch.board.effects import pages
from tracks_dagster.wings.watch.board.effects.app import Board
from tracks_dagster.wings.watch.board.effects.below import Below, check_prefix, page_below
from tracks_dagster.wings.watch.board.effects.serving import Access, guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources

PAGES = (
    "/",
    "/runs",
    f"/runs/{LIVE}",
    f"/runs/{LIVE}/log",
    f"/lineage?thing={OVER}",
    f"/compare?run={LIVE}&run={OVER}",
    "/experiments/gpt",
    "/runbooks/slow_rank",
    "/no-such-page",
)


def below(home: Home, prefix: str, *, may_write: bool = False) -> Visitor:
    """Return who visits a board that is served below a prefix."""
    access = Access(prefix=prefix, may_write=may_write)
    return Visitor(guarded(Sources(home.settings), access))


def addresses(html: str) -> list[str]:
    """Return the addresses of a page that begin at its server's root."""
    found = re.findall(r'\s(?:href|src|action|formaction)="([^"]*)"', html)
    return [each for each in found if each.startswith("/")]


def test_no_part_of_a_prefix_is_called_as_a_page_is(home: Home) -> None:
    board = Board(Sources(home.settings)).app()
    assert isinstance(board, Below)
    assert isinstance(board._app, Starlette)
    first = {str(getattr(route, "path", "")).split("/")[1] for route in board._app.routes}
    assert "studies" in first
    for name in first - {""}:
        with pytest.raises(InvalidInput, match="as a page of the board is called"):
            check_prefix(f"/{name}")


@pytest.mark.parametrize("path", PAGES)
def test_every_address_of_a_page_is_below_the_prefix(path: str, home: Home) -> None:
    visitor = below(home, "/lab/tracks", may_write=True)
    page = visitor.get(path)
    found = addresses(page.text)
    assert all(each.startswith("/lab/tracks/") for each in found)
    assert not any(each.startswith("/lab/tracks/lab") for each in found)
    part = visitor.get(path, {"X-Part": "main"}).text
    assert all(each.startswith("/lab/tracks/") for each in addresses(part))


@pytest.mark.parametrize("prefix", ["", "/tracks", "/lab/tracks"])
def test_a_page_is_there_however_much_of_the_prefix_proxies_leave(prefix: str, home: Home) -> None:
    visitor = below(home, "/lab/tracks")
    page = visitor.get(f"{prefix}/runs/{OVER}")
    assert page.status_code == 200
    assert visitor.get(f"{prefix}/board.css").status_code == 200
    assert visitor.get(f"{prefix}/").status_code == 200
    assert visitor.get(prefix or "/").status_code == 200
    found = visitor.get(f"{prefix}/find?run={OVER}").headers["Location"]
    assert found == f"/lab/tracks/runs/{OVER}"


def test_the_version_of_a_page_is_a_digest_of_what_is_sent_below_a_prefix_too(home: Home) -> None:
    visitor = below(home, "/tracks")
    part = visitor.get(f"/runs/{OVER}", {"X-Part": "main"})
    version = f'"{pages.digest(part.text)}"'
    assert 'href="/tracks/' in part.text
    assert part.headers["ETag"] == version
    assert f'<main data-live data-version="{version}"' in unescape(
        visitor.get(f"/runs/{OVER}").text
    )


def test_another_path_is_not_taken_for_the_prefix(home: Home) -> None:
    assert below(home, "/tracks").get("/trackside/runs").status_code == 404
    assert below(home, "/tracks").get("/tracks/tracks/runs").status_code == 404


def test_without_a_prefix_nothing_is_changed(home: Home) -> None:
    assert '<a class="brand" href="/">' in below(home, "").get("/").text


def test_texts_that_look_like_addresses_stay_as_they_are() -> None:
    assert page_below("/t", "<p>see href=&#34;/x&#34;</p>") == "<p>see href=&#34;/x&#34;</p>"
    assert page_below("/t", '<a href="//evil.example/">') == '<a href="//evil.example/">'


@pytest.mark.parametrize(
    ("text", "prefix"), [("", ""), ("/", ""), ("/tracks", "/tracks"), ("/a/b-2.c/", "/a/b-2.c")]
)
def test_a_prefix_is_a_path(text: str, prefix: str) -> None:
    assert check_prefix(text) == prefix


@pytest.mark.parametrize(
    "text",
    [
        *("tracks", "//evil.example", "/a//b", "/../x", '/"><script>', "/a b", "/a?b"),
        *("/runs", "/lab/compare"),
    ],
)
def test_what_is_not_a_prefix_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(InvalidInput, match="/tracks"):
        check_prefix(text)
