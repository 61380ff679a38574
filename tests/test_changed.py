"""`./run test --changed` runs the tests that a change can break, and no others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("changed.py")
SELECTION_S_MAX = 120
EVERY = {"leaf", "append", "fixture", "fleet", "size", "page", "process", "sources", "home", "gang"}
FILES = {
    "pyproject.toml": "",
    "docs/leaf.md": "",
    "docs/lost.md": "",
    "tracks_dagster/__init__.py": "",
    "tracks_dagster/wing.py": "",
    "tracks_dagster/wings/__init__.py": "",
    "tracks_dagster/wings/lab/__init__.py": "",
    "tracks_dagster/track/__init__.py": "",
    "tracks_dagster/track/append.py": "",
    "tracks_dagster/track/gone.py": "",
    "tracks_dagster/health/__init__.py": "",
    "tracks_dagster/health/leaf.py": "from typing import TYPE_CHECKING\n"
    "from tracks_dagster.track import append\n"
    "if TYPE_CHECKING:\n    from tracks_dagster.board import fleet\n",
    "tracks_dagster/board/__init__.py": "",
    "tracks_dagster/board/fleet.py": "PAGE = 'fleet.html'\n",
    "tracks_dagster/board/other.py": "",
    "tracks_dagster/board/pages/fleet.html": "",
    "tracks_dagster/board/pages/parts.html": "",
    "tracks_dagster/training/__init__.py": "",
    "tracks_dagster/training/pod.py": "",
    "tracks_dagster/cli/__init__.py": "from tracks_dagster import wing\n",
    "tracks_dagster/cli/size.py": "def size_command(): ...\n",
    "tests/conftest.py": "import pytest\nfrom tests.stories import Story\n"
    "from tracks_dagster.track import append\n"
    "@pytest.fixture\ndef story(): return Story\n@pytest.fixture\ndef clock(): return append\n",
    "tests/stories.py": "class Story: ...\n",
    "tests/test_sources.py": "ROOT = 'tracks_dagster'\n",
    "tests/board/test_fleet.py": "from tracks_dagster.board import fleet\n",
    "tests/cli/conftest.py": "def call(): import tracks_dagster.cli\n",
    "tests/cli/test_home.py": "def test_a(call): call('status')\n",
    "tests/cli/test_size.py": "def test_a(call): call('size', 'r1')\n",
    "tests/health/test_leaf.py": "from tracks_dagster.health.leaf import append\n",
    "tests/health/test_page.py": "PAGE = 'leaf.md'\n",
    "tests/real/test_gang.py": "",
    "tests/track/test_append.py": "def test_a(clock): ...\n",
    "tests/track/test_fixture.py": "def test_a(story): ...\n",
    "tests/training/test_process.py": "RANK = ('-m', 'tracks_dagster.training.pod')\n",
}

Selected = Callable[..., set[str]]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which all is committed to main."""
    root = tmp_path_factory.mktemp("checkout")
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    git(root, "init", "-q", "-b", "main")
    commit(root)
    return root


@pytest.fixture
def checkout(planted: Path) -> Path:
    """The same, on a branch without a change."""
    git(planted, "checkout", "-q", "-f", "-B", "branch", "main")
    git(planted, "clean", "-q", "-d", "-f")
    return planted


def git(root: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *arguments], cwd=root, check=True, timeout=SELECTION_S_MAX)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "a change")


def select(root: Path, ref: str = "main") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), ref],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=SELECTION_S_MAX,
        check=False,
    )


def names(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.returncode == 0, done.stderr
    return {Path(path).stem.removeprefix("test_") for path in done.stdout.split()}


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tracks_dagster/health/leaf.py", {"leaf", "sources"}),
        (
            "tracks_dagster/track/append.py",
            {"append", "leaf", "sources"},
        ),  # by an import, a fixture
        ("tracks_dagster/track/__init__.py", {"append", "leaf", "sources"}),
        ("tracks_dagster/board/fleet.py", {"fleet", "sources"}),  # not leaf: for its types alone
        ("tracks_dagster/board/pages/fleet.html", {"fleet", "sources"}),
        (
            "tracks_dagster/board/pages/parts.html",
            {"fleet", "sources"},
        ),  # nobody names it: its room
        ("tracks_dagster/training/pod.py", {"process", "gang", "sources"}),  # by name, and by room
        ("tracks_dagster/cli/size.py", {"size", "sources"}),
        ("tracks_dagster/cli/__init__.py", {"size", "home", "sources"}),
        ("tracks_dagster/wings/lab/__init__.py", {"size", "home", "sources"}),
        ("tests/stories.py", {"fixture"}),
        ("tests/cli/conftest.py", {"size", "home"}),
        ("tests/track/test_append.py", {"append"}),
        ("tests/conftest.py", EVERY),
        ("pyproject.toml", EVERY),
        ("run", EVERY),
        ("docs/leaf.md", {"page"}),
        ("docs/lost.md", set()),
    ],
)
def test_a_changed_file_selects_the_tests_that_need_it(
    checkout: Path, path: str, tests: set[str]
) -> None:
    with (checkout / path).open("a") as file:
        file.write("\n")
    done = select(checkout)
    assert names(done) == tests
    assert path in done.stderr  # why


def test_a_deleted_module_selects_the_tests_that_still_import_it(checkout: Path) -> None:
    (checkout / "tests/track/test_old.py").write_text("from tracks_dagster.track import gone\n")
    commit(checkout)
    git(checkout, "branch", "-f", "before")
    (checkout / "tracks_dagster/track/gone.py").unlink()
    assert names(select(checkout, "before")) == {"old", "sources"}


def test_committed_changes_count_and_those_that_main_got_since_do_not(checkout: Path) -> None:
    (checkout / "tests/stories.py").write_text("\n")
    commit(checkout)
    git(checkout, "branch", "-f", "ahead", "main")
    git(checkout, "checkout", "-q", "ahead")
    (checkout / "tracks_dagster/health/leaf.py").write_text("\n")
    commit(checkout)
    git(checkout, "checkout", "-q", "branch")
    assert names(select(checkout, "ahead")) == {"fixture"}


def test_where_nothing_changed_nothing_is_selected(checkout: Path) -> None:
    assert names(select(checkout)) == set()


def test_an_unknown_commit_is_refused_with_what_is_valid(checkout: Path) -> None:
    done = select(checkout, "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nowhere" in done.stderr
    assert "--changed=REF" in done.stderr
