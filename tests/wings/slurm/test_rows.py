"""Slurm's tables as rows: what 22.05 printed, and what can be read of what is damaged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fakes import FakeClock
from tests.wings.slurm.double import FakeSlurm
from tracks_dagster.wings.slurm.rows import (
    QUEUE_FIELDS,
    JobRow,
    read_accounts,
    read_queue,
)

RECORDED = Path(__file__).parents[1] / "history" / "golden" / "slurm-22.05.sacct"


def test_a_recorded_table_of_accounting_is_read_whole() -> None:
    rows = read_accounts(RECORDED.read_text())
    states = {row.name: row.state for row in rows}
    assert states["too-long"] == "TIMEOUT"
    assert states["cancelled"] == "CANCELLED by 0"
    assert states["node-fail"] == "NODE_FAIL"
    again = [row for row in rows if row.name == "requeued"]
    assert [row.state for row in again] == ["REQUEUED", "COMPLETED"]
    failed = next(row for row in rows if row.name == "ends-on-sigterm")
    assert (failed.state, failed.exit) == ("FAILED", "15:0")
    assert failed.started_at == datetime(2026, 11, 28, 9, 11, 40, tzinfo=UTC)
    assert failed.steps


def test_what_the_queue_shows_is_read_back() -> None:
    clock = FakeClock()
    slurm = FakeSlurm(clock)
    slurm.run(["sbatch", "--job-name=tracks-a-a01-0"])
    slurm.start(slurm.job())
    slurm.job().preempted_at = clock()
    (row,) = read_queue(slurm.run(["squeue"]).stdout)
    assert row == JobRow(
        id="1",
        name="tracks-a-a01-0",
        state="RUNNING",
        submitted_at=clock(),
        started_at=clock(),
        limit_s=86_400.0,
        preempted_at=clock(),
        nodes="n[1-2]",
    )
    assert row.is_live


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("30:00", 1800.0),
        ("01:02:03", 3723.0),
        ("2-01:00:00", 176_400.0),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("", None),
    ],
)
def test_a_time_limit_is_seconds(limit: str, seconds: float | None) -> None:
    table = f"JobIDRaw|JobName|State|Timelimit\n7|a|RUNNING|{limit}\n"
    assert read_accounts(table)[0].limit_s == seconds


@pytest.mark.parametrize(
    "line",
    [
        "",
        "slurm_load_jobs error: Unable to contact slurm controller",
        "|" * len(QUEUE_FIELDS),
        "7|name|RUNNING|None|yesterday|N/A|N/A|1:00|0|N/A|n1|",
        "x|name|RUNNING|None|N/A|N/A|N/A|1:00|0|N/A|n1|",
    ],
)
def test_a_line_that_is_not_a_job_hides_no_other(line: str) -> None:
    good = "8|tracks-b|PENDING|Priority|N/A|N/A|N/A|UNLIMITED|0|N/A|(null)|"
    rows = read_queue(f"{line}\n{good}\n")
    assert [(row.id, row.reason, row.nodes) for row in rows] == [("8", "Priority", "")]


def test_what_a_login_shell_prints_before_a_table_hides_no_row() -> None:
    table = "Welcome to login1 | quota: 87 %\n\nJobIDRaw|JobName|State\n7|a|RUNNING\n"
    assert [row.id for row in read_accounts(table)] == ["7"]


def test_columns_of_another_version_are_found_by_their_names() -> None:
    table = "State|JobName|JobIDRaw|Restarts|NewColumn\nNODE_FAIL|a|7|2|x\n"
    (row,) = read_accounts(table)
    assert (row.id, row.name, row.state, row.restarts) == ("7", "a", "NODE_FAIL", 2)
