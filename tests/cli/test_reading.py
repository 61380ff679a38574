"""The reading commands, as text and as JSON, on a home with one whole run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Call, files_of
from tests.cli.reading_commands import (
    FROM_LEDGER,
    FROM_TRACK,
    READING,
    Arguments,
    with_out,
)
from tests.histories import History
from tests.stories import RUN_ID, Story
from tests.studies.played import Played, make_study
from tracks_dagster.settings import Settings
from tracks_dagster.wiring import build


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_every_reading_command_prints_text_or_one_json_value_and_writes_nothing(
    arguments: Arguments, story: Story, call: Call, home: Path, tmp_path: Path
) -> None:
    def written_at() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (home / "store").rglob("*")}

    before, times = files_of(home), written_at()
    arguments = with_out(arguments, tmp_path)
    result = call(*arguments)
    assert result.exit_code == (1 if arguments[0] == "blast" else 0)  # it reaches a promotion
    assert result.stdout.strip()
    assert result.stderr == ""
    if arguments[0] == "export":  # it replaces no file
        (tmp_path / "run.tar.gz").unlink()
    json.loads(call(*arguments, "--json").stdout)
    assert (files_of(home), written_at()) == (before, times)


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_what_a_run_does_not_say_is_never_printed_as_none(
    arguments: Arguments, call: Call, tmp_path: Path
) -> None:
    """Of a run that has just begun, whose config names no steps and nothing else."""
    app = build(Settings.from_environment())
    History(RUN_ID).declare(config={}).open().write_to(app.store)
    app.projector.scan()
    printed = call(*with_out(arguments, tmp_path))
    assert not re.search(r"\bNone\b", printed.stdout + printed.stderr)


def test_no_command_that_reads_loads_dagster_torch_or_pydantic(
    story: Story, home: Path, tmp_path: Path
) -> None:
    reading = [with_out(each, tmp_path) for each in READING]
    asked = [*reading, ("reindex",), ("note", RUN_ID, "hello")]
    asked.sort(key=lambda each: each[0] == "report")  # last: the one that needs jinja2
    script = (
        "import sys\n"
        "from tracks_dagster.cli import main\n"
        f"for arguments in {[list(each) for each in asked]!r}:\n"
        "    main(arguments, standalone_mode=False)\n"
        "    heavy = {'dagster', 'torch', 'pydantic', 'jinja2'}\n"
        "    heavy -= {'jinja2'} if arguments[0] == 'report' else set()\n"
        "    loaded = sorted(heavy & sys.modules.keys())\n"
        "    assert not loaded, f'{arguments} loads {loaded}'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TRACKS_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_status_tells_the_state_of_every_run(story: Story, call: Call) -> None:
    [line] = json.loads(call("status", "--json").stdout)
    assert (line["run_id"], line["state"], line["step"]) == (RUN_ID, "succeeded", 40)
    assert RUN_ID in call("status").stdout


def test_status_of_an_empty_home_says_how_to_begin(call: Call, home: Path) -> None:
    assert "tracks run" in call("status").stdout
    assert call("status", "--json").stdout.strip() == "[]"
    assert not home.exists()


@pytest.mark.parametrize("arguments", [*FROM_LEDGER[1:], *FROM_TRACK], ids=" ".join)
def test_reading_an_empty_home_is_reported_and_makes_nothing(
    arguments: Arguments, call: Call, home: Path, tmp_path: Path
) -> None:
    result = call(*with_out(arguments, tmp_path))
    assert result.exit_code == 2
    assert "`tracks run" in result.stderr or "no ledger" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_explained_from_its_track_alone(story: Story, call: Call, home: Path) -> None:
    for path in home.glob("ledger.db*"):
        path.unlink()
    assert "gpu_oom" in call("explain", f"{RUN_ID}/a02").stdout


def test_checkpoints_are_listed_with_the_one_to_resume_from(story: Story, call: Call) -> None:
    rows = json.loads(call("checkpoints", "list", RUN_ID, "--json").stdout)
    assert [(row["attempt_id"], row["step"]) for row in rows] == [
        (1, 10),
        (1, 20),
        (2, 30),
        (3, 40),
    ]
    assert [row["is_resume_target"] for row in rows] == [False, False, False, True]
    assert (
        rows[3]["ref"]["manifest_sha256"] == story.history.state.checkpoints[3].ref.manifest_sha256
    )


def test_a_table_in_a_pipe_obeys_columns(
    story: Story, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "select intent, owner, team, state, run_id from training_runs"
    monkeypatch.delenv("COLUMNS", raising=False)
    widest = max(map(len, call("sql", query).stdout.splitlines()))
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, call("sql", query).stdout.splitlines())) <= 60 < widest


def test_the_nights_example_of_sql_names_its_columns(story: Story, call: Call) -> None:
    text = (Path(__file__).parents[2] / "docs/night.md").read_text(encoding="utf-8")
    (query,) = re.findall(r'`tracks sql "(.+?)"`', text)
    rows = json.loads(call("sql", query, "--json").stdout)
    assert [list(row) for row in rows] == [["termination_reason", "attempts", "gpu_hours"]] * 3


def test_sql_answers_the_question_of_the_design(story: Story, call: Call) -> None:
    query = (
        "select termination_reason, count(*) as attempts, sum(gpu_seconds) / 3600 as gpu_hours "
        "from training_attempts group by termination_reason order by termination_reason"
    )
    rows = json.loads(call("sql", query, "--json").stdout)
    assert [row["termination_reason"] for row in rows] == ["completed", "gpu_oom", "preempted"]


def test_no_column_of_sql_is_lost_in_json_because_another_has_its_name(
    story: Story, call: Call
) -> None:
    query = "select state, owner, owner, state from training_runs"
    assert call("sql", query).exit_code == 0
    result = call("sql", query, "--json")
    assert result.exit_code == 2
    assert "Two columns are named owner, state" in result.stderr
    assert "`as`" in result.stderr


def test_fsck_exits_with_one_when_it_finds_something(story: Story, call: Call, home: Path) -> None:
    chunk = next((home / "store" / "runs").rglob("chunks/*"))
    chunk.chmod(0o644)
    chunk.write_bytes(b"other bytes")
    found = call("fsck", "--json")
    assert found.exit_code == 1
    [finding] = json.loads(found.stdout)["findings"]
    assert "cannot be trusted" in finding["meaning"]
    text = call("fsck")
    assert text.exit_code == 1
    assert "To do:" in text.stdout


def test_a_removed_ledger_is_rebuilt(story: Story, call: Call, home: Path) -> None:
    for path in home.glob("ledger.db*"):
        path.unlink()
    result = call("status")
    assert result.exit_code == 2
    assert "`tracks reindex` builds it" in result.stderr
    assert "3 tracks" in call("reindex").stdout
    assert len(json.loads(call("status", "--json").stdout)) == 1
    assert call("fsck").exit_code == 0


def test_the_report_is_written_into_the_home(story: Story, call: Call, home: Path) -> None:
    path = Path(call("report", RUN_ID).stdout.strip())
    assert path == home / "reports" / f"{RUN_ID}.html"
    assert path.read_text().startswith("<!doctype html>")


def test_a_study_outside_of_its_hours_says_until_when_it_waits(home: Path, call: Call) -> None:
    now, hour = datetime.now(UTC), timedelta(hours=1)
    hours = f"{now + 2 * hour:%H:%M}-{now + 3 * hour:%H:%M}"
    app = build(Settings.from_environment())
    for name, off_peak in (("night", hours), ("day", "")):
        study = Played(make_study(study=name, off_peak=off_peak), lambda config, steps: 1.0)
        study.write_to(app.store)
    app.projector.scan()
    words = f"No run starts before {now + 2 * hour:%Y-%m-%d %H:%M} UTC: off-peak is {hours}."
    assert call("status").stdout == f"night: {words}\n"
    assert call("studies").stdout.endswith(f"night: {words}\n")
    assert words in call("studies", "night").stdout
    assert json.loads(call("status", "--json").stdout) == []
