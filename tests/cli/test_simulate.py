"""`tracks simulate`: on a ledger, on a trace, and on what is neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.stories import Story
from tracks_dagster.wings.lab.simulation import histories

TRACE = {
    "zone-a": {"tick_s": 30, "intervals": [[1, 7200], [0, 600], [1, 3600], [0, 60], [1, 9000]]},
    "zone-b": {"tick_s": 30, "intervals": [[2, 7200], [1, 600], [2, 3600]]},
}
LONG_AGO = "3650d"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A file of two traces."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE))
    return str(path)


def test_a_trace_needs_no_home_and_makes_none(trace: str, home: Path, call: Call) -> None:
    result = call("simulate", "--trace", trace)
    assert result.exit_code == 0
    assert "unlimited retries" in result.stdout
    assert not home.exists()


def test_what_the_columns_mean_and_what_ours_refused_stand_below_the_table(
    trace: str, tmp_path: Path, call: Call
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("reasons:\n  preempted:\n    count: 0\n")
    result = call("simulate", "--trace", trace, "--policy", str(policy))
    assert "ETTR: the share of all time" in result.stdout
    assert "ours refused 3 times: preempted: reason limit, 3×" in result.stdout
    assert "ours refused nothing" in call("simulate", "--trace", trace).stdout


def test_a_trace_as_json_has_every_policy_with_its_buckets_and_its_share(
    trace: str, call: Call
) -> None:
    given = ("--save", "5s", "--restart", "2min", "--grace", "30s", "--every", "20min")
    result = json.loads(call("simulate", "--trace", trace, *given, "--json").stdout)
    assert result["parameters"] == {
        "save_s": 5.0,
        "restart_s": 120.0,
        "person_after_s": 3600.0,
        "step_s": 1.0,
        "grace_s": 30.0,
        "nodes": None,
    }
    assert [(row["policy"], row["cadence"]) for row in result["rows"]] == [
        ("ours", "√(2·δ·M)"),
        ("0 retries", "√(2·δ·M)"),
        ("3 retries", "√(2·δ·M)"),
        ("unlimited retries", "√(2·δ·M)"),
        ("ours", "1200 s"),
        ("ours", "never"),
    ]
    for row in result["rows"]:
        assert 0 <= row["ettr"] <= 1
        assert sum(row["buckets_s"].values()) == pytest.approx(row["wall_s"])
        assert 0 <= row["share_of_best"]["worst"] <= row["share_of_best"]["median"] <= 1
        assert [run["name"] for run in row["runs"]] == list(TRACE)


def test_the_chance_to_finish_with_checkpoints_and_without_is_in_text_and_json(
    trace: str, call: Call
) -> None:
    result = call("simulate", "--trace", trace).stdout
    assert "p(finish): the share of runs that end within 2 times their work" in result
    assert "with checkpoints" in result
    chances = json.loads(call("simulate", "--trace", trace, "--json").stdout)["p_finish"]
    assert [chance["work_s"] for chance in chances] == [3600.0]  # six hours have no room in these
    for chance in chances:
        assert 0 <= chance["without_checkpoints"] <= chance["with_checkpoints"] <= 1
        assert chance["starts"] == 40


def test_each_trace_may_be_a_pool_of_one_run(trace: str, tmp_path: Path, call: Call) -> None:
    result = json.loads(call("simulate", "--trace", trace, "--pools", "--json").stdout)
    names = [row["policy"] for row in result["rows"]]
    assert names == ["ours, other pools", "ours, its own pool", "unlimited retries"]
    assert "paid for each kept device-hour: ours, other pools" in call(
        "simulate", "--trace", trace, "--pools"
    ).stdout.replace("\n", " ")
    policy = tmp_path / "policy.yaml"
    policy.write_text("other_pools: {zone-a: nowhere}\n")
    wrong = call("simulate", "--trace", trace, "--pools", "--policy", str(policy))
    assert wrong.exit_code == 2
    assert "other_pools name nowhere, of which there is no trace" in wrong.stderr


def test_a_gang_of_one_of_two_instances_runs_on(trace: str, call: Call) -> None:
    result = json.loads(call("simulate", "--trace", trace, "--nodes", "1", "--json").stdout)
    assert result["rows"][0]["runs"][1]["ends"] == {}


def test_llama_3_is_drawn_by_its_seed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    tenth = {cause: (count // 10, why) for cause, (count, why) in histories.LLAMA3_CAUSES.items()}
    monkeypatch.setattr(histories, "LLAMA3_CAUSES", tenth)
    monkeypatch.setattr(histories, "LLAMA3_DAYS", histories.LLAMA3_DAYS / 10)
    # A day without a single retry suffices to see the draw: nobody answers.
    given = ("simulate", "--llama3", "--person-after", "none", "--every", "10min", "--json")
    first, other = (json.loads(call(*given, "--seed", seed).stdout) for seed in ("3", "4"))
    assert first["parameters"]["seed"] == 3
    assert first["rows"] != other["rows"]
    assert first["closed_form_best_ettr"] == pytest.approx(0.9037, abs=1e-4)


def test_the_ledgers_history_is_replayed_and_nothing_is_written(
    story: Story, home: Path, call: Call
) -> None:
    before = files_of(home)
    result = call("simulate", "--last", LONG_AGO)
    assert result.exit_code == 0
    assert "as it was" in result.stdout
    assert "assumed: An attempt ends for the reason" in result.stdout
    found = json.loads(call("simulate", "--last", LONG_AGO, "--json").stdout)
    assert found["runs"] == 1
    assert "p_finish" in found
    assert found["rows"][0]["ends"] == {"preempted": 1, "gpu_oom": 1, "completed": 1}
    assert found["rows"][1]["saved_against_as_it_was"]["attempts"] == 0
    assert files_of(home) == before


def test_simulating_loads_neither_dagster_nor_torch(story: Story, home: Path, trace: str) -> None:
    calls = [["simulate", "--trace", trace], ["simulate", "--last", LONG_AGO]]
    script = (
        "import sys\n"
        "from tracks_dagster.cli import main\n"
        f"for arguments in {calls!r}:\n"
        "    main(arguments, standalone_mode=False)\n"
        "assert not {'dagster', 'torch'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRACKS_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_policy_file_is_tried_and_its_errors_are_reported(
    trace: str, tmp_path: Path, call: Call
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("reasons:\n  preempted:\n    count: 1\n")
    result = call("simulate", "--trace", trace, "--policy", str(policy), "--json")
    shipped = call("simulate", "--trace", trace, "--json")
    assert result.exit_code == 0, result.stderr
    assert (
        json.loads(result.stdout)["policy_version"] != json.loads(shipped.stdout)["policy_version"]
    )
    policy.write_text("reasons:\n  preemptd:\n    count: 1\n")
    wrong = call("simulate", "--trace", trace, "--policy", str(policy))
    assert wrong.exit_code == 2
    assert "preempted" in wrong.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\xff", "is not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "it holds a list, not traces by name"),
        (b'{"a": {"intervals": [[1, -3600]]}}', "interval 1 lasts -3600 seconds"),
        (b'{"a": {"intervals": [[1, NaN]]}}', "NaN is not a number of JSON"),
        (b'{"a": {"intervals": [[0, 60]]}}', "never has an instance"),
    ],
)
def test_a_file_that_is_not_a_trace_is_refused_in_words(
    content: bytes, words: str, tmp_path: Path, call: Call
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    result = call("simulate", "--trace", str(path))
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--trace", "nowhere.json"), "nowhere.json cannot be read"),
        (("--llama3", "--trace", "t.json"), "give one of them"),
        (("--llama3", "--grace", "30s"), "for --trace"),
        (("--llama3", "--pools"), "give --trace FILE"),
        (("--llama3", "--save", "30"), "has no unit"),
        (("--llama3", "--every", "0s"), "not a time at all"),
        (("--save", "30s"), "Give them with --trace FILE or --llama3"),
        (("--last", "7"), "--last"),
        ((), "ledger"),
    ],
)
def test_wrong_use_is_reported(arguments: tuple[str, ...], words: str, call: Call) -> None:
    result = call("simulate", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
