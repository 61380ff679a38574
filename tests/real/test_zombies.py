"""Real processes at one track: zombies that are stopped and continued, and races for one place.

Each test prints its seed; TRACKS_TEST_SEED reruns it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEED_VARIABLE = "TRACKS_TEST_SEED"
ROUNDS_S_MAX = 900.0
WON_BY_SEVERAL = 60  # rounds; one of eight wins four in a row by chance now and then
WITHOUT_FENCES = """
import sys
from unittest.mock import patch
from tests.real import zombies
with (
    patch("tracks_dagster.track.append.fences", lambda record, authority: False),
    patch("tracks_dagster.track.trainer_track.fences", lambda record, authority: False),
):
    zombies.main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
"""


@pytest.fixture
def seed() -> int:
    """A fresh seed, or the one that the environment names."""
    number = int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(1_000_000))
    print(f"{SEED_VARIABLE}={number}")
    return number


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """A fresh store in memory where there is such a folder: who wins has nothing to do with disks."""
    memory = Path("/dev/shm")
    in_memory = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(dir=memory if in_memory else tmp_path) as name:
        yield str(Path(name) / "store")


def play(url: str, seed: int, rounds: int, *program: str) -> Any:
    """Play rounds in a process of their own, all its writers in its session; return what it says."""
    command = [sys.executable, *program, url, str(seed), str(rounds)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=ROUNDS_S_MAX)
        finally:
            _kill_session(process.pid)
    if process.returncode != 0:
        raise AssertionError(err)
    print(out)
    return json.loads(out)


def _kill_session(pid: int) -> None:
    """Leave no writer behind, stopped or not."""
    try:
        os.killpg(pid, 9)
    except ProcessLookupError:
        return


def zombies(url: str, seed: int, rounds: int) -> None:
    ends = play(url, seed, rounds, "-m", "tests.real.zombies")["ends"]
    assert sum(ends.values()) == rounds
    assert ends["fenced"] >= rounds // 2  # else the writers were not where they should have been


def races(url: str, seed: int, rounds: int) -> None:
    winners = play(url, seed, rounds, "-m", "tests.real.races")["winners"]
    assert sum(winners.values()) == rounds
    if rounds >= WON_BY_SEVERAL:
        assert len(winners) > 1  # else it was not a race


def test_a_stopped_writer_that_goes_on_later_commits_nothing(folder: str, seed: int) -> None:
    zombies(folder, seed, 21)


def test_a_stopped_writer_that_goes_on_later_commits_nothing_on_s3(s3_url: str, seed: int) -> None:
    zombies(s3_url, seed, 3)


@pytest.mark.full
@pytest.mark.timeout(ROUNDS_S_MAX)
def test_two_hundred_stopped_writers_commit_nothing(folder: str, seed: int) -> None:
    zombies(folder, seed, 210)


@pytest.mark.full
def test_many_stopped_writers_commit_nothing_on_s3(s3_url: str, seed: int) -> None:
    zombies(s3_url, seed, 42)


def test_a_zombie_that_nothing_fences_is_found(folder: str, seed: int) -> None:
    with pytest.raises(AssertionError, match=r"AssertionError|cannot come here"):
        play(folder, seed, 21, "-c", WITHOUT_FENCES)


def test_of_eight_writers_at_one_place_one_wins(folder: str, seed: int) -> None:
    races(folder, seed, 60)


def test_of_eight_writers_at_one_place_on_s3_one_wins(s3_url: str, seed: int) -> None:
    races(s3_url, seed, 4)


@pytest.mark.full
@pytest.mark.timeout(ROUNDS_S_MAX)
def test_a_thousand_races_have_one_winner_each(folder: str, seed: int) -> None:
    races(folder, seed, 1000)


@pytest.mark.full
def test_races_on_s3_have_one_winner_each(s3_url: str, seed: int) -> None:
    races(s3_url, seed, 100)
