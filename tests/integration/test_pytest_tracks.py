"""`pytest --tracks` as a person and CI call it: a process of its own, a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tracks_dagster.ledger.effects.database import open_ledger
from tracks_dagster.projects.effects.certificates import certificates

ROOT = Path(__file__).parents[2]
RUN_S_MAX = 240.0  # of what takes five seconds on an idle machine
PLUGIN = "tracks_dagster.pytest_plugin"  # by its name: a checkout may have no entry points yet
TEST = """
import torch
from tracks_dagster.testing import check_finite

def test_the_model_is_finite(seeded):
    check_finite(torch.nn.Linear(2, 2), torch.ones(3, 2))

def test_something_else():
    assert seeded_twice() is None

def seeded_twice():
    return None
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a project and its tests."""
    folder = tmp_path / "project"
    (folder / "tests").mkdir(parents=True)
    (folder / "tracks.yaml").write_text("version: 1\nname: tiny\nentry: train.py\n")
    (folder / "train.py").write_text("print('trains')\n")
    (folder / "tests" / "test_model.py").write_text(TEST)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the folder, its home beside it."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", PLUGIN, "-q", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TRACKS_HOME": str(home(folder)),
            "COLUMNS": "80",
        },
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


def home(folder: Path) -> Path:
    return folder.parent / "home"


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return all certificates of the home, by when they were recorded."""
    ledger = open_ledger(f"sqlite:///{home(folder)}/ledger.db")
    found = ledger.query("select code_sha256 from certificates", {})
    codes = dict.fromkeys(row["code_sha256"] for row in found)
    return [row for code in codes for row in certificates(ledger, code)]


def test_each_code_has_the_certificate_that_its_own_tests_left(project: Path) -> None:
    green = run(project, "--tracks")
    assert green.returncode == 0, green.stdout + green.stderr
    assert ": green, 2 passed, 1 checks ran." in green.stdout
    (project / "tests" / "test_model.py").write_text(TEST.replace("is None", "is not None"))
    red = run(project, "--tracks", "-n", "2", "-p", "xdist")
    assert red.returncode == 1, red.stdout + red.stderr
    assert ": red, 1 failed." in red.stdout
    by_color = {row["is_green"]: row for row in rows(project)}
    assert by_color[True]["code_sha256"] != by_color[False]["code_sha256"]
    assert (by_color[False]["passed_count"], by_color[False]["failed_count"]) == (1, 1)


def test_a_file_that_cannot_be_imported_leaves_a_red_certificate(project: Path) -> None:
    (project / "tests" / "test_more.py").write_text("import no_such_module\n")
    done = run(project, "--tracks")
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert ": red, 1 failed." in done.stdout
    assert [row["is_green"] for row in rows(project)] == [False]


def test_workers_count_what_is_left_out_and_which_checks_ran(project: Path) -> None:
    done = run(project, "--tracks", "-n", "2", "-p", "xdist", "-k", "finite")
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = rows(project)
    assert (row["is_green"], row["passed_count"], row["left_out_count"]) == (False, 1, 1)
    assert "no check" not in done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2", "-p", "xdist")])
def test_what_a_conftest_leaves_out_is_counted(project: Path, workers: tuple[str, ...]) -> None:
    (project / "conftest.py").write_text(
        "def pytest_collection_modifyitems(items):\n    del items[1:]\n"
    )
    done = run(project, "--tracks", *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = rows(project)
    assert (row["is_green"], row["passed_count"], row["left_out_count"]) == (False, 1, 1)


def test_tests_that_end_early_and_say_that_all_is_well_are_a_part(project: Path) -> None:
    text = TEST + "\ndef test_b():\n    import pytest; pytest.exit('enough', returncode=0)\n"
    (project / "tests" / "test_model.py").write_text(text)
    done = run(project, "--tracks")
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = rows(project)
    assert (row["is_green"], row["passed_count"], row["left_out_count"]) == (False, 2, 1)


def test_a_code_that_its_tests_change_is_not_certified(project: Path) -> None:
    text = TEST + "\ndef test_b():\n    open('train.py', 'a').write('# more')\n"
    (project / "tests" / "test_model.py").write_text(text)
    done = run(project, "--tracks")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "a file is another" in " ".join(done.stdout.split())
    assert rows(project) == []


def test_without_the_option_nothing_is_made(project: Path) -> None:
    done = run(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not home(project).exists()
    assert "certified" not in done.stdout


def test_outside_of_a_project_nothing_runs(project: Path) -> None:
    (project / "tracks.yaml").unlink()
    done = run(project, "--tracks")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "there is no tracks.yaml" in done.stderr
    assert not home(project).exists()
