"""Every page of the board by axe-core: WCAG 2.1, A and AA, light and dark, on a phone and on a desk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.histories import History
from tests.wings.watch.board.conftest import LIVE, OVER, REFUSED, SECOND, Home, make_home
from tests.wings.watch.board.test_logged import write_logged
from tests.wings.watch.board.test_study import played
from tracks_dagster.wiring import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_MS_MAX, ANSWER_MS_MAX = 120_000, 60_000  # on a busy machine
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1440, "height": 900}
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")
WHOLE = "whole-run"  # one with a record of every kind
# What is folded is looked at too. The shade at the side of a wide table is away, for no contrast is
# computed before a gradient.
PREPARED = """
for (const each of document.querySelectorAll("details")) each.open = true;
for (const each of document.querySelectorAll(".wide")) each.style.background = "none";
"""
COMPARED = f"/compare?run={LIVE}&run={SECOND}&run={WHOLE}"
PATHS = (
    "/",
    "/runs",
    "/runs?group=state",
    f"/runs/{LIVE}",
    f"/runs/{WHOLE}",
    f"/runs/{REFUSED}",
    f"/runs/{LIVE}/log",
    f"/runs/{LIVE}/devices",
    f"/runs/{WHOLE}/report",
    f"/lineage?thing={WHOLE}",
    COMPARED,
    f"{COMPARED}&{'&'.join(f'run={each}' for each in (OVER, REFUSED, 'one', 'two'))}",
    "/experiments/gpt",
    "/media?run=one&run=two",
    "/find?run=-run",
    "/studies",
    "/studies/lr-depth",
    "/studies/begun",
    "/runbooks/slow_rank",
    "/no-such-page",
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


def write_whole(home: Home) -> None:
    """Write a run that was evaluated and promoted, with a note and an alert."""
    app = build(home.settings)
    run = History(WHOLE, begin=datetime.now(UTC) - timedelta(hours=2)).declare(
        intent="Be promoted."
    )
    run.open().supervise().place().restore().commit(20).end("preempted", last_step=25)
    run.open().supervise().place().restore().commit(40).alert().end("completed", last_step=40)
    opened = run.open_eval(run.state.resumable[-1]).state.evals[-1].opened
    run.end_eval(opened).promote(opened).note("It is as good as the last.").finish()
    run.write_to(app.store)
    write_logged(app)


def write_studies(home: Home) -> None:
    """Write a study that is complete, and one that has begun under a cap."""
    app = build(home.settings)
    whole, begun = played(), played(study="begun", slots=3, max_device_hours=2.0)
    whole.play()
    while begun.decide():
        pass
    for study in (whole, begun):
        study.write_to(app.store)
        name = study.state.declared.study
        History(f"{name}-t000-r0").declare(experiment=name).write_to(app.store)
    app.projector.scan()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`tracks board --write` over a home with runs of every kind."""
    home = make_home(tmp_path_factory.mktemp("axe") / "home")
    write_whole(home)
    write_studies(home)
    server = subprocess.Popen(
        [sys.executable, "-m", "tracks_dagster", "board", "--port", "0", "--write"],
        env={**os.environ, **home.settings.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server:
        yield server.stdout.readline().split()[0]
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless browser; as root it cannot have its sandbox."""
    rootless = () if os.geteuid() else ("--no-sandbox",)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--disable-gpu", "--no-first-run", *rootless],
            timeout=START_MS_MAX,
        )
        yield chromium
        chromium.close()


def violations(page: Page) -> list[str]:
    """Return what axe-core finds: the rule, where, and why. The page's policy lets no script in but by
    the browser's own debugger, which `evaluate` is."""
    page.evaluate(AXE_SCRIPT)
    asked = {"runOnly": list(RULES), "resultTypes": ["violations"]}
    found: dict[str, Any] = page.evaluate("asked => axe.run(document, asked)", asked)
    return [
        f"{each['id']} at {node['target']}: {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_axe_finds_nothing_on_any_page(
    scheme: str, size: dict[str, int], address: str, browser: Browser
) -> None:
    page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(ANSWER_MS_MAX)
    expect.set_options(timeout=ANSWER_MS_MAX)
    found: dict[str, list[str]] = {}
    for path in PATHS:
        page.goto(address + path)
        if path.startswith("/compare"):
            loss = page.locator("figure[data-metric=loss]")
            loss.scroll_into_view_if_needed()  # a panel is drawn when it is seen
            expect(loss.locator(".chart canvas")).to_be_visible(timeout=ANSWER_MS_MAX)
        page.evaluate(PREPARED)
        found[path] = violations(page)
        page.keyboard.press("?")
        found[f"{path} and its keys"] = violations(page)
    page.close()
    assert {path: each for path, each in found.items() if each} == {}
