"""The report in a real browser: nothing is cut off on a phone, and paper shows what is folded away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.fakes import FakeClock, FakeObjectStore, SequentialUids
from tests.stories import RUN_ID, Story
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.review.effects.pages.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_MS_MAX = 120_000
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1200, "height": 900}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


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


@pytest.fixture(scope="module", params=[3, 300])
def page_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of a few attempts, and of one with very many."""
    store, clock = FakeObjectStore(), FakeClock()
    story = Story(store)
    if request.param == 3:
        story.whole()
    else:
        for number in range(1, request.param + 1):
            reason = ("hang", "gpu_oom", "preempted")[number % 3]
            story.attempt(reason, last_step=number, commits=(number,))
        story.write_tracks()
    clock.at = story.history.at
    tracks = Tracks(store, now=clock, new_uid=SequentialUids(), project=lambda name: None)
    file = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(tracks, RUN_ID, file).path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_nothing_is_cut_off_at_the_side_and_nothing_is_fetched(
    scheme: str, size: dict[str, int], page_file: Path, browser: Browser
) -> None:
    page = browser.new_page(viewport=size, color_scheme=scheme)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(page_file.as_uri())
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= size["width"]
    assert requested == [page_file.as_uri()]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(22, 24, 28)") is (scheme == "dark")
    page.close()


def test_paper_is_light_and_its_words_are_of_one_size(page_file: Path, browser: Browser) -> None:
    page = browser.new_page(viewport=DESK, color_scheme="dark")
    page.goto(page_file.as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    style = "getComputedStyle(document.querySelector('{}')).{}"
    assert page.evaluate(style.format("body", "backgroundColor")) == "rgb(252, 252, 250)"
    assert page.evaluate(style.format("body", "fontSize")) == "11px"
    assert float(page.evaluate(style.format(".lane-name", "fontSize"))[:-2]) < 11
    page.close()


def test_on_a_phone_a_loss_is_not_cut_off(page_file: Path, browser: Browser) -> None:
    page = browser.new_page(viewport=PHONE)
    page.goto(page_file.as_uri())
    lefts = page.evaluate(
        "[...document.querySelectorAll('svg[aria-label^=\"loss by step\"] text')]"
        ".filter(each => each.getClientRects().length)"  # a phone shows fewer words
        ".map(each => each.getBoundingClientRect().left - each.ownerSVGElement"
        ".getBoundingClientRect().left)"
    )
    assert lefts
    assert min(lefts) >= 0
    page.close()


def test_paper_shows_the_explanations_unfolded(page_file: Path, browser: Browser) -> None:
    page = browser.new_page(viewport=DESK)
    page.goto(page_file.as_uri())
    folded = page.evaluate("document.documentElement.scrollHeight")
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollHeight") > folded
    assert len(page.pdf()) > 10_000
    page.close()
