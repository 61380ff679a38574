"""A colleague behind two proxies acts on a run in a real browser, and the record names him."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.wings.watch.board.conftest import LIVE, SECOND, Home, make_home
from tracks_dagster.track.names import VIEWS_TRACK
from tracks_dagster.track.records import Kind
from tracks_dagster.wiring import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_MS_MAX, ANSWER_MS_MAX = 120_000, 60_000  # on a busy machine
USER, NAME = "X-Forwarded-User", "ann@example.com"
OUTER, INNER = "/lab", "/tracks"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


@contextmanager
def proxy(upstream: int, part: str, headers: dict[str, str]) -> Iterator[int]:
    """Serve what is below `part` of the path from another port, without that part; headers: added."""

    class Passes(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """Pass a request on, and its answer back."""
            if not self.path.startswith(f"{part}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with closing(HTTPConnection("127.0.0.1", upstream)) as onward, suppress(OSError):
                self._pass(onward, body)  # OSError: who asked is gone

        def _pass(self, onward: HTTPConnection, body: bytes) -> None:
            onward.putrequest(self.command, self.path.removeprefix(part), skip_host=True)
            for name, value in {**dict(self.headers.items()), **headers}.items():
                onward.putheader(name, value)
            onward.endheaders(body)
            answer = onward.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in (
                    "transfer-encoding",
                    "content-length",
                    "connection",
                    "date",
                ):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            """Pass it on too."""
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Passes)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, str]]:
    """A home, and the address by which a colleague reaches its board, which may write."""
    home = make_home(Path(tmp_path_factory.mktemp("acts")) / "home")
    command = ["board", "--port", "0", "--write", "--user-header", USER]
    server = subprocess.Popen(
        [sys.executable, "-m", "tracks_dagster", *command, "--prefix", f"{OUTER}{INNER}"],
        env={**os.environ, **home.settings.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server:
        port = urlsplit(server.stdout.readline().split()[0]).port
        assert port is not None
        with proxy(port, INNER, {USER: NAME}) as inner, proxy(inner, OUTER, {}) as outer:
            yield home, f"http://127.0.0.1:{outer}{OUTER}{INNER}"
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page of a headless browser; as root it cannot have its sandbox."""
    rootless = () if os.geteuid() else ("--no-sandbox",)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--disable-gpu", "--no-first-run", *rootless],
            timeout=START_MS_MAX,
        )
        page = chromium.new_page()
        page.set_default_timeout(ANSWER_MS_MAX)
        expect.set_options(timeout=ANSWER_MS_MAX)
        page.set_default_navigation_timeout(ANSWER_MS_MAX)
        yield page
        chromium.close()


def test_a_colleague_behind_two_proxies_drains_a_run_and_the_record_names_him(
    served: tuple[Home, str], page: Page
) -> None:
    home, address = served
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{address}/")
    page.get_by_role("link", name=LIVE, exact=True).click()
    page.locator("#act-drain summary").click()
    why = page.locator("#drain-why")
    why.fill("the node is")
    home.live.grow(5)  # the page is live, and does not take away what is written
    page.wait_for_timeout(5000)
    expect(why).to_have_value("the node is")
    why.press_sequentially(" joked about")  # j and k are keys of the page elsewhere
    page.locator("#act-drain button", has_text="Drain").click()
    expect(page.get_by_text("the run waits for a retry")).to_be_visible()
    page.reload()  # does nothing again
    page.get_by_role("link", name=f"back to {LIVE}").click()
    expect(page.get_by_text("drain: the node is joked about")).to_be_visible()
    (stop,) = build(home.settings).tracks.run(LIVE).stops
    assert (stop.body.by, stop.body.mode) == (NAME, "drain")
    assert all(each.startswith(f"{address}/") for each in requested)


def test_a_colleague_tags_a_run_and_saves_a_view_that_finds_it(
    served: tuple[Home, str], page: Page
) -> None:
    home, address = served
    page.goto(f"{address}/runs/{LIVE}")
    page.locator("#act-tag summary").click()
    page.get_by_label("tags").fill("paper")
    page.get_by_label("tags").press("Enter")  # without a mouse
    page.get_by_role("link", name=f"back to {LIVE}").click()
    page.goto(f"{address}/runs?where={quote('tag:paper')}")
    page.locator("#act-save summary").click()
    page.locator("#save-view").fill("paper")
    page.locator("#act-save button").first.click()
    expect(page.get_by_text("The view paper is saved")).to_be_visible()
    page.goto(f"{address}/runs")
    page.get_by_role("link", name="paper", exact=True).click()
    expect(page.get_by_role("link", name=LIVE, exact=True)).to_be_visible()
    expect(page.get_by_role("link", name=SECOND, exact=True)).to_have_count(0)
    page.locator("#act-remove summary").click()
    page.locator("#remove-why").fill("the paper is out")
    page.locator("#act-remove button").first.click()
    expect(page.get_by_text("The view paper is ")).to_be_visible()
    page.goto(f"{address}/runs")
    expect(page.get_by_role("link", name="paper", exact=True)).to_have_count(0)
    assert "paper" in build(home.settings).tracks.run(LIVE).labels.tags
    records = build(home.settings).tracks.records(VIEWS_TRACK)
    assert [(each.kind, each.body["by"]) for each in records] == [
        (Kind.VIEW_SAVED, NAME),
        (Kind.VIEW_REMOVED, NAME),
    ]


def test_another_page_cannot_make_the_browser_act(served: tuple[Home, str], page: Page) -> None:
    home, address = served
    before = build(home.settings).tracks.run(LIVE).head.seq
    action = f"{address}/runs/{LIVE}/acts/stop"
    page.goto("about:blank")
    page.set_content(
        f'<form method="post" action="{action}"><input name="why" value="x"><button>go</button></form>'
    )
    page.get_by_role("button").click()
    expect(page.get_by_text("Another page asked for this")).to_be_visible()
    assert build(home.settings).tracks.run(LIVE).head.seq == before


def test_a_command_is_copied_or_marked_by_its_button(served: tuple[Home, str], page: Page) -> None:
    page.goto(f"{served[1]}/runs/{LIVE}")
    button = page.locator("#checkpoints .copy").first
    button.click()
    expect(button).to_have_text(re.compile("copied|marked"))  # where no clipboard is allowed
