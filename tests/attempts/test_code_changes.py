"""The diff of a dirty tree, from a real checkout: it can be applied again, and tells no secret."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.attempts.test_code_version import git
from tracks_dagster.attempts.effects.local.checkout import (
    DIFF_BYTES_MAX,
    UNTRACKED_BYTES_MAX,
    read_code_diff,
)
from tracks_dagster.track.text.redact import redact

SECRET = "Zq7-notASecretOfAnybody-9f3"
CLEAN = partial(redact, secrets=(SECRET,))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one commit, in a folder of its own."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "trunk")
    (folder / "model.py").write_text("width = 1\n")
    (folder / "old.py").write_text("gone = True\n")
    (folder / ".gitignore").write_text("*.log\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "one")
    return folder


def test_the_changes_are_applied_to_the_commit_again(checkout: Path, tmp_path: Path) -> None:
    (checkout / "model.py").write_text("width = 2\n")
    (checkout / "old.py").unlink()
    (checkout / "new file.py").write_text("depth = 3\n")
    (checkout / "train.log").write_text("ignored\n")
    before = git(checkout, "status", "--porcelain")
    diff = read_code_diff(checkout, CLEAN)
    assert diff is not None
    assert git(checkout, "status", "--porcelain") == before
    again = tmp_path / "again"
    git(tmp_path, "clone", "--quiet", str(checkout), str(again))
    subprocess.run(["git", "-C", str(again), "apply"], input=diff, check=True)
    names = ("model.py", "old.py", "new file.py", "train.log")
    there = {name: (again / name).read_text() for name in names if (again / name).exists()}
    assert there == {"model.py": "width = 2\n", "new file.py": "depth = 3\n"}


def test_what_cannot_be_kept_is_named_and_the_rest_still_applies(checkout: Path) -> None:
    (checkout / "model.py").write_text("width = 2\n")
    (checkout / "weights.bin").write_bytes(b"\0\1\2" * 100)
    (checkout / "keys.py").write_text(f"key = '{SECRET}'\n")
    (checkout / "latin.py").write_bytes(b"# caf\xe9\n")
    (checkout / "data.csv").write_text("1\n" * UNTRACKED_BYTES_MAX)
    (checkout / "old.py").write_text("gone = True\n" * (DIFF_BYTES_MAX // 10))
    diff = read_code_diff(checkout, CLEAN)
    assert diff is not None
    assert len(diff) < DIFF_BYTES_MAX
    assert SECRET.encode() not in diff
    head = diff.decode().partition("diff --git a/model.py")[0]
    for name, why in (
        ("weights.bin", "binary"),
        ("keys.py", "looks like a secret"),
        ("latin.py", "not UTF-8"),
        ("data.csv", "is new and has more than"),
        ("old.py", "more than 1048576 bytes"),
    ):
        assert [line for line in head.splitlines() if name in line and why in line], name
    git(checkout, "checkout", "--quiet", "model.py")
    subprocess.run(["git", "-C", str(checkout), "apply"], input=diff, check=True)
    assert (checkout / "model.py").read_text() == "width = 2\n"


def test_a_change_in_the_second_in_which_git_looked_is_kept(checkout: Path) -> None:
    git(checkout, "config", "core.trustctime", "false")  # no test can set a ctime
    model, index = checkout / "model.py", checkout / ".git" / "index"
    at_looking = (1_000_000_000, 1_000_000_000)
    os.utime(model, at_looking)
    git(checkout, "add", "model.py")
    model.write_text("width = 2\n")  # as many bytes as there were
    for path in (model, index):
        os.utime(path, at_looking)
    assert b"+width = 2" in (read_code_diff(checkout, CLEAN) or b"")


def test_a_clean_checkout_or_none_has_no_diff(checkout: Path, tmp_path: Path) -> None:
    assert read_code_diff(checkout, CLEAN) is None
    assert read_code_diff(tmp_path, CLEAN) is None
