"""Which attempts a trial of Ray Tune had is the same however much of its two files is there yet."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tracks_dagster.wings.history.effects.ray import Ray
from tracks_dagster.wings.history.source import BadRow, Read, SourceAttempt

SEED = int(os.environ.get("RAY_SEED") or os.environ.get("TRACKS_DRAW_SEED") or 1)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
FAILS, FAILS_BEFORE, IS_PAUSED, ENDS_WELL = "fails", "fails before", "is paused", "ends well"


def write(
    folder: Path,
    ends: list[str],
    *,
    ahead_h: int,
    fast: bool = False,
    reports_of: Callable[[], int] = lambda: 2,
    summer_from: int = 99,
    driver_s: float = 0.0,
) -> None:
    """Write a trial whose attempts ended so; fast: each attempt within one second.

    reports_of: draws how many reports an attempt has. summer_from: the attempt from which on its clock
    is an hour further. driver_s: by how much the clock that dates failures is before the reports'.
    """
    trial = folder / "experiment" / "train_ab123_00000"
    trial.mkdir(parents=True)
    (trial / "params.json").write_text("{}")
    at, reports, failures, iteration = BEGIN, list[Any](), list[str](), 0
    for number, end in enumerate(ends, 1):
        at += timedelta(seconds=1 if fast else 7)
        if number == summer_from:
            ahead_h, at = ahead_h + 1, at + timedelta(hours=3)
        for since in range(1, 1 + (reports_of() if end != FAILS_BEFORE else 0)):
            iteration += 1
            at += timedelta(seconds=0 if fast else 3)
            report = {"training_iteration": iteration, "iterations_since_restore": since}
            report |= {"timestamp": int(at.timestamp()), "trial_id": "ab123_00000", "loss": number}
            local = at + timedelta(hours=ahead_h)
            reports.append(report | {"date": f"{local:%Y-%m-%d_%H-%M-%S}", "done": False})
        if end in (FAILS, FAILS_BEFORE):
            at += timedelta(seconds=0 if fast else 2)
            local = at + timedelta(hours=ahead_h, seconds=driver_s)
            failures.append(
                f"Failure # {len(failures) + 1} (occurred at {local:%Y-%m-%d_%H-%M-%S})\n"
                f"RuntimeError: of attempt {number}\n"
            )
    (trial / "result.json").write_text("".join(json.dumps(each) + "\n" for each in reports))
    if failures:
        (trial / "error.txt").write_text("".join(failures))
    state = "TERMINATED" if ends[-1] == ENDS_WELL else "ERROR"
    named = {"trial_id": "ab123_00000", "relative_logdir": trial.name, "status": state}
    text = json.dumps({"trial_data": [[json.dumps(named), "{}"]]})
    (trial.parent / "experiment_state-1.json").write_text(text)


def read(folder: Path) -> list[Read]:
    return [*Ray(path=folder, now=BEGIN + timedelta(days=9)).read()]


def ends_of(found: list[Read]) -> list[str]:
    """Return how each attempt ended, checking that a failure's words are of that attempt."""
    ends = []
    for number, each in enumerate(found, 1):
        assert isinstance(each, SourceAttempt)
        assert each.id.endswith(f"/{number}")
        tail = each.evidence.ranks[0].log_tail if each.evidence.ranks else None
        if tail is not None:
            assert tail == f"RuntimeError: of attempt {number}\n"
            ends.append(FAILS if each.points else FAILS_BEFORE)
        else:
            assert {point.value for point in each.points} == {number}
            ends.append(ENDS_WELL if each.succeeded else IS_PAUSED)
    return ends


@pytest.mark.parametrize("ahead_h", [0, 5, -8])
def test_each_failure_is_of_the_attempt_that_it_ended(tmp_path: Path, ahead_h: int) -> None:
    """Of a machine in any zone, whose offset its own reports show."""
    drawn = random.Random(f"{SEED} {ahead_h}")
    for number in range(40):
        ends = list[str]()
        for _ in range(drawn.randrange(5)):
            # A failure before any report looks as one of the attempt before, had that not failed.
            after = (
                [FAILS, IS_PAUSED] if ends[-1:] == [IS_PAUSED] else [FAILS, FAILS_BEFORE, IS_PAUSED]
            )
            ends.append(drawn.choice(after))
        ends.append(drawn.choice([FAILS, ENDS_WELL]))
        # Ray's times are whole seconds: whether an attempt failed in its first, or the one before it
        # then, nothing says.
        fast = IS_PAUSED not in ends and drawn.random() < 0.5
        # That summer began, or ended, is seen by reports alone.
        reporting = [n for n, end in enumerate(ends, 1) if end != FAILS_BEFORE]
        folder = tmp_path / str(number)
        write(
            folder,
            ends,
            ahead_h=ahead_h,
            fast=fast,
            reports_of=lambda: drawn.randint(1, 2),
            summer_from=drawn.choice([99, *reporting[1:]]),
        )
        found = read(folder)
        assert ends_of(found) == ends, f"RAY_SEED={SEED}"
        begins = [each.submitted_at for each in found if isinstance(each, SourceAttempt)]
        assert begins == sorted(begins), f"RAY_SEED={SEED}"


@pytest.mark.parametrize("driver_s", [-2.0, 3600.0])
def test_of_times_that_cannot_be_the_nth_failure_is_of_the_nth_attempt(
    tmp_path: Path, driver_s: float
) -> None:
    """Of a driver whose clock is seconds off, or in another zone than its workers'."""
    ends = [FAILS, FAILS, ENDS_WELL]
    write(tmp_path, ends, ahead_h=0, driver_s=driver_s - 1.0)
    found = read(tmp_path)
    assert ends_of(found) == ends
    said = [isinstance(each, SourceAttempt) and "failures" in each.unknown for each in found]
    assert said == [True, True, False]


def test_what_ended_well_after_many_failures_did_not_fail(tmp_path: Path) -> None:
    """Beyond a hundred restarts all reports are one attempt."""
    write(tmp_path, [FAILS] * 120 + [ENDS_WELL], ahead_h=0)
    *failed, well = read(tmp_path)
    assert isinstance(well, SourceAttempt)
    assert well.succeeded
    assert len(failed) == 120


def test_what_is_there_so_far_is_of_the_attempts_that_it_will_be_of(tmp_path: Path) -> None:
    """Reports that come later make no attempt into another one."""
    ends = [FAILS, FAILS_BEFORE, FAILS, ENDS_WELL]
    write(tmp_path, ends, ahead_h=2)
    (results,) = tmp_path.rglob("result.json")
    lines = results.read_text().splitlines(keepends=True)
    for there in range(len(lines) + 1):
        results.write_text("".join(lines[:there]))
        found = read(tmp_path)
        bad = [each for each in found if isinstance(each, BadRow)]
        assert len(bad) == (there < 5), "until the attempt that ended has reported"
        attempts = [each for each in found if not isinstance(each, BadRow)]
        assert ends_of(attempts) == [
            FAILS if there > 0 else FAILS_BEFORE,
            FAILS_BEFORE,
            FAILS if there > 2 else FAILS_BEFORE,
            *([ENDS_WELL] if there > 4 else []),
        ]
