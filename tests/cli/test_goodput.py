"""`tracks goodput` as a person calls it: text, JSON, other times, money, and wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.review import slo


def test_the_account_tells_what_ended_why_and_what_it_cost(story: Story, call: Call) -> None:
    result = call("goodput").stdout
    assert "3 attempts, of 1 run" in result
    assert "gpu_oom" in result
    assert "steps that were kept" in result
    assert "evals: 1 ended" in result
    assert "ETTR = effective training time ratio" in result
    assert "wasted = device hours" in result
    assert max(map(len, result.splitlines())) <= 120


def test_as_json_it_holds_every_bucket(story: Story, call: Call) -> None:
    result = json.loads(call("goodput", "--by", "run", "--json").stdout)
    assert result["groups"][0]["name"] == RUN_ID
    assert "idle" in result["total"]["seconds"]
    assert result["currency"] is None


def test_as_of_an_earlier_time_the_first_attempt_is_still_open(story: Story, call: Call) -> None:
    result = json.loads(call("goodput", "--as-of", "2026-01-31T02:00:30Z", "--json").stdout)
    assert [(g["name"], g["attempts"]) for g in result["groups"]] == [("(open)", 1)]
    assert result["as_of"] == "2026-01-31T02:00:30.000000Z"


def test_nothing_ran_in_the_last_days(story: Story, call: Call) -> None:
    result = call("goodput", "--last", "1s").stdout
    assert "Nothing ran" in result
    assert " = " not in result  # no term is used, none is explained
    assert "Nothing ran" in call("goodput", "--as-of", "0001-01-02", "--last", "7d").stdout


@pytest.mark.parametrize("is_named", [False, True])
def test_a_price_table_tells_money(
    story: Story, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    path = home / ("elsewhere.yaml" if is_named else "prices.yaml")
    path.write_text("currency: EUR\nper_device_hour: {cpu: 3.5}\n")
    if is_named:
        monkeypatch.setenv("TRACKS_PRICES", str(path))
    assert "EUR" in call("goodput").stdout


def test_a_price_table_with_errors_is_refused_with_every_line(
    story: Story, call: Call, home: Path
) -> None:
    (home / "prices.yaml").write_text("currency: euro\nper_device_hour:\n  cpu: dear\n")
    result = call("goodput")
    assert result.exit_code == 2
    assert "it has 2 errors" in result.stderr
    assert "line 1: currency: 'euro' is not a currency" in result.stderr
    assert "line 3: per_device_hour.cpu: 'dear' is not a number" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--last", "7"), "has no unit"),
        (("--as-of", "yesterday"), "write it as 2026-01-31T02:00"),
        (("--as-of", "0001-01-01T00:00+14:00"), "is not a time"),  # in UTC before the year 1
        (("--as-of", "2999-01-01"), "has not come yet"),
        (("--family", "gptt"), "There is no run of family 'gptt'; did you mean gpt?"),
        (("--by", "moon"), "'reason', 'family', 'team', 'week', 'run'"),
    ],
)
def test_wrong_use_says_what_to_write(
    story: Story, call: Call, arguments: tuple[str, ...], words: str
) -> None:
    result = call("goodput", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_waits_of_each_class_stand_beside_the_policys_objectives(
    story: Story, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slo, "COUNT_MIN", 1)
    day = ("--as-of", "2026-02-01", "--last", "1d")
    met = call("slo", *day)
    assert met.exit_code == 0
    assert "single" in met.stdout
    assert "No work of urgent, interactive, distributed, sweep, deferred." in met.stdout
    (home / "policy.yaml").write_text("classes: {single: {recovery: 1s}}\n")
    missed = call("slo", *day)
    assert missed.exit_code == 1
    assert "Missed: class single: 95 of 100 times it had recovered within" in missed.stdout
    result = json.loads(call("slo", *day, "--json").stdout)
    [recovery] = [each for each in result["classes"] if each["is_missed"]]
    assert (recovery["workload_class"], recovery["wait"]) == ("single", "recovery")
    assert (recovery["objective_s"], recovery["longest_run_id"]) == (1.0, RUN_ID)
    assert call("slo", "--last", "7").exit_code == 2
