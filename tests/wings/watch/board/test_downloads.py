"""Files of a run that are taken away: verified, saved and never shown as a page of ours."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.visitors import Visitor
from tracks_dagster.settings import Settings
from tracks_dagster.track.artifacts import list_key, note_of, part_key
from tracks_dagster.track.bodies import Artifact, CodeVersion
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.track.states.evals import artifact_key, result_key
from tracks_dagster.track.track import code_diff_key, log_object
from tracks_dagster.training.saves.artifacts import store_files
from tracks_dagster.wings.watch.board.effects.rank_logs import RankLogs
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import App, build

RUN = "r-1"
HOSTILE = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
DIFF = b"--- a/train.py\n+++ b/train.py\n+<script>alert(2)</script>\n"


@pytest.fixture
def app(tmp_path: Path) -> App:
    """A home with a run whose eval and script left files."""
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    digest = sha256_hex(DIFF)
    code = CodeVersion(
        git_commit="d" * 40, branch="main", dirty=True, package_version="1", diff_sha256=digest
    )
    app.store.create(code_diff_key(RUN, digest), DIFF)
    history = History(RUN, begin=datetime.now(UTC)).declare(code=code)
    history.open().supervise().place().restore().commit(10).end("completed", last_step=10)
    opened = history.open_eval(history.state.resumable[-1]).state.evals[-1].opened
    found = Artifact(name="plots/roc.svg", size_bytes=len(HOSTILE), sha256=sha256_hex(HOSTILE))
    app.store.create(artifact_key(result_key(RUN, opened.eval_id, 1), found.name), HOSTILE)
    history.end_eval(opened, artifacts=(found,))
    folder = tmp_path / "best"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "model.bin").write_bytes(b"weights")
    files = store_files(app.store, RUN, folder)
    history.add(Kind.NOTE, note_of("best", files, step=10, by="script"), attempt_id=1)
    history.write_to(app.store)
    app.projector.scan()
    work = settings.work / attempt_key(RUN, 1)
    work.mkdir(parents=True)
    (work / "rank-0.log").write_text("2026-01-01 00:00:02 zero\npassword=hunter2hunter2\n")
    (work / "rank-1.log").write_text(
        "2026-01-01 00:00:01 one\nTraceback (most recent call last):\n"
    )
    return app


def visitor(app: App) -> Visitor:
    """Return who visits the board of that home."""
    return Visitor(guarded(Sources(app.settings)))


def test_a_file_of_an_eval_is_saved_and_not_run(app: App) -> None:
    board = visitor(app)
    address = f"/runs/{RUN}/evals/heldout-loss%4010/1/plots/roc.svg"
    assert address in board.get(f"/runs/{RUN}").text
    reply = board.get(address)
    assert reply.content == HOSTILE
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.headers["Content-Disposition"].startswith('attachment; filename="roc.svg"')
    assert "sandbox" in reply.headers["Content-Security-Policy"]
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_a_file_that_was_changed_in_the_store_is_not_sent(app: App) -> None:
    key = artifact_key(result_key(RUN, "heldout-loss@10", 1), "plots/roc.svg")
    app.store.put(key, b"other")
    reply = visitor(app).get(f"/runs/{RUN}/evals/heldout-loss%4010/1/plots/roc.svg")
    assert reply.status_code == 404
    assert "expected sha256" in reply.text


@pytest.mark.parametrize(
    "path",
    [
        "evals/heldout-loss%4010/1/../../../run.json",
        "evals/heldout-loss%4010/2/plots/roc.svg",
        "evals/heldout-loss%4010/1/plots",
        "evals/other%4010/1/plots/roc.svg",
        "artifacts/none",
        "artifacts/best/none",
        "artifacts/best/%2e%2e/x",
    ],
)
def test_only_files_that_the_record_names_are_sent(path: str, app: App) -> None:
    assert visitor(app).get(f"/runs/{RUN}/{path}").status_code == 404


def test_an_artifact_lists_its_files_and_sends_each(app: App) -> None:
    board = visitor(app)
    page = board.get(f"/runs/{RUN}/artifacts/best").text
    assert f'href="/runs/{RUN}/artifacts/best/below/model.bin"' in page
    assert board.get(f"/runs/{RUN}/artifacts/best/below/model.bin").content == b"weights"
    for key in app.store.list(part_key(RUN, "")):
        app.store.put(key, b"other")
    assert board.get(f"/runs/{RUN}/artifacts/best/below/model.bin").status_code == 404
    for key in [each for each in app.store.list(list_key(RUN, "")[:-5]) if each.endswith(".json")]:
        app.store.put(key, b"[]")
    assert board.get(f"/runs/{RUN}/artifacts/best").status_code == 404


def test_local_changes_of_the_code_are_shown_escaped(app: App) -> None:
    page = visitor(app).get(f"/runs/{RUN}/code.diff").text
    assert "&lt;script&gt;alert(2)" in page
    assert "<script>alert" not in page


def test_logs_of_all_ranks_are_one_page_and_one_file_without_passwords(app: App) -> None:
    board = visitor(app)
    page = board.get(f"/runs/{RUN}/log").text
    lines = page[page.index('<pre class="log') :]
    assert lines.index(" one") < lines.index("Traceback") < lines.index(" zero")
    assert 'id="first"' in page
    assert "#first" in page
    assert "hunter2" not in page
    assert " zero" not in board.get(f"/runs/{RUN}/log?rank=1").text
    assert "No line is here" in board.get(f"/runs/{RUN}/log?text=nothing").text
    whole = board.get(f"/runs/{RUN}/log.txt")
    assert whole.text.splitlines()[0] == "rank 0: 2026-01-01 00:00:02 zero"
    assert "rank 1: Traceback" in whole.text
    assert "hunter2" not in whole.text
    assert whole.headers["Content-Disposition"].startswith('attachment; filename="r-1-a01.log"')


class Counting(FakeObjectStore):
    """A store that knows what was read of it."""

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """Return an object, and remember that."""
        self.got.append(key)
        return super().get(key, bytes_max)

    got: list[str]


def test_of_stored_logs_those_that_are_asked_for_are_read_one_after_the_other() -> None:
    store, state = Counting(), History("r-1").declare().open().end("code_error").state
    store.got = []
    [attempt] = state.attempts
    ref = state.ref(attempt)
    for rank in range(3):
        text = f"rank {rank} ends\n".encode()
        store.put(log_object(ref.folder, rank, sha256_hex(text)), text)
    logs = RankLogs(store, state, attempt, work=None, clean=str)
    assert logs.ends(1) == ({0: "", 1: "rank 1 ends\n", 2: ""}, False)
    assert len(store.got) == 1
    assert set(logs.ends(None)[0].values()) == {f"rank {rank} ends\n" for rank in range(3)}
    assert list(logs.whole(2)) == ["rank 2: rank 2 ends\n"]
    assert len(store.got) == 5
    assert next(logs.whole(None)) == "rank 0: rank 0 ends\n"
    assert len(store.got) == 6


def test_the_log_of_an_attempt_that_has_ended_is_not_read_again_and_again(app: App) -> None:
    History("ended").declare().open().end("code_error").write_to(app.store)
    History("open").declare().open().write_to(app.store)
    assert "<main data-live" in visitor(app).get("/runs/open/log").text
    assert "<main data-version" in visitor(app).get("/runs/ended/log").text


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("attempt=x", 400),
        ("attempt=9", 404),
        ("level=loud", 400),
        ("first=-1", 400),
        ("rank=a", 400),
    ],
)
def test_what_a_log_cannot_be_asked_for_is_explained(query: str, status: int, app: App) -> None:
    assert visitor(app).get(f"/runs/{RUN}/log?{query}").status_code == status


def test_the_devices_and_the_lineage_of_a_run_are_pages(app: App) -> None:
    board = visitor(app)
    assert "Devices of r-1" in board.get(f"/runs/{RUN}/devices").text
    page = board.get(f"/lineage?thing={RUN}").text
    assert "run:r-1" in page
    assert "attempt:r-1/a01" in page
    assert board.get("/lineage?thing=nonsense%20thing").status_code == 400
    assert board.get("/lineage").status_code == 400
    assert board.get("/lineage?thing=no-such-run").status_code in (400, 404)
