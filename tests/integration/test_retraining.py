"""A project of a person's own that is trained again by itself, under `tracks up`, in the browser.

In `--full` only: `tests/code_location/test_retraining.py` has each tick, without a daemon.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.integration.homes import COMMAND_S_MAX, Home, embedded, wait_for
from tests.integration.test_whole_run import ANSWER_MS_MAX, CHROMIUM, QUIET
from tests.ports import free_port
from tracks_dagster.track.names import NO_PREFIX, RUNS, SCHEDULE_OWNER, TRAINING_RUNS
from tracks_dagster.track.states.run_state import RunState

pytestmark = [pytest.mark.full, pytest.mark.timeout(4 * COMMAND_S_MAX)]

LOCATION = "/locations/tracks_dagster"
PROJECT = """\
name: my-model
entry: train.py
config: {steps: {default: 6, low: 1, meaning: optimizer steps}, lr: 0.05}
dataset: numbers
checkpoint: {every_steps: 3}
evals: {heldout: evaluate.py}
promotion: {eval: heldout, metric: error, at_most: 1.0}
schedule: {cron: "* * * * *", on: new snapshot, only_if: snapshot differs}
"""
BY_HAND = "ops: {training_runs: {config: {intent: By hand., project: {my-model: {steps: 3}}}}}"
ENDED = ("succeeded", "refused", "cancelled")
TRAIN = """\
import torch
from tracks_dagster.training import attempt

with attempt.join() as a:
    torch.manual_seed(0)
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=a.config["lr"])
    a.register(model=layer, optimizer=optimizer)
    numbers = torch.tensor([float(line) for line in (a.data() / "numbers.txt").open()])
    data = torch.utils.data.TensorDataset(numbers[:, None])
    order = a.sampler(len(numbers), seed=1, global_batch=4)
    loader = torch.utils.data.DataLoader(data, batch_sampler=order)
    for step, (inputs,) in a.steps(loader, until=a.config["steps"]):
        loss = layer(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        a.report(step, loss=loss)
"""
EVALUATE = """\
import torch

def evaluate(checkpoint_folder, data_folder):
    weights = torch.load(checkpoint_folder / "weights.pt", weights_only=True)
    inputs = [float(line) for line in (data_folder / "numbers.txt").open()]
    outputs = torch.tensor(inputs)[:, None] @ weights["weight"].T + weights["bias"]
    return {"error": outputs.square().mean().item(), "samples": len(inputs)}
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a first snapshot of the project's dataset."""
    home = embedded(tmp_path)
    freeze(home, tmp_path, count=64)
    return home


def freeze(home: Home, folder: Path, *, count: int) -> None:
    """Make a snapshot of so many numbers."""
    (folder / "numbers.txt").write_text("".join(f"{each / count}\n" for each in range(count)))
    done = home.call("snapshots", "add", "numbers", str(folder / "numbers.txt"))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of the project."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in (
        ("tracks.yaml", PROJECT),
        ("train.py", TRAIN),
        ("evaluate.py", EVALUATE),
    ):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def address(home: Home) -> Iterator[str]:
    """Where `tracks up` serves the UI of that home."""
    server = home.start("up", "--port", str(free_port()))
    assert server.stdout is not None
    try:
        yield server.stdout.readline().split()[0]
    finally:
        server.terminate()
        server.communicate(timeout=COMMAND_S_MAX)


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a headless browser."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    rootless = () if os.geteuid() else ("--no-sandbox",)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*QUIET, *rootless], timeout=ANSWER_MS_MAX
        )
        page = chromium.new_page(viewport={"width": 1500, "height": 1000})
        page.set_default_timeout(ANSWER_MS_MAX)
        yield page
        chromium.close()


