"""The board in a real browser, served by `tracks board`: live, complete, and at home on a phone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.fakes import FakeObjectStore
from tests.live_runs import LiveRun
from tests.wings.watch.board.conftest import LIVE, OVER, REFUSED, SECOND, Home, make_home
from tracks_dagster.wings.watch.board.effects import pages
from tracks_dagster.wiring import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_MS_MAX = 120_000
ANSWER_MS_MAX = 60_000  # on a busy machine
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
PATHS = ("/", f"/runs/{LIVE}", f"/compare?run={LIVE}&run={OVER}", "/experiments/gpt")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")


@dataclass(frozen=True)
class Window:
    """A page of the board. requested: every address that it asked for; errors: of its console."""

    home: Home
    page: Page
    address: str
    requested: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Open a page of the board."""
        self.page.goto(self.address + path)
        return self.page


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, str]]:
    """A home with runs, and `tracks board` over it."""
    home = make_home(tmp_path_factory.mktemp("board") / "home")
    server = subprocess.Popen(
        [sys.executable, "-m", "tracks_dagster", "board", "--port", "0"],
        env={**os.environ, **home.settings.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server:
        yield home, server.stdout.readline().split()[0]
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


@pytest.fixture(scope="module")
def window(served: tuple[Home, str]) -> Iterator[Window]:
    """A headless browser; as root it cannot have its sandbox."""
    rootless = () if os.geteuid() else ("--no-sandbox",)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--disable-gpu", "--no-first-run", *rootless],
            timeout=START_MS_MAX,
        )
        page = chromium.new_page(viewport=DESK)
        page.set_default_timeout(ANSWER_MS_MAX)
        expect.set_options(timeout=ANSWER_MS_MAX)
        window = Window(served[0], page, served[1])
        page.on("request", lambda request: window.requested.append(request.url))
        page.on("pageerror", lambda error: window.errors.append(str(error)))
        page.on(
            "console",
            lambda line: window.errors.append(line.text) if line.type == "error" else None,
        )
        yield window
        chromium.close()


def test_a_curve_grows_without_a_reload(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    page.evaluate("window.isTheSamePage = true")
    window.home.live.grow(10)
    step = window.home.live.step
    loss = page.locator("figure svg[data-x1]").first
    expect(loss).to_have_attribute("aria-label", re.compile(f"after step {step}$"))
    expect(page.get_by_text(f"{step} / 400", exact=True).first).to_be_visible()
    assert page.evaluate("window.isTheSamePage")


def test_ends_remedies_and_commits_stand_on_the_axis(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    loss = page.locator("figure", has=page.get_by_text("loss", exact=True)).first
    drawn = loss.inner_html()
    for words in ("a01 preempted", "a02 gpu_oom", "micro_batch 4 → 2", "checkpoint of step 110"):
        assert words in drawn
    words = loss.locator("svg text", has_text="micro_batch 4 → 2")
    assert words.evaluate("each => getComputedStyle(each).stroke") == "none"  # not smeared


def test_the_heat_map_shows_rank_5(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    hot = page.locator("svg.heat text.hot").first
    assert hot.text_content() == "5"
    expect(page.get_by_text("rank 5 (node-0, cuda:5)").first).to_be_visible()


def test_comparing_shows_two_runs_over_each_other(window: Window) -> None:
    window.home.second.grow(1)
    page = window.open(f"/compare?run={LIVE}&run={window.home.second.run_id}")
    loss = page.locator("figure[data-metric=loss]")
    expect(loss.locator(".chart canvas")).to_be_visible()
    colours = loss.locator("polyline.line").evaluate_all(
        "lines => lines.map(each => getComputedStyle(each).stroke)"
    )
    assert len(set(colours)) == 2  # what is printed, and drawn without a script
    expect(loss.locator("svg")).to_be_hidden()
    assert SECOND in (loss.locator(".chart").get_attribute("aria-label") or "")


def test_axis_scale_average_and_zoom_change_the_curves_without_a_load(window: Window) -> None:
    page = window.open(f"/compare?run={LIVE}&run={SECOND}")
    loss = page.locator("figure[data-metric=loss]")
    expect(loss.locator(".chart canvas")).to_be_visible()
    page.evaluate("window.isTheSamePage = true")
    page.locator("#look [name=by]").select_option("hours")
    page.locator("#slider").fill("10")
    page.locator("#look [name=clip]").check()
    loss.get_by_role("button", name="log").click()
    box = loss.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 50, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    expect(page.get_by_role("button", name="show the whole axis")).to_be_visible()
    asked = page.evaluate("location.search")
    for words in ("by=hours", "smooth=10", "clip=1", "log=loss", "x="):
        assert words in asked, asked
    page.locator("#look [name=find]").fill("^loss$")
    expect(page.locator("figure[data-metric]")).to_have_count(1)
    expect(loss.locator(".chart canvas")).to_be_visible()
    assert page.evaluate("window.isTheSamePage")
    page.reload()  # the address is the state
    expect(page.locator("#look [name=by]")).to_have_value("hours")
    expect(loss.get_by_role("button", name="log")).to_have_attribute("aria-pressed", "true")


def test_a_panel_is_zoomed_by_keys(window: Window) -> None:
    page = window.open(f"/compare?run={LIVE}&run={SECOND}")
    loss = page.locator("figure[data-metric=loss]")
    expect(loss.locator(".chart canvas")).to_be_visible()
    loss.focus()
    page.keyboard.press("+")
    assert "x=" in page.evaluate("location.search")
    page.keyboard.press("0")
    assert "x=" not in page.evaluate("location.search")


def test_a_run_is_hidden_by_its_box_and_stays_so_while_the_page_is_live(window: Window) -> None:
    page = window.open(f"/compare?run={LIVE}&run={SECOND}")
    loss = page.locator("figure[data-metric=loss]")
    expect(loss.locator(".chart canvas")).to_be_visible()
    box = page.locator(f"[data-run={SECOND}]")
    box.focus()
    page.keyboard.press("Space")
    label = loss.locator(".chart")
    expect(label).to_have_attribute("aria-label", re.compile(f"of {LIVE}$"))
    window.home.live.grow(5)
    step = window.home.live.step
    expect(page.get_by_text(f"{step} / 400", exact=True).first).to_be_visible()  # the table is live
    expect(label).to_have_attribute("aria-label", re.compile(f"of {LIVE}$"))
    expect(box).not_to_be_checked()
    page.reload()
    expect(box).not_to_be_checked()  # the address has it


def test_a_run_whose_other_seeds_are_hidden_is_a_line_and_no_empty_mean(window: Window) -> None:
    page = window.open(f"/compare?run={LIVE}&run={SECOND}&bands=1")
    page.evaluate(
        "for (const each of document.querySelectorAll('#curves [data-run]')) each.dataset.band = '0'"
    )
    page.locator(f"[data-run={SECOND}]").uncheck()
    label = page.locator("figure[data-metric=loss] .chart")
    expect(label).to_have_attribute("aria-label", re.compile(f"by step of {LIVE}$"))
    page.locator(f"[data-run={SECOND}]").check()
    expect(label).to_have_attribute("aria-label", re.compile(f"of mean of {LIVE}, {SECOND}$"))


def test_a_link_in_a_row_is_focused_still_when_the_page_has_grown(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    link = page.get_by_role("link", name="report", exact=True)
    link.focus()
    loss = page.locator("figure", has=page.get_by_text("loss", exact=True)).first.locator("svg")
    window.home.live.grow(5)
    step = window.home.live.step
    expect(loss).to_have_attribute("aria-label", re.compile(f"after step {step}$"))
    expect(link).to_be_focused()
    assert page.locator("#pulse[role]").count() == 0  # or a reader of screens never falls silent


def test_what_did_not_change_is_the_same_and_so_is_what_a_person_does_with_it(
    window: Window,
) -> None:
    page = window.open(f"/runs/{LIVE}")
    page.evaluate(
        """() => {
          window.mine = ["h1", "#attempts", "figure svg[data-x1]", "figure polyline"].map(
            (each) => [each, document.querySelector(each)]);
          document.querySelector("details").open = true;
          const words = document.querySelector("main > p.soft").firstChild;
          getSelection().setBaseAndExtent(words, 4, words, 12);
          scrollTo(0, 200);
        }"""
    )
    log = page.get_by_role("link", name="log", exact=True).first
    log.evaluate("each => each.focus({ preventScroll: true })")
    selected = page.evaluate("getSelection().toString()")
    assert len(selected) == 8
    points = "() => document.querySelector('polyline.a2').points.numberOfItems"
    before = page.evaluate(points)
    window.home.live.grow(3)
    page.wait_for_function(f"count => ({points})() > count", arg=before)
    assert page.evaluate("mine.filter(([at, was]) => document.querySelector(at) !== was)") == []
    assert page.evaluate("getSelection().toString()") == selected
    assert page.evaluate("document.querySelector('details').open")
    assert page.evaluate("scrollY") == 200
    expect(log).to_be_focused()


def test_an_open_page_asks_for_what_differs_alone(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    for _ in range(2):  # of the page as it was loaded it has no text to compare with
        window.home.live.grow(1)
        with page.expect_response(lambda answer: answer.status == 200) as found:
            pass
    assert found.value.headers["content-type"] == "application/json"
    shown = page.evaluate(
        "() => new DOMParser().parseFromString(sent, 'text/html').body.textContent"
    )
    digest = page.evaluate(
        """async () => [...new Uint8Array(await crypto.subtle.digest("SHA-256",
          new TextEncoder().encode(sent)))].map((n) => n.toString(16).padStart(2, "0")).join("")"""
    )
    assert f'"{digest[:16]}"' == page.evaluate("version")
    step = window.home.live.step
    expect(page.get_by_text(f"{step} / 400", exact=True).first).to_be_visible()
    assert f"{step} / 400" in shown


@pytest.fixture
def looking(window: Window) -> Iterator[Page]:
    """A page whose looks the test answers: `looks` has the headers of each, `answer` fulfils one."""
    page = window.open(f"/runs/{LIVE}")
    page.evaluate(
        """() => {
          window.looks = [];
          window.fetch = (_, { headers }) => new Promise((resolve) =>
            looks.push({ headers, resolve }));
          window.answer = async (number, body, version, type) => {
            while (looks.length <= number) await new Promise((resolve) => setTimeout(resolve, 20));
            const headers = { ETag: version, "Content-Type": type };
            looks[number].resolve(new Response(body, { headers }));
            await new Promise((resolve) => setTimeout(resolve, 100));
          };
          clearTimeout(timer);
          sent = "<p>one</p>\\n<p>two</p>";
          version = '"before"';
        }"""
    )
    yield page
    window.open("/")


GROWN = "<p>one</p>\n<p>new</p>\n<p>two</p>"
GREW = '[[0, 1], "<p>new</p>", [1, 1]]'


def answer(
    page: Page, number: int, body: str, version: str, kind: str = "application/json"
) -> None:
    """Answer a look, the first one is 0."""
    page.evaluate("given => answer(...given)", [number, body, version, kind])


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_looks_that_are_under_way_only_the_newer_one_counts(
    first: int, looking: Page
) -> None:
    version = f'"{pages.digest(GROWN)}"'
    looking.evaluate("() => { look(); }")
    looking.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    looking.wait_for_function("() => looks.length === 2")
    answer(looking, first, GREW, version)
    answer(looking, 1 - first, GREW, version)
    assert looking.evaluate("[sent, version]") == [GROWN, version]
    assert looking.evaluate("main.textContent.split(/\\s+/)") == ["one", "new", "two"]


def test_a_difference_that_does_not_make_the_page_of_the_server_is_followed_by_all_of_it(
    looking: Page,
) -> None:
    version = f'"{pages.digest(GROWN)}"'
    looking.evaluate("() => { look(); }")
    answer(looking, 0, GREW.replace("new", "old"), version)
    answer(looking, 1, GROWN, version, "text/html")
    asked = looking.evaluate("looks.map(({ headers }) => Object.values(headers))")
    assert asked == [["difference", '"before"'], ["main", ""]]
    assert looking.evaluate("[sent, version]") == [GROWN, version]


def test_a_log_that_is_read_at_its_end_keeps_what_is_selected(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    selected, shown = page.evaluate(
        """() => {
          const log = document.createElement("pre");
          log.textContent = "one\\ntwo\\nthree\\n";
          main.append(log);
          const text = log.firstChild;
          getSelection().setBaseAndExtent(text, 8, text, 13);
          rewrite(text, "two\\nthree\\nfour\\n");
          const found = [getSelection().toString(), log.textContent];
          log.remove();
          return found;
        }"""
    )
    assert (selected, shown) == ("three", "two\nthree\nfour\n")


def test_a_reader_of_screens_hears_a_change_once_and_silence_else(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    news = page.locator("#news")
    expect(news).to_have_attribute("role", "status")
    page.evaluate("main.removeAttribute('data-live'); sent = main.innerHTML")
    page.evaluate("show(sent.replaceAll('step', 'paces'))")
    expect(news).to_have_text("")  # words of the page, but not its state
    page.evaluate("show(sent.replace(/(data-news[^>]*>)[a-z]+</, '$1succeeded<'))")
    expect(news).to_contain_text("succeeded")


def test_what_is_half_written_or_marked_stays_while_the_rest_changes(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    page.evaluate("main.removeAttribute('data-live'); sent = main.innerHTML")
    form = '<p><input id="draft" value="a"><input id="mark" type="checkbox"></p>'
    page.evaluate("form => show(form + sent)", form)
    page.check("#mark")
    page.fill("#draft", "abc")
    page.evaluate("window.mine = document.getElementById('draft')")
    page.evaluate("form => show('<p>new</p>' + form.replace('\"a\"', '\"b\"') + sent)", form)
    expect(page.locator("#draft")).to_have_value("abc")
    expect(page.locator("#mark")).to_be_checked()
    expect(page.locator("#draft")).to_be_focused()
    assert page.evaluate("mine.isConnected")


def test_a_chart_that_is_open_gets_its_new_points_alone(window: Window) -> None:
    window.home.second.grow(1)
    page = window.open(f"/compare?run={SECOND}&x=100..400")
    chart = page.locator("figure[data-metric=loss] .chart")
    expect(chart.locator("canvas")).to_be_visible()
    chart.scroll_into_view_if_needed()
    chart.hover()
    expect(chart.locator(".tip")).to_be_visible()
    page.evaluate(
        """() => { const loss = document.querySelector("figure[data-metric=loss]");
          window.mine = [loss.querySelector(".tip"), loss.querySelector("canvas")]; }"""
    )
    window.home.second.grow(5)
    with page.expect_response(re.compile(r"metric=loss&since=[0-9a-f]")) as found:
        pass
    answer = found.value.json()["metrics"]["loss"]
    assert answer["after"] > 20
    assert len(answer["x"]) < 10
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    newest = (window.home.second.step - 100) / 300  # where it lies on the axis
    page.mouse.move(box["x"] + newest * box["width"], box["y"] + box["height"] / 2)
    expect(chart.locator(".tip")).to_contain_text(str(window.home.second.step))
    page.mouse.move(box["x"] + 20 / 300 * box["width"], box["y"] + box["height"] / 2)
    expect(chart.locator(".tip")).to_contain_text("120")
    page.mouse.move(box["x"] + 9, box["y"] + box["height"] / 4)
    drawn = page.evaluate("mine[1].toDataURL()")
    page.mouse.down()
    page.mouse.move(box["x"] + 9, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    page.wait_for_function("drawn => mine[1].toDataURL() !== drawn", arg=drawn)
    assert page.evaluate("mine.every((each) => each.isConnected)")  # who points at it went on


def test_of_two_searches_for_metrics_the_newer_one_counts(window: Window) -> None:
    page = window.open(f"/compare?run={LIVE}")
    expect(page.locator("figure[data-metric=loss] .chart canvas")).to_be_visible()
    page.evaluate(
        """() => {
          const fetched = window.fetch;
          window.fetch = async (url, options) => {
            const release = (resolve) => { window.release = resolve; };
            if (url.includes("find=late")) await new Promise(release);
            return fetched(url, options);
          };
        }"""
    )
    find = page.locator("#look [name=find]")
    find.fill("late|loss")
    page.wait_for_function("() => window.release")
    find.fill("^grad_norm$")
    panels = page.locator("figure[data-metric]")
    expect(panels).to_have_count(1)
    expect(find).to_be_focused()
    with page.expect_response(re.compile("find=late")):
        page.evaluate("release()")
    page.wait_for_timeout(500)
    expect(panels).to_have_count(1)
    expect(panels).to_have_attribute("data-metric", "grad_norm")


def test_curves_whose_answer_never_comes_are_asked_for_again(window: Window) -> None:
    page = window.open(f"/compare?run={LIVE}")
    expect(page.locator("figure[data-metric=loss] .chart canvas")).to_be_visible()
    page.evaluate(
        """() => {
          const fetched = window.fetch;
          AbortSignal.timeout = () => AbortSignal.abort(new Error("no answer"));
          window.fetch = (url, options) => new Promise((resolve, reject) => {
            if (!url.includes(".json")) return resolve(fetched(url, { ...options, signal: null }));
            window.fetch = (url, options) => fetched(url, { ...options, signal: null });
            if (options.signal) reject(options.signal.reason);
          });
        }"""
    )
    page.locator("#look [name=by]").select_option("hours")
    banner = page.locator("#curves .banner")
    expect(banner).to_contain_text("cannot be read now: no answer")
    expect(banner).to_have_count(0)
    label = page.locator("figure[data-metric=loss] .chart")
    expect(label).to_have_attribute("aria-label", re.compile("by hours"))


def test_a_filter_counts_what_it_shows(window: Window) -> None:
    page = window.open("/")
    count = page.locator("[data-count]", has_text="1").first
    expect(count).to_have_text("1")
    page.locator("#find").fill("nothing is called so")
    expect(count).to_have_text("0 of 1")


def test_a_part_of_the_curves_is_marked_and_on_another_axis_the_page_says_why_not(
    window: Window,
) -> None:
    page = window.open(f"/runs/{LIVE}?by=hours")
    box = page.locator("figure svg[data-x0]").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2

    def drag() -> None:
        page.mouse.move(box["x"] + 120, y)
        page.mouse.down()
        page.mouse.move(box["x"] + 260, y, steps=4)

    drag()
    page.mouse.up()
    expect(page.locator("#hint")).to_contain_text("by steps")
    page = window.open(f"/runs/{LIVE}")
    drag()
    expect(page.locator("svg .band")).to_have_count(1)
    page.mouse.up()
    page.wait_for_url("**?steps=*")


def test_an_open_page_says_why_nothing_new_comes_and_that_it_does_again(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    store = window.home.settings.home / "store"
    away = store.with_name("away")
    store.rename(away)
    try:
        banner = page.locator("#away")
        expect(banner).to_contain_text("moved, removed or unmounted", timeout=ANSWER_MS_MAX)
        expect(page.locator("#pulse")).to_have_text("not live")
    finally:
        away.rename(store)
    expect(banner).to_have_count(0, timeout=ANSWER_MS_MAX)
    expect(page.locator("#news")).to_have_text("live again")
    window.errors[:] = [each for each in window.errors if "503" not in each]


def test_a_value_is_read_back_from_a_logarithmic_axis(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    page.locator('a[href="?y=log"]').click()
    page.wait_for_url("**?y=log")
    edge = page.locator("figure svg[data-log]").first
    numbers = "each => [+each.dataset.y0, +each.dataset.y1, valueAt(each.dataset, 0.5)]"
    low, high, middle = edge.evaluate(numbers)
    assert middle == pytest.approx((low * high) ** 0.5)


def test_the_keyboard_leads_to_a_run_and_back(window: Window) -> None:
    page = window.open("/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    chosen = (page.locator("tr.chosen").get_attribute("id") or "").removeprefix("run-")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{chosen}")
    page.keyboard.press("u")
    page.wait_for_url(f"{window.address}/")
    page.keyboard.press("/")
    page.keyboard.type("live")
    expect(page.locator(f"#run-{REFUSED}")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator(f"#run-{REFUSED}")).to_be_visible()


def test_two_marked_runs_are_compared_by_a_key(window: Window) -> None:
    page = window.open("/")
    for run_id in (LIVE, OVER):
        page.check(f"#pick-{run_id}")
    page.keyboard.press("c")
    page.wait_for_url("**/compare?run=*")
    expect(page.get_by_role("heading", level=1)).to_contain_text(LIVE)


def test_pointing_at_a_curve_shows_its_value_in_every_panel(window: Window) -> None:
    page = window.open(f"/runs/{LIVE}")
    page.locator("figure svg[data-x1]").first.hover()
    panels = page.locator("figure svg[data-x1]").count()
    assert page.locator("svg .cross").count() > panels / 2
    assert " · " in page.locator("figcaption output").first.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_nothing_is_cut_off_at_the_side(
    scheme: str, size: dict[str, int], window: Window, tmp_path: Path
) -> None:
    page = window.page
    page.set_viewport_size(size)  # type: ignore[arg-type]
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    for path in PATHS:
        window.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], path
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(22, 24, 28)") is (scheme == "dark")
    page.set_viewport_size(DESK)  # type: ignore[arg-type]


def test_a_comparison_that_was_opened_before_the_first_step_gets_its_curves(window: Window) -> None:
    app = build(window.home.settings)
    run = LiveRun(FakeObjectStore(), "first-step", now=datetime.now(UTC), ranks=1, steps=150)
    run.history.write_to(app.store, count=1)  # declared
    app.projector.scan()
    page = window.open(f"/compare?run={run.run_id}")
    expect(page.get_by_text("have no metric yet")).to_be_visible()
    smooth = page.locator("#look [name=smooth]")
    smooth.fill("7")
    page.evaluate("window.isTheSamePage = true")
    run.store = app.store
    run.write().grow(1)
    app.projector.scan()
    expect(page.locator("figure[data-metric=loss] .chart canvas")).to_be_visible()
    expect(smooth).to_be_focused()
    expect(smooth).to_have_value("7")
    assert page.evaluate("window.isTheSamePage")


def test_no_request_left_the_machine_and_nothing_was_refused_by_the_policy(window: Window) -> None:
    window.open("/")
    hosts = {urlsplit(each).netloc for each in window.requested if not each.startswith("data:")}
    assert hosts == {urlsplit(window.address).netloc}
    assert window.errors == []
