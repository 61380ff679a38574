"""Where the code stood: a real git checkout in each state that matters."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tracks_dagster.attempts.effects.local.checkout import read_code_version


def git(folder: Path, *arguments: str) -> str:
    """Run git as nobody in particular, without anybody's configuration."""
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of branch `trunk` with one commit."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "trunk")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    return tmp_path


def test_a_clean_branch(checkout: Path) -> None:
    code = read_code_version(checkout)
    assert code.git_commit == git(checkout, "rev-parse", "HEAD")
    assert (code.branch, code.dirty) == ("trunk", False)
    assert code.package_version


def test_a_dirty_tree(checkout: Path) -> None:
    (checkout / "file").write_text("two")
    assert read_code_version(checkout).dirty is True


def test_to_read_it_writes_nothing(checkout: Path) -> None:
    """One that is killed amid a write leaves a lock, which stops every git of the user's."""
    os.utime(checkout / "file", (1, 1))  # git would note that in its index
    index = checkout / ".git" / "index"
    before = index.stat().st_mtime_ns, index.stat().st_ino
    assert read_code_version(checkout).dirty is False
    assert (index.stat().st_mtime_ns, index.stat().st_ino) == before


def test_a_detached_head_has_a_commit_and_no_branch(checkout: Path) -> None:
    git(checkout, "checkout", "--quiet", "--detach")
    code = read_code_version(checkout)
    assert code.git_commit == git(checkout, "rev-parse", "HEAD")
    assert code.branch is None


def test_a_checkout_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch", "trunk")
    code = read_code_version(tmp_path)
    assert (code.git_commit, code.branch, code.dirty) == (None, None, None)


def test_a_folder_that_is_not_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code = read_code_version(tmp_path)
    assert (code.git_commit, code.branch, code.dirty) == (None, None, None)


def test_a_machine_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_code_version(tmp_path).git_commit is None


def test_an_image_says_what_it_was_built_from(tmp_path: Path) -> None:
    (tmp_path / "GIT_COMMIT").write_text("ab" * 20 + "\n")
    code = read_code_version(tmp_path)
    assert (code.git_commit, code.branch, code.dirty) == ("ab" * 20, None, None)


def test_an_image_that_was_built_without_a_commit_says_none(tmp_path: Path) -> None:
    (tmp_path / "GIT_COMMIT").write_text("\n")
    assert read_code_version(tmp_path).git_commit is None