def test_a_project_is_trained_again_on_a_new_snapshot_and_promotes_by_its_own_rule(
    home: Home, project: Path, address: str, page: Page, tmp_path: Path
) -> None:
    schedule = f"{address}{LOCATION}/schedules/retrain_my_model"
    assert home.call("projects", "add", str(project)).returncode == 0
    page.goto(f"{address}/deployment/locations")
    page.get_by_role("button", name="Reload all").click()
    wait_for(lambda: is_listed(page, address))
    page.goto(schedule)
    expect.set_options(timeout=ANSWER_MS_MAX)
    expect(page.get_by_text(f"The code is that of {project} at the tick.")).to_be_visible()
    expect(page.get_by_text("Next tick", exact=True)).to_be_visible()
    expect(page.locator("[role=switch], input[type=checkbox]").first).to_be_checked()
    page.screenshot(path=tmp_path / "schedule.png")

    first = trained(home, count=1)
    freeze(home, tmp_path, count=32)
    second = trained(home, count=2)
    for state, snapshot in zip((first, second), snapshots(home), strict=True):
        assert state.run_id == f"my-model-{snapshot[:12]}"
        assert state.declared.owner == SCHEDULE_OWNER
        assert state.declared.promotion is not None
        [decided] = state.promotions
        assert (decided.body.promoted, decided.body.alias) == (True, "candidate")

    wait_for(lambda: says_that_nothing_changed(page, schedule))
    page.screenshot(path=tmp_path / "skipped.png")
    assert len(runs(home)) == 2
    launch_by_hand(page, address)
    page.screenshot(path=tmp_path / "launched.png")
    by_hand = trained(home, count=3)
    assert (by_hand.declared.owner, by_hand.declared.config["steps"]) == ("dagster", 3)
    assert by_hand.declared.config["lr"] == 0.05


def is_listed(page: Page, address: str) -> bool:
    """Whether the automations are there, and the project's among them."""
    page.goto(f"{address}/automation")
    page.get_by_text("retrain_gpt", exact=True).wait_for()
    names = ("retrain_my_model", "new_snapshot_retrains_my_model")
    return all(page.get_by_text(name, exact=True).count() for name in names)


def runs(home: Home) -> list[RunState]:
    """Return the project's runs, oldest first."""
    found = map(home.app.tracks.find_run, home.app.store.folders(RUNS))
    return sorted(filter(None, found), key=lambda state: state.declared_at)  # a folder comes first


def trained(home: Home, *, count: int) -> RunState:
    """Wait until there are so many runs and the newest has ended well; return that one."""
    wait_for(lambda: len(runs(home)) >= count)
    newest = runs(home)[-1].run_id
    wait_for(lambda: (line := home.line(newest)) is not None and line.state in ENDED)
    line = home.line(newest)
    assert line is not None
    assert line.state == "succeeded", line
    return home.app.tracks.run(newest)


def snapshots(home: Home) -> list[str]:
    """Return the ids of the dataset's snapshots, oldest first."""
    state = home.app.tracks.find_dataset("numbers")
    assert state is not None
    return [each.body.snapshot_id for each in state.snapshots]


def says_that_nothing_changed(page: Page, schedule: str) -> bool:
    """Whether the schedule's newest tick was skipped since there is no other snapshot."""
    page.goto(schedule)
    page.get_by_text("Tick history", exact=True).wait_for()
    page.wait_for_load_state("networkidle")
    results = page.get_by_text(
        "0 runs requested"
    )  # of the latest tick; then a status and a link each
    if results.count() < 3:
        return False
    results.nth(2).click()
    page.get_by_text("Skip reason:").wait_for()
    return page.get_by_text("skipped: the snapshot did not change").count() > 0


def launch_by_hand(page: Page, address: str) -> None:
    """Start a run of the project from an asset's page, as a person would."""
    page.goto(f"{address}{NO_PREFIX.page(TRAINING_RUNS)}")
    page.get_by_text("Materialize", exact=True).first.click()
    page.get_by_text("Scaffold missing config").wait_for()
    page.locator(".CodeMirror").first.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(BY_HAND)
    button = page.get_by_role("button", name="Materialize").last
    expect(button).to_be_enabled()
    button.click()
