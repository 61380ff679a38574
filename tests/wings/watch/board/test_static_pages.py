"""Pages as files: whole without a server, with nothing in them that a name could break out of."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import pytest

from tests.live_runs import LiveRun
from tests.wings.watch.board.conftest import LIVE, OVER, SECOND, Home
from tracks_dagster.settings import Settings
from tracks_dagster.track.errors import InvalidInput, UnknownRun
from tracks_dagster.track.media import Logged, index_bytes, index_key, part_key
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.wings.watch.board.effects import logged, static_pages
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.effects.static_pages import in_script, write_pages
from tracks_dagster.wiring import build

PNG = b"\x89PNG\r\n\x1a\n rest"


def links(page: Path) -> set[str]:
    """Return every address that a page has."""
    found = re.findall(r'(?:href|src|action)="([^"]*)"', page.read_text())
    return {unescape(each).partition("#")[0] for each in found}


def test_every_link_of_a_page_is_a_file_beside_it(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    written = write_pages(Sources(home.settings), [LIVE, SECOND, OVER], folder)
    assert written.index == folder / "index.html"
    assert written.file_count == len(list(folder.iterdir()))
    for run_id in (LIVE, SECOND, OVER):
        assert (folder / f"run-{run_id}.html").exists()
        assert f"run-{run_id}.html" in links(folder / "index.html")
    for page in (folder / "index.html", folder / f"run-{LIVE}.html", folder / f"media-{LIVE}.html"):
        text = page.read_text()
        assert "data-live" not in text
        others = {each for each in links(page) if each and not each.startswith(("data:", "http"))}
        forms = {"/find", "/compare", "/runs"}  # hidden
        assert {each for each in others if not (folder / each).exists()} <= forms


def test_the_first_page_of_one_run_is_its_own(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    written = write_pages(Sources(home.settings), [LIVE], folder)
    names = {each.name for each in folder.iterdir()}
    assert written.file_count == len(names)
    assert {"index.html", f"report-{LIVE}.html", f"media-{LIVE}.html"} <= names
    assert f"run-{LIVE}.html" not in names
    page = (folder / "index.html").read_text()
    assert "One run only" not in page
    assert f"report-{LIVE}.html" in links(folder / "index.html")
    assert "index.html" in links(folder / f"media-{LIVE}.html")


def test_the_comparison_has_its_numbers_in_it(home: Home, tmp_path: Path) -> None:
    write_pages(Sources(home.settings), [LIVE, SECOND], tmp_path / "pages")
    page = (tmp_path / "pages" / "index.html").read_text()
    block = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', page)
    assert block is not None
    numbers = json.loads(block[1])
    assert {"step", "samples", "hours", "wall"} <= set(numbers)
    assert set(numbers["step"]["metrics"]["loss"]["runs"]) == {LIVE, SECOND}
    assert page.index(block[0]) < page.index("<dialog")


@pytest.mark.parametrize("bound", [None, "FILES_MAX", "FILES_BYTES_MAX"])
def test_what_a_run_logged_lies_beside_its_page(
    bound: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (static_pages, logged):
        monkeypatch.setattr(module, "NAMES_MAX", 1)
    if bound is not None:
        monkeypatch.setattr(static_pages, bound, 0)
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    run = LiveRun(app.store, "one", now=datetime.now(UTC), metrics={"</script><b>": 1.0}).write()
    LiveRun(app.store, "two", now=datetime.now(UTC), ranks=1).write()
    items = []
    for step, name in ((1, "a"), (2, "a"), (2, "b")):
        data = PNG + f"{name}{step}".encode()
        items.append(
            Logged(
                step=step,
                name=name,
                kind="image",
                sha256=sha256_hex(data),
                size_bytes=len(data),
                media_type="image/png",
            )
        )
        app.store.put(part_key("one", items[-1].sha256), data)
    ref = AttemptRef("one", len(run.history.state.attempts))
    app.store.put(index_key(ref, run.history.launch_id), index_bytes(items, []))
    app.projector.scan()
    folder = tmp_path / "pages"
    written = write_pages(Sources(settings), ["one", "two"], folder)
    first, second = (folder / "media-one.html", folder / "media.2-one.html")  # a name each
    if bound is not None:
        assert written.left_out == 3
        assert not [*folder.glob("*.png")]
        assert "3 files of what these runs logged are not here" in first.read_text()
        return
    assert written.left_out == 0
    early, late, other = (f"{item.sha256}.png" for item in items)
    assert (folder / early).read_bytes() == PNG + b"a1"
    assert {early, late, second.name} <= links(first)
    assert {other, first.name} <= links(second)
    index = (folder / "index.html").read_text()
    assert "</script><b>" not in index
    assert "\\u003c/script\\u003e\\u003cb\\u003e" in index


@pytest.mark.parametrize(
    ("runs", "is_full", "error", "words"),
    [
        ([], False, InvalidInput, "name 1 to 50"),
        ([LIVE], True, InvalidInput, "has something in it"),
        (["nobody"], False, UnknownRun, "nobody"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_written(
    runs: list[str],
    is_full: bool,
    error: type[Exception],
    words: str,
    home: Home,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "pages"
    if is_full:
        folder.mkdir()
        (folder / "mine.txt").touch()
    with pytest.raises(error, match=words):
        write_pages(Sources(home.settings), runs, folder)
    assert not (folder / "index.html").exists()


def test_json_in_a_page_ends_no_element() -> None:
    value = {"</script><!--<script>": "&amp; '\u2028\""}
    text = in_script(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value
