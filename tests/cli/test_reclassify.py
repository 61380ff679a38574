"""`tracks reclassify`: stored evidence read again under the rules of today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.stories import RUN_ID, Story
from tracks_dagster.core.records import Kind
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import build

WHY = ("--why", "a rule changed")


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rules under which a preemption stays one and nothing else does."""
    path = tmp_path / "rules.yaml"
    path.write_text('- {name: ours, reason: network_fabric, pattern: "[a-z]"}\n')
    monkeypatch.setenv("TRACKS_RULES", str(path))
    return path


def test_a_dry_run_tells_what_would_change_and_writes_nothing(
    call: Call, story: Story, home: Path, rules: Path
) -> None:
    before = files_of(home)
    result = call("reclassify", RUN_ID, "--dry-run", "--json", *WHY)
    assert all(row["recorded"] is False for row in json.loads(result.stdout))
    assert files_of(home) == before


def test_what_differs_is_recorded_once(call: Call, story: Story, rules: Path) -> None:
    rows = json.loads(call("reclassify", "--all", "--json", *WHY).stdout)
    changed = [row for row in rows if row["recorded"]]
    records = build(Settings.from_environment()).tracks.records(f"runs/{RUN_ID}")
    corrections = [r for r in records if r.kind is Kind.ATTEMPT_RECLASSIFIED]
    assert [r.body["reason"] for r in corrections] == [row["now"] for row in changed]
    again = json.loads(call("reclassify", "--all", "--json", *WHY).stdout)
    assert not any(row["recorded"] for row in again)


def test_words_for_people_count_what_was_read(call: Call, story: Story) -> None:
    result = call("reclassify", RUN_ID, *WHY)
    assert "ended attempts again" in result.stdout


@pytest.mark.parametrize("given", [(), (RUN_ID, "--all")])
def test_one_target_has_to_be_named(call: Call, story: Story, given: tuple[str, ...]) -> None:
    result = call("reclassify", *given, *WHY)
    assert result.exit_code == 2
    assert "--all" in result.stderr


def test_a_reason_in_words_is_asked_for(call: Call, story: Story) -> None:
    assert call("reclassify", RUN_ID).exit_code == 2
    assert call("reclassify", RUN_ID, "--why", " ").exit_code == 2


def test_an_empty_home_is_told_and_not_made(call: Call, home: Path) -> None:
    assert call("reclassify", "--all", *WHY).exit_code == 2
    assert not home.exists()


def test_a_person_gives_the_verdict_that_the_evidence_does_not_tell(
    call: Call, story: Story
) -> None:
    told = call("reclassify", f"{RUN_ID}/a01", "--as", "host_oom", *WHY, "--by", "ann", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["seq"] is not None
    state = build(Settings.from_environment()).tracks.run(RUN_ID)
    assert state.attempts[0].reason == "host_oom"
    assert state.attempts[0].reclassified is not None
    assert state.attempts[0].reclassified.lines == ("ann: a rule changed",)
    again = call("reclassify", f"{RUN_ID}/a01", "--as", "host_oom", *WHY, "--json")
    assert json.loads(again.stdout)["seq"] is None


def test_reading_the_evidence_again_leaves_a_persons_verdict(
    call: Call, story: Story, rules: Path
) -> None:
    call("reclassify", f"{RUN_ID}/a02", "--as", "disk_full", *WHY)
    rows = json.loads(call("reclassify", f"{RUN_ID}/a02", "--json", *WHY).stdout)
    assert [(row["now"], row["recorded"]) for row in rows] == [("disk_full", False)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((f"{RUN_ID}/a01", "--as", "gpu_ooom"), "did you mean gpu_oom"),
        ((f"{RUN_ID}/a01", "--as", "unknown"), "There are: user_cancelled"),
        ((f"{RUN_ID}/a01", "--as", "completed"), "There are: user_cancelled"),
        ((RUN_ID, "--as", "host_oom"), "name RUN/aNN"),
        (("--all", "--as", "host_oom"), "name RUN/aNN"),
        ((f"{RUN_ID}/a09", "--as", "host_oom"), "attempt 9"),
    ],
)
def test_a_verdict_that_cannot_be_is_refused_in_words(
    call: Call, story: Story, arguments: tuple[str, ...], said: str
) -> None:
    told = call("reclassify", *arguments, *WHY)
    assert told.exit_code != 0
    assert said in told.stderr
