"""`tracks review`: one day over all runs, in a terminal and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bodies import BEGIN
from tests.cli.conftest import Call
from tests.histories import History
from tests.stories import Story
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import build

DAY = BEGIN.date().isoformat()


def test_a_day_is_reported_with_failures_before_interruptions(story: Story, call: Call) -> None:
    result = call("review", "--day", DAY)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{DAY} UTC: 3 attempts ended, 1 failed, 1 interrupted, 1 as")
    assert result.stdout.index("FAILURES") < result.stdout.index("INTERRUPTIONS")
    assert "gpt-story/a02" in result.stdout


def test_json_holds_everything_and_the_numbers_that_the_ui_plots(story: Story, call: Call) -> None:
    result = json.loads(call("review", "--day", DAY, "--json").stdout)
    assert (result["day"], result["is_over"], result["promoted_count"]) == (DAY, True, 1)
    assert [each["reason"] for each in result["reasons"]] == ["gpu_oom", "preempted", "completed"]
    assert result["numbers"]["attempts_failed"] == 1
    assert result["headline"].startswith(f"{DAY} UTC: 3 attempts ended")


def test_an_attempt_without_a_verdict_is_bad_news_until_it_is_reclassified(
    story: Story, call: Call
) -> None:
    app = build(Settings.from_environment())
    lost = History("lost").declare().open().supervise().place().end("unknown", confidence=0.2)
    lost.write_to(app.store)
    app.projector.scan()
    result = call("review", "--day", DAY)
    assert result.exit_code == 1
    assert "WITHOUT A VERDICT" in result.stdout
    lost.reclassify(1, "host_oom").write_to(app.store)
    app.projector.scan()
    assert call("review", "--day", DAY).exit_code == 0


def test_a_price_table_adds_money(story: Story, call: Call, home: Path) -> None:
    (home / "prices.yaml").write_text("currency: EUR\nper_device_hour:\n  cpu: 3600\n")
    result = json.loads(call("review", "--day", DAY, "--json").stdout)
    seconds = sum(each["device_s"] for each in result["reasons"])
    assert result["numbers"]["cost_eur"] == pytest.approx(seconds)  # 3600 an hour is 1 a second
    assert "cost EUR" in call("review", "--day", DAY).stdout


def test_a_day_without_ends_points_to_the_running_one(story: Story, call: Call) -> None:
    result = call("review")
    assert result.exit_code == 0
    assert "no attempt ended" in result.stdout
    assert "--day today" in result.stdout


@pytest.mark.parametrize("day", ["31.1.2026", "tomorrow", "2999-01-01"])
def test_what_is_not_a_day_is_refused_in_words(story: Story, call: Call, day: str) -> None:
    result = call("review", "--day", day)
    assert result.exit_code == 2
    assert "UTC" in result.stderr
