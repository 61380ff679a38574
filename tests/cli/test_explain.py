"""`tracks explain` as a person at night calls it: what it prints, and that nothing in it dangles.

What stands in the whole text is asked of `--full`; the short answer has its own tests in
tests/review/test_explain_summary.py and tests/incidents.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.stories import RUN_ID, Story
from tracks_dagster.home.web_server import ADDRESS_FILE
from tracks_dagster.processes.process import find_process, write_process
from tracks_dagster.settings import Settings
from tracks_dagster.track.names import parse_attempt_key
from tracks_dagster.track.records import Json
from tracks_dagster.wiring import build

KEY = f"{RUN_ID}/a02"

# What an explanation may name, and the command (of those that it offers) that resolves it.
IDS = {
    r"\brecord (\d+)\b": ("explain", RUN_ID, "--records"),
    r"\bmanifest ([0-9a-f]{12,64})\b": ("checkpoints", "list", RUN_ID, "--json"),
    r"\bsnapshot ([0-9a-f]{12,64})\b": ("snapshots", "list", "aws-docs", "--json"),
    r"\b(launch-\d+)\b": ("explain", KEY, "--evidence"),
    r"\bfingerprint = '([^']+)'": ("sql", "select fingerprint from training_attempts"),
    r"\ba(\d\d)\b": ("sql", "select attempt_id from training_attempts"),
    r"Dagster run (\S+):": ("sql", "select dagster_run_id from training_attempts"),
}


def commands_in(text: str) -> list[list[str]]:
    """Return the `tracks` commands that a text names, as arguments."""
    named = dict.fromkeys(re.findall(r"`tracks ([^`]+)`", text))
    return [shlex.split(command) for command in named]


@pytest.mark.parametrize("target", [f"{RUN_ID}/a01", KEY, f"{RUN_ID}/a03", RUN_ID])
def test_every_command_that_a_text_names_can_be_called_as_it_stands(
    target: str, story: Story, call: Call
) -> None:
    named = commands_in(call("explain", target, "--full").stdout)
    short = commands_in(call("explain", target).stdout)
    assert ["explain", target, "--full"] in short
    assert [each for each in short if "--full" not in each and each not in named] == []
    assert named
    for arguments in named:
        result = call(*arguments)
        assert result.exit_code in (0, 1), f"tracks {arguments}: {result.stderr}"
        assert result.stdout.strip()


def test_what_an_attempt_cost_is_reported_in_money_where_a_price_table_stands(
    story: Story, call: Call, home: Path
) -> None:
    unknown = "in money not known: there is no price table (TRACKS_PRICES, or prices.yaml"
    assert unknown in call("explain", KEY, "--full").stdout
    money = json.loads(call("explain", KEY, "--json").stdout)["cost"]["money"]
    assert (money["amount"], money["device"]) == (None, "cpu")
    assert money["unknown_why"].startswith("there is no price table")
    table = home / "prices.yaml"
    table.write_text("currency: EUR\nper_device_hour: {cpu: 360}\n")
    # 35 s on one device, of which 10 steps of 0.4 s were kept
    result = "3.50 EUR at 360 a device hour, 3.10 of it not for steps that were kept"
    assert f"{result} (prices: {table})" in call("explain", KEY, "--full").stdout
    assert result in " ".join(call("explain", KEY).stdout.split())
    run = "3.50 EUR at 360 a device hour"  # of a02; the run's other attempts cost the rest
    assert run not in call("explain", RUN_ID).stdout
    assert json.loads(call("explain", RUN_ID, "--json").stdout)["cost"]["money"]["amount"] == (
        pytest.approx(11.2)  # 112 device seconds
    )
    money = json.loads(call("explain", KEY, "--json").stdout)["cost"]["money"]
    assert (money["amount"], money["source"]) == (pytest.approx(3.5), str(table))
    table.write_text("currency: EUR\nper_device_hour: {h100: 3}\n")
    assert "the price table has no price for cpu" in call("explain", KEY, "--full").stdout
    table.write_text("currency: euro\n")
    broken = call("explain", KEY)
    assert (broken.exit_code, "EUR" in broken.stdout) == (0, False)
    assert "per_device_hour is missing" in broken.stderr


@pytest.mark.parametrize("target", [f"{RUN_ID}/a01", KEY, f"{RUN_ID}/a03"])
def test_every_id_that_a_text_names_is_resolved_by_a_command_that_it_names(
    target: str, story: Story, call: Call
) -> None:
    text = call("explain", target, "--full").stdout
    offered = [arguments[0] for arguments in commands_in(text)]
    found = 0
    for pattern, arguments in IDS.items():
        # The evidence that an attempt's text names is its own.
        command = tuple(each.replace(KEY, target) for each in arguments)
        for name in dict.fromkeys(re.findall(pattern, text)):
            assert arguments[0] in offered
            assert name.lstrip("0") in call(*command).stdout, f"{name}: tracks {command}"
            found += 1
    assert found >= 8


def test_every_word_that_a_text_explains_is_one_that_it_uses(story: Story, call: Call) -> None:
    text = call("explain", KEY, "--full", "--words").stdout
    result, _, words = text.partition("\n  words ")
    assert "\n  words " not in call("explain", KEY, "--full").stdout
    explained = re.findall(r"(?:^ *|; )([\w -]+) = ", words, flags=re.MULTILINE)
    assert len(explained) > 20
    assert len(words.splitlines()) < 9  # a line a topic, not a page after the text
    for word in explained:
        stem = {"sensor": "retry_", "training run": "run"}.get(word, word.split()[0])
        assert stem in result
    everything = call("explain", "--words", "--json").stdout
    assert set(explained) <= set(json.loads(everything))


def test_a_failed_attempt_of_the_last_days_is_picked_and_can_be_picked_again(
    story: Story, call: Call
) -> None:
    first = call("explain", "--random-failed", "--last", "3650d", "--seed", "5")
    assert first.exit_code == 0
    assert re.match(
        r"picked gpt-story/a0[12] of 2 failed in the last 3650d; again: --seed 5", first.stderr
    )
    again = call("explain", "--random-failed", "--last", "3650d", "--seed", "5", "--json")
    assert json.loads(again.stdout)["key"] in first.stdout
    unseeded = call("explain", "--random-failed", "--last", "3650d")
    assert "--seed" in unseeded.stderr


def test_a_reader_of_a_random_failed_attempt_is_graded_by_the_clock(
    story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = ("explain", "--random-failed", "--last", "3650d", "--seed", "5", "--grade")
    graded = call(*pick, typed="an answer\ny\n" * 6)
    assert graded.exit_code == 0, graded.output
    assert re.search(r"gpt-story/a0[12]: 6 of 6 answered, in .* of 15 min: passed\.", graded.stdout)
    for words in ("Which config did it run with", "On which machines", "still to be?"):
        assert words in graded.stderr
    assert "aws-docs@" in graded.stderr  # the record's own answer to the data
    half = call(*pick, "--json", typed="an answer\ny\n" * 3 + "an answer\nn\n" + "\n" * 2)
    assert half.exit_code == 1
    sheet = json.loads(half.stdout[half.stdout.index("{") :])  # behind what was typed
    assert (sheet["score"], sheet["passed"]) == (3, False)
    assert sheet["right"]["checkpoint"] is False
    monkeypatch.setattr("tracks_dagster.review.explain.grading.TIME_S_MAX", -1.0)
    assert call(*pick, typed="an answer\ny\n" * 6).exit_code == 1  # too late


def test_where_nothing_failed_that_is_said(story: Story, call: Call) -> None:
    result = call("explain", "--random-failed", "--last", "1min")
    assert result.exit_code == 2
    assert "No attempt failed in the last 1min; give a longer time" in result.stderr
    longer = call("explain", "--random-failed", "--last", "1d").stderr
    assert "--last 90d" in longer


def test_where_nothing_failed_in_a_year_no_shorter_time_is_proposed(home: Path, call: Call) -> None:
    build(Settings.from_environment())
    result = call("explain", "--random-failed", "--last", "52w").stderr
    assert "No attempt failed in the last 52w" in result
    assert "longer" not in result  # 90 days would be shorter


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((), "Name a run or an attempt"),
        ((RUN_ID, "--random-failed"), "not both"),
        (("gpt-stroy/a01",), "did you mean gpt-story?"),
        ((RUN_ID, "--evidence"), "write gpt-story/a01"),
        ((RUN_ID, "--grade"), "write gpt-story/a01"),
        ((KEY, "--grade", "--records"), "leave out"),
        ((KEY, "--evidence", "--records"), "Choose one"),
        (("--random-failed", "--last", "soon"), "--last"),
    ],
    ids=str,
)
def test_wrong_use_says_what_is_right(
    arguments: tuple[str, ...], hint: str, story: Story, call: Call
) -> None:
    refused = call("explain", *arguments)
    assert refused.exit_code == 2
    assert hint in refused.stderr
    assert refused.stdout == ""


def test_a_broken_track_is_reported_as_far_as_it_holds_with_exit_code_1(
    story: Story, call: Call, home: Path
) -> None:
    seq = story.history.state.attempts[1].ended_seq
    (home / "store" / "runs" / RUN_ID / "log" / f"{seq:012d}.json").unlink()
    result = call("explain", f"{RUN_ID}/a01")
    assert result.exit_code == 1
    assert f"THE RECORD BREAKS at record {seq}" in result.stdout
    assert "gpt-story/a01: preempted" in result.stdout
    assert json.loads(call("explain", RUN_ID, "--json").stdout)["broken"]["seq"] == seq
    assert call("explain", RUN_ID, "--records").exit_code == 1


def test_what_a_broken_record_does_not_reach_is_not_said_to_be_open_or_absent(
    story: Story, call: Call, home: Path
) -> None:
    seq = story.history.state.attempts[1].ended_seq
    (home / "store" / "runs" / RUN_ID / "log" / f"{seq:012d}.json").unlink()
    assert call("explain", KEY).stdout.startswith(f"{KEY}: end not known")
    result = call("explain", KEY, "--full").stdout
    assert result.startswith(f"{KEY}: end not known")
    assert "whether it has ended is not known" in result
    assert f"not known: what came after record {(seq or 0) - 1} cannot be read" in result
    assert "what to do     First mend the record: Restore the object" in result
    assert "still running" not in result
    later = call("explain", f"{RUN_ID}/a03")
    assert later.exit_code == 1  # it is there, and cannot be read
    assert f"Whether {RUN_ID} has an attempt 3 cannot be known" in later.stderr


def test_an_attempt_that_runs_says_so_and_what_is_known(
    home: Path, call: Call, story: Story
) -> None:
    running = Story(story.store, run_id="still-runs")
    running.begin()
    running.ship(range(1, 15))
    running.commit(10)
    running.write_tracks()
    text = call("explain", "still-runs/a01", "--full").stdout
    assert "how far it is  It is still running: step 14 of 40" in text
    assert re.search(
        r"it has been silent for \d+ min, since \S+Z: `tracks triage still-runs`", text
    )
    assert "step 10 is its last commit, so 4 steps would be lost" in text
    assert "the attempt has not ended" in text  # of what its receipt does not hold yet


def test_a_ledger_older_than_the_code_is_named_and_the_track_is_still_explained(
    story: Story, call: Call, home: Path
) -> None:
    with sqlite3.connect(home / "ledger.db") as ledger:
        ledger.execute("update ledger_version set version_num = '0001'")
    result = call("explain", KEY)
    assert result.exit_code == 0
    assert "gpu_oom" in result.stdout
    assert "an older version wrote it (schema 0001" in result.stderr
    assert "`tracks reindex`" in result.stderr
    picked = call("explain", "--random-failed")
    assert picked.exit_code == 2
    assert "`tracks reindex`" in picked.stderr


def test_the_report_is_written_where_one_wants_it(
    story: Story, call: Call, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "out" / "report.html"
    result = call("explain", KEY, "--html", str(file))
    assert result.stdout.strip() == str(file)
    assert '<details class="explained" id="a02" open>' in file.read_text()
    at_home = call("explain", RUN_ID, "--html")
    assert at_home.stdout.strip() == str(home / "reports" / f"{RUN_ID}.html")
    assert list(file.parent.iterdir()) == [file]  # nothing half-written stays


def test_links_lead_to_the_ui_where_its_address_is_set(
    story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = ("explain", KEY, "--full")
    assert "Dagster run dagster-2: /runs/dagster-2" in call(*full).stdout
    monkeypatch.setenv("TRACKS_UI_URL", "https://dagster.example.org/")
    text = call(*full).stdout
    assert "https://dagster.example.org/runs/dagster-2" in text
    assert "https://dagster.example.org/assets/receipts?view=partitions&partition=" in text
    for wrong in ("dagster.example.org", "http://", "http://[::1", "http://[x]/"):
        monkeypatch.setenv("TRACKS_UI_URL", wrong)
        assert "http://localhost:3000" in call("explain", KEY).stderr


def test_links_lead_to_the_ui_that_tracks_up_serves_now(
    story: Story, call: Call, home: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "run.zip"
    assert call("export", RUN_ID, str(archive)).exit_code == 0
    served = find_process(os.getpid())  # plays the web server
    assert served is not None
    (home / "dagster").mkdir()
    file, address = home / "dagster" / ADDRESS_FILE, "http://127.0.0.1:4000"
    write_process(file, served, address=address)
    link = f"{address}/runs/dagster-2"
    assert link in call("explain", KEY, "--full").stdout
    assert (
        link not in call("explain", KEY, "--full", "--archive", str(archive)).stdout
    )  # not this UI's
    write_process(file, replace(served, started=served.started + 1), address=address)
    assert link not in call("explain", KEY, "--full").stdout


def test_records_and_evidence_are_there_to_be_looked_up(story: Story, call: Call) -> None:
    lines = call("explain", RUN_ID, "--records").stdout.splitlines()
    assert len(lines) == len(story.history.records)
    records: list[Json] = json.loads(call("explain", RUN_ID, "--records", "--json").stdout)
    assert [each["seq"] for each in records] == list(range(len(lines)))
    evidence = json.loads(call("explain", KEY, "--evidence").stdout)
    assert (evidence["run_id"], evidence["attempt_id"]) == parse_attempt_key(KEY)


def test_evidence_that_was_changed_is_shown_with_a_warning(
    story: Story, call: Call, home: Path
) -> None:
    (evidence,) = (home / "store" / "runs" / RUN_ID / "attempts" / "2" / "evidence").iterdir()
    evidence.chmod(0o644)
    evidence.write_bytes(evidence.read_bytes().replace(b"gpu_oom", b"preempt"))
    result = call("explain", KEY, "--evidence")
    assert result.exit_code == 1
    assert "changed after the verdict" in result.stderr
    assert "preempt" in result.stdout


def test_of_a_run_with_many_attempts_the_newest_are_reported_and_the_others_named(
    home: Path, story: Story, call: Call
) -> None:
    many = Story(story.store, run_id="many")
    for number in range(1, 31):
        many.attempt("preempted", last_step=number, commits=(number,))
    many.write_tracks()
    text = call("explain", "many", "--full").stdout
    assert text.count("what it tried") == 12
    assert "a01 to a30 30 attempts, preempted" in text
    assert "the oldest 18 are listed here only" in text
    named = [arguments for arguments in commands_in(text) if arguments != ["up"]]  # it goes on
    assert all(call(*arguments).exit_code in (0, 1) for arguments in named[:3])
    assert json.loads(call("explain", "many", "--json").stdout)["left_out"] == 18


@pytest.mark.parametrize(("columns", "width"), [("80", 80), (None, 100)])
def test_the_text_is_as_wide_as_the_terminal_or_a_hundred_characters(
    columns: str | None, width: int, story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    lines = call("explain", f"{RUN_ID}/a02", "--full").stdout.splitlines()
    # A command and a whole sha256 are never broken.
    lengths = [len(line) for line in lines if "`" not in line and " " in line.strip()]
    assert max(lengths) in range(width - 15, width + 1)
