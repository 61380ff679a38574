"""Files of a home that name a process: one that is damaged keeps nothing else from going on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tracks_dagster.attempts.effects.local.launcher import lives, living_gangs
from tracks_dagster.home.dagster_home import read_address
from tracks_dagster.processes.process import (
    boot_id,
    find_process,
    known_process,
    read_process,
    this_process,
    write_process,
)
from tracks_dagster.processes.reaper import add_group, groups, unused

DAMAGED = {
    "empty": "",
    "zeros": "\0" * 64,
    "a list": "[]",
    "another object": "{}",
    "a text as pid": json.dumps({"pid": "1", "started": 1.0, "boot_id": boot_id()}),
    "a truth as pid": json.dumps({"pid": True, "started": 1.0, "boot_id": boot_id()}),
    "every process of a group": json.dumps({"pid": 0, "started": 1.0, "boot_id": boot_id()}),
    "a number as boot": '{"pid": 7, "started": 1.0, "boot_id": 7}',
    "deep": "[" * 100_000,
}


@pytest.fixture(params=DAMAGED.values(), ids=list(DAMAGED))
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file that should name a process, and does not."""
    path = tmp_path / "daemon.pid"
    path.write_text(request.param)
    return path


def test_what_names_no_process_is_refused_with_the_files_name(damaged: Path) -> None:
    with pytest.raises(ValueError, match=r"daemon\.pid"):
        read_process(damaged)
    assert known_process(damaged) is None


def test_a_home_with_a_damaged_file_starts_its_programs_again(damaged: Path) -> None:
    folder = damaged.parent
    assert groups(folder, "daemon") == unused(folder, "daemon") == []
    assert read_address(folder, damaged.name) == ""
    add_group(folder, "daemon", this_process())
    assert read_process(damaged) == this_process()


@pytest.mark.parametrize(
    "earlier", [7, [7], [{"x": 1}], [{"pid": 1, "started": 1, "boot_id": "b", "x": 1}]]
)
def test_an_earlier_group_that_is_damaged_counts_as_missing(
    tmp_path: Path, earlier: object
) -> None:
    write_process(tmp_path / "daemon.pid", this_process(), earlier=earlier)
    assert groups(tmp_path, "daemon") in ([], [this_process()])  # [] where a test leads no group


def test_a_damaged_gang_hides_no_other_gang(damaged: Path) -> None:
    work = damaged.parent / "work"
    for key in ("bad/a01", "good/a01"):
        (work / key).mkdir(parents=True)
    damaged.rename(work / "bad" / "a01" / "gang.pid")
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeps, start_new_session=True) as leader:  # of a group of its own
        try:
            found = find_process(leader.pid)
            assert found is not None
            write_process(work / "good" / "a01" / "gang.pid", found)
            assert [key for key, _ in living_gangs(work)] == ["good/a01"]
            assert not lives(work, "bad/a01")
        finally:
            leader.kill()
