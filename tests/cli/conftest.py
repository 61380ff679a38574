"""A home on disk, empty or with a whole story in it, and the command as a person calls it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.fakes import FakeObjectStore
from tests.stories import Story
from tracks_dagster.cli import main
from tracks_dagster.settings import Settings
from tracks_dagster.stores import open_store
from tracks_dagster.wiring import build

Call = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TRACKS_HOME, a folder that is not there yet."""
    path = tmp_path / "home"
    monkeypatch.setenv("TRACKS_HOME", str(path))
    monkeypatch.setenv("COLUMNS", "10000")  # sentences stand in one line, to be found
    for variable in (
        *("TRACKS_STORE", "TRACKS_POSTGRES_URL", "TRACKS_POLICY"),
        *("TRACKS_RULES", "TRACKS_KUBERNETES", "TRACKS_PRICES", "TRACKS_NOTIFY", "TRACKS_TRACKERS"),
        "TRACKS_PREFIX",
    ):
        monkeypatch.delenv(variable, raising=False)
    return path


@pytest.fixture(scope="session")
def story_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the whole story, taken in by its ledger; made once, and copied."""
    home = tmp_path_factory.mktemp("story") / "home"
    app = build(Settings.from_environment({"TRACKS_HOME": str(home)}))
    Story(app.store).whole()
    app.projector.scan()
    return home


@pytest.fixture
def story(home: Path, story_home: Path) -> Story:
    """The whole story in that home, taken in by its ledger."""
    shutil.copytree(story_home, home)
    story = Story(FakeObjectStore()).whole()
    story.store = open_store(str(home / "store"))
    return story


@pytest.fixture
def call(home: Path) -> Call:
    """Calls `tracks` with these arguments; its exit code, stdout and stderr come back."""

    def called(*arguments: str, typed: str | None = None) -> Result:
        result = CliRunner().invoke(main, list(arguments), input=typed)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return called


def files_of(home: Path) -> dict[str, bytes]:
    """Return every file below `home` with its bytes; the ledger's journal files apart."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and not path.name.startswith("ledger.db-")
    }
