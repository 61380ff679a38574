"""What runs logged beside numbers, on a page: at a step, side by side, and never run by a browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.histories import History
from tests.visitors import Visitor
from tests.wings.watch.board.test_app import text_of
from tracks_dagster.settings import Settings
from tracks_dagster.track.media import Logged, index_bytes, index_key, part_key
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import sha256_hex
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import App, build

HOSTILE = "<script>alert(1)</script>"
PNG = b"\x89PNG\r\n\x1a\n rest"
THINGS = (
    (10, "sample", "text", "text/plain", HOSTILE.encode()),
    (20, "sample", "text", "text/plain", b"later"),
    (20, "picture", "image", "image/png", PNG),
    (20, "hist", "histogram", "application/json", b'{"counts":[1,3],"edges":[0,1,2]}'),
    (20, "cm", "confusion_matrix", "application/json", b'{"labels":["a","b"],"counts":[[4,0],[1,1]]}'),
    (20, "rows", "table", "application/json", b'{"columns":["<b>"],"rows":[["<i>"]]}'),
    (30, "sample", "text", "text/plain", b"after the commit"),
)  # fmt: skip


@pytest.fixture
def visitor(tmp_path: Path) -> Visitor:
    """One who visits a home with two runs; one of them logged all that."""
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    write_logged(build(settings))
    return Visitor(guarded(Sources(settings)))


def write_logged(app: App) -> None:
    """Write the runs `one`, which logged `THINGS`, and `two`, which logged nothing."""
    for run_id in ("one", "two"):
        run = (
            History(run_id, begin=datetime.now(UTC)).declare().open().supervise().place().restore()
        )
        if run_id == "one":
            items = []
            for step, name, kind, media_type, data in THINGS:
                sha256 = sha256_hex(data)
                app.store.put(part_key(run_id, sha256), data)
                items.append(
                    Logged(
                        step=step,
                        name=name,
                        kind=kind,
                        sha256=sha256,
                        size_bytes=len(data),
                        media_type=media_type,
                    )
                )
            ref = AttemptRef(run_id, 1)
            app.store.put(index_key(ref, run.launch_id), index_bytes(items, ["too much"]))
        run.commit(20).end("preempted", last_step=35).write_to(app.store)
    app.projector.scan()


def test_the_newest_up_to_a_step_is_shown_for_each_run(visitor: Visitor) -> None:
    page = visitor.get("/media?run=one&run=two").text
    shown = text_of(page)
    assert "later" in shown
    assert "after the commit" not in shown  # of a step that was lost
    assert "one: 1 more were logged at steps that were lost." in shown
    assert "one: too much" in shown
    assert "nothing so far" in shown  # the other run
    before = visitor.get("/media?run=one&run=two&step=15").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in before
    assert "<script>alert" not in before
    assert re.search(r'type="range" min="10" max="20" value="15"', before)


def test_tables_histograms_and_confusion_matrices_are_drawn(visitor: Visitor) -> None:
    page = visitor.get("/media?run=one").text
    assert page.count("<rect ") == 2
    assert "&lt;b&gt;" in page
    assert "&lt;i&gt;" in page
    assert 'class="c4">4<' in page  # all of that class


def test_a_file_is_a_picture_or_a_text_and_nothing_that_runs(visitor: Visitor) -> None:
    picture = visitor.get(f"/media/one/{sha256_hex(PNG)}")
    assert (picture.headers["Content-Type"], picture.content) == ("image/png", PNG)
    text = visitor.get(f"/media/one/{sha256_hex(HOSTILE.encode())}")
    assert text.headers["Content-Type"].startswith("text/plain")
    for reply in (picture, text):
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert visitor.get(f"/media/two/{sha256_hex(PNG)}").status_code == 404
    assert visitor.get("/media/one/..%2f..%2fformat.json").status_code == 404


def test_runs_that_logged_nothing_say_how_one_does(visitor: Visitor) -> None:
    assert "a.log(step" in text_of(visitor.get("/media?run=two").text)
