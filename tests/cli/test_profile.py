"""`tracks profile`: one run, and the same config on one, two and four devices."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.bodies import CONFIG
from tests.cli.conftest import Call
from tests.histories import BEGIN, History
from tests.stories import Story
from tracks_dagster.settings import Settings
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import ComputeRequest, MemoryPeak
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json, format_time
from tracks_dagster.wiring import build

GIB = 1024**3
BATCH = {**CONFIG, "steps": 3600, "global_batch": 24}


def trained(store: ObjectStore, run_id: str, *, ranks: int, step_s: float, **config: Json) -> None:
    """Store a run of 21 steps of that length, a tenth of it waiting for data."""
    given = {**BATCH, **config}
    run = History(run_id).declare(compute=ComputeRequest(ranks=ranks), config=given)
    run.open().supervise().place(world_size=ranks).restore()
    lines = []
    for step in range(1, 22):
        at = BEGIN + timedelta(seconds=step * step_s)
        spent = {"steps_s": 0.9 * step * step_s, "data_s": 0.1 * step * step_s}
        line = {"kind": "step", "t": format_time(at), "step": step, "loss": 1.0, "spent": spent}
        exchange = {} if ranks == 1 else {"exchange_s": 0.05 * step_s}
        lines.append(json.dumps({**line, **exchange, "step_s": 0.9 * step_s}).encode() + b"\n")
    key = f"{journal_prefix(AttemptRef(run_id, 1), run.launch_id, 0)}{0:012d}.jsonl"
    store.put(key, b"".join(lines))
    memory = MemoryPeak(device_bytes=5 * GIB, reserved_bytes=6 * GIB, total_bytes=15 * GIB)
    run.commit(20).end(last_step=21, memory=memory).write_to(store)


@pytest.fixture
def three(story: Story, home: Path) -> None:
    """The same config on one, two and four devices: 1.8 and 2.4 times as fast."""
    for ranks, faster in ((1, 1.0), (2, 1.8), (4, 2.4)):
        trained(story.store, f"on-{ranks}", ranks=ranks, step_s=1.8 / faster)
    build(Settings.from_environment()).projector.scan()
    (home / "prices.yaml").write_text(
        "currency: USD\nper_device_hour: {cpu: 3.0}\nspot_per_device_hour: {cpu: 1.0}\n"
    )


@pytest.mark.usefixtures("three")
def test_a_run_in_a_pool_with_a_price_of_its_own_costs_that(call: Call, home: Path) -> None:
    prices = (
        "currency: USD\nper_device_hour: {cpu: 3.0}\npools: {local/cpu: {cpu: 1.5}, x: {cpu: 1}}\n"
    )
    (home / "prices.yaml").write_text(prices)
    assert "At the spot price, 1.5 an hour:" in call("profile", "on-2").stdout
    [run] = json.loads(call("profile", "on-2", "--json").stdout)["runs"]
    whole = run["whole"]
    assert whole["cost"]["seconds"] == pytest.approx(1.5 * whole["device_hours"]["seconds"])
    (home / "prices.yaml").write_text(prices.replace("local/cpu", "elsewhere"))
    assert "At the spot price, 1 an hour:" in call("profile", "on-2").stdout  # the least of them


@pytest.mark.usefixtures("three")
def test_a_run_is_profiled_and_its_whole_estimated(call: Call) -> None:
    shown = call("profile", "on-2")
    assert shown.exit_code == 0, shown.stderr
    text = shown.stdout
    assert "on-2/a01 on 2 × cpu: 19 steps measured" in text
    assert "a step      median 1.0 s, 90 % 1.0 s, 99 % 1.0 s" in text
    assert "throughput  1 steps/s, 24 samples/s" in text
    assert "90.0% computing (5.0% until all ranks had agreed), 10.0% waiting for data" in text
    assert "5.0 GiB in use at most, 6.0 GiB held, of 15.0 GiB: 60% free" in text
    assert "With its pool's interruptions, one every" in text
    assert "At the spot price, 1 an hour:" in text
    found = json.loads(call("profile", "on-2", "--json").stdout)
    [run] = found["runs"]
    assert 0 < run["spot"]["break_even"] < 1
    # 3600 steps of a second and a start, on two devices at 3 USD an hour each.
    start_s = run["start_s"]
    assert run["whole"]["device_hours"]["seconds"] == pytest.approx(2 * (3600 + start_s) / 3600)
    assert run["whole"]["cost"]["seconds"] == pytest.approx(6 * (3600 + start_s) / 3600)
    assert found["scaling"] is None


@pytest.mark.usefixtures("three")
def test_more_devices_that_bring_little_are_advised_against(call: Call) -> None:
    shown = call("profile", "on-4", "on-1", "on-2")
    assert shown.exit_code == 0, shown.stderr
    assert "Stop at 2: from there to 4 devices each added one brought 0.30 of one" in shown.stdout
    found = json.loads(call("profile", "on-1", "on-2", "on-4", "--json").stdout)["scaling"]
    assert found["stop_at"] == 2
    assert [step["speedup"] for step in found["steps"]] == pytest.approx([1.0, 1.8, 2.4])


@pytest.mark.usefixtures("three")
def test_runs_of_other_configs_and_runs_without_steps_are_refused(call: Call, story: Story) -> None:
    trained(story.store, "wider", ranks=4, step_s=1.0, seed=8, d_model=128)
    other = call("profile", "on-1", "wider")
    assert other.exit_code == 2
    assert "they also differ in d_model." in other.stderr
    History("new").declare().open().write_to(story.store)
    assert "No attempt of new has 3 steps in its journal yet" in call("profile", "new").stderr
    assert call("profile", "gone").exit_code != 0
