"""What may be done from a run's page: which forms there are, who may send them, what is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from tests.histories import History
from tests.visitors import Visitor
from tracks_dagster.home.admission import Visitors, check_writing
from tracks_dagster.settings import Settings, person
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.states.view_state import SavedView
from tracks_dagster.wings.watch.board.acts import acts_of
from tracks_dagster.wings.watch.board.effects.serving import Access, guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import App, build

OPEN, WAITS = "open-run", "waiting-run"
HERE = "http://127.0.0.1:3001"
FORM = "application/x-www-form-urlencoded"
USER = "X-Forwarded-User"
WHY = "because it is late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A home with a run that trains and one that waits for a person."""

    settings: Settings
    app: App

    def visitor(self, access: Access) -> Visitor:
        """Return one who opens the board of this home."""
        return Visitor(guarded(Sources(self.settings), access))

    def run(self, run_id: str) -> RunState:
        """Return a run as it is recorded now."""
        return build(self.settings).tracks.run(run_id)

    def views(self) -> tuple[SavedView, ...]:
        """Return the saved views as they are recorded now."""
        state = build(self.settings).tracks.find_views()
        return () if state is None else state.offered


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home on disk whose ledger has taken in its runs."""
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    now = datetime.now(UTC)
    history = History(OPEN, begin=now).declare().open().supervise().place().restore()
    history.commit(10).write_to(app.store)
    waiting = History(WAITS, begin=now).declare().open().supervise().place().restore().commit(20)
    waiting.end("hang", last_step=20).refuse().write_to(app.store)
    app.projector.scan()
    return Home(settings=settings, app=app)


WRITES = Access(may_write=True)
NAMED = Access(may_write=True, visitors=Visitors(user_header=USER))


def send(
    visitor: Visitor, run_id: str, act: str, headers: dict[str, str] | None = None, **given: str
) -> httpx.Response:
    """Send a form as a browser does that has the run's page open."""
    own = {"Content-Type": FORM, "Origin": HERE, "Sec-Fetch-Site": "same-origin"}
    body = urlencode({"seq": "1", **given})
    return visitor.ask("POST", f"/runs/{run_id}/acts/{act}", {**own, **(headers or {})}, body)


def names(state: RunState) -> list[str]:
    """Return what a page offers."""
    return [each.name for each in acts_of(state)]


def test_only_what_the_state_allows_is_offered(home: Home) -> None:
    labels, rest = ["note", "tag", "rename"], ["mute", "promote", "quarantine"]
    assert names(home.run(OPEN)) == ["drain", "stop", *labels, *rest]
    assert names(home.run(WAITS)) == ["retry", "stop", *labels, "archive", *rest]
    over = History("over").declare().open().supervise().place().restore().commit(40)
    over.end("completed", last_step=40).finish()
    assert {"retry", "drain", "stop"}.isdisjoint(names(over.state))


def test_without_write_a_page_has_the_commands_and_no_form(home: Home) -> None:
    visitor = home.visitor(Access())
    page = visitor.get(f"/runs/{OPEN}").text
    assert 'method="post"' not in page
    assert f"tracks drain {OPEN} --why" in page
    reply = send(visitor, OPEN, "drain", why=WHY)
    assert reply.status_code == 405
    assert "--write" in reply.text
    assert home.run(OPEN).stops == ()


def test_a_form_is_beside_the_equal_command_and_records_the_owner(home: Home) -> None:
    visitor = home.visitor(WRITES)
    page = visitor.get(f"/runs/{OPEN}").text
    assert f'action="/runs/{OPEN}/acts/drain"' in page
    assert f"tracks drain {OPEN} --why" in page
    reply = send(visitor, OPEN, "drain", why=WHY)
    assert reply.status_code == 303
    answer = visitor.get(reply.headers["Location"]).text
    assert "the gang saves and ends" in answer
    (stop,) = home.run(OPEN).stops
    assert (stop.body.mode, stop.body.why, stop.body.by) == ("drain", WHY, person())


def test_a_run_gets_tags_a_name_and_a_place_in_the_archive_from_its_page(home: Home) -> None:
    visitor = home.visitor(WRITES)
    for act, given, answer in (
        ("tag", {"tags": "paper draft"}, "Its tags: draft, paper"),
        ("tag", {"tags": "-draft  best"}, "Its tags: best, paper"),
        ("rename", {"name": "the good one"}, "Called the good one"),
        ("archive", {"why": WHY}, "left out of tables"),
    ):
        reply = send(visitor, WAITS, act, **given)
        assert (reply.status_code, answer in visitor.get(reply.headers["Location"]).text) == (
            303,
            True,
        )
    labels = home.run(WAITS).labels
    assert (labels.tags, labels.name, labels.archived_at is None) == (
        ("best", "paper"),
        "the good one",
        False,
    )
    assert send(visitor, WAITS, "rename", name=" ").status_code == 303
    assert home.run(WAITS).labels.name == ""
    assert "archive" not in names(home.run(WAITS))
    assert send(visitor, WAITS, "unarchive", why=WHY).status_code == 303
    assert home.run(WAITS).labels.archived_at is None
    assert send(visitor, WAITS, "tag", tags="a b/c").status_code == 400
    assert send(visitor, OPEN, "archive", why=WHY).status_code == 400
    assert home.run(WAITS).labels.tags == ("best", "paper")


def test_the_record_names_whom_the_proxy_named(home: Home) -> None:
    visitor = home.visitor(NAMED)
    assert send(visitor, WAITS, "retry", {USER: "ann@example.com"}, why=WHY).status_code == 303
    attempt = home.run(WAITS).attempts[-1]
    assert attempt.attempt_id == 2
    assert attempt.opened.decided_by == "ann@example.com"
    assert WHY in attempt.opened.decision
    assert "recorded as done by ann@example.com" in visitor.get("/", {USER: "ann@example.com"}).text


@pytest.mark.parametrize(
    ("sent", "name"), [("Jörg Müller".encode(), "Jörg Müller"), (b"J\xf6rg", "Jörg")]
)
def test_whom_a_proxy_names_has_any_name(home: Home, sent: bytes, name: str) -> None:
    page = home.visitor(NAMED).get("/", {USER: sent.decode("latin-1")}).text
    assert f"recorded as done by {name}" in page


@pytest.mark.parametrize("header", [{}, {USER: ""}])
def test_who_is_not_named_may_do_nothing(header: dict[str, str], home: Home) -> None:
    assert send(home.visitor(NAMED), WAITS, "retry", header, why=WHY).status_code == 403
    assert len(home.run(WAITS).attempts) == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Origin": ""}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
    ],
)
def test_no_other_page_can_send_a_form(headers: dict[str, str], status: int, home: Home) -> None:
    assert send(home.visitor(WRITES), OPEN, "stop", headers, why=WHY).status_code == status
    assert home.run(OPEN).stops == ()


def test_a_form_that_does_not_say_where_it_is_from_is_refused(home: Home) -> None:
    body = urlencode({"why": WHY})
    path = f"/runs/{OPEN}/acts/stop"
    reply = home.visitor(WRITES).ask("POST", path, {"Content-Type": FORM}, body)
    assert reply.status_code == 415
    assert home.run(OPEN).stops == ()


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_nothing_is_done_but_by_post(method: str, home: Home) -> None:
    visitor = home.visitor(WRITES)
    own = {"Origin": HERE, "Content-Type": "application/json"}
    reply = visitor.ask(method, f"/runs/{OPEN}/acts/stop?why=because", own)
    assert reply.status_code == 405
    assert home.run(OPEN).stops == ()


def test_the_same_form_sent_twice_is_done_once(home: Home) -> None:
    visitor = home.visitor(WRITES)
    first, second = (send(visitor, OPEN, "note", text="seen", attempt="a01") for _ in range(2))
    assert first.headers["Location"] == second.headers["Location"]
    (note,) = home.run(OPEN).notes
    assert (note.body.text, note.attempt_id) == ("seen", 1)
    send(visitor, OPEN, "note", text="seen", attempt="a01", seq="9")  # of a page that is newer
    assert len(home.run(OPEN).notes) == 2


def test_what_came_of_an_act_is_said_of_its_run_alone(home: Home) -> None:
    visitor = home.visitor(WRITES)
    place = send(visitor, OPEN, "note", text="seen", attempt="a01").headers["Location"]
    assert "Noted as record" in visitor.get(place).text
    unknown = "did/0123456789abcdef"
    for other in (place.replace(OPEN, "another"), f"/runs/{OPEN}/{unknown}", f"/views/{unknown}"):
        assert "is not known here" in visitor.get(other).text


@pytest.mark.parametrize(
    ("act", "given", "words"),
    [
        ("stop", {"why": " "}, "why is empty"),
        ("stop", {}, "why is empty"),
        ("promote", {"why": WHY, "alias": "best", "step": "11"}, "no checkpoint of step 11"),
        ("promote", {"why": WHY, "alias": "best", "step": "x" * 400}, "is not a number of a step"),
        ("mute", {"why": WHY, "rule": "nonsense", "for": "2h"}, "nonsense"),
        ("mute", {"why": WHY, "rule": "slow_rank", "for": "soon"}, "for: "),
        ("quarantine", {"why": WHY, "source": "run:other"}, "choose of"),
        ("note", {"text": "x", "attempt": "a99"}, "has no attempt 99"),
        ("delete", {"why": WHY}, "is nothing to do"),
        ("note", {"text": "y" * 70_000}, "has more than"),
    ],
)
def test_what_cannot_be_done_is_explained_and_nothing_is_written(
    act: str, given: dict[str, str], words: str, home: Home
) -> None:
    before = home.run(OPEN).head.seq
    reply = send(home.visitor(WRITES), OPEN, act, **given)
    assert reply.status_code in (400, 404)
    assert words in reply.text.replace("&#39;", "'")
    assert home.run(OPEN).head.seq == before


def test_a_mute_and_a_quarantine_are_of_what_the_page_shows(home: Home) -> None:
    visitor = home.visitor(WRITES)
    muted = send(visitor, OPEN, "mute", why=WHY, rule="slow_rank", **{"for": "2h"})
    assert muted.status_code == 303
    source = f"checkpoint:{OPEN}/a01@10"
    done = send(visitor, OPEN, "quarantine", why=WHY, source=source)
    assert "is in quarantine" in visitor.get(done.headers["Location"]).text
    page = visitor.get(f"/runs/{OPEN}").text
    assert "no start from it" in page


def test_a_password_in_a_note_is_hidden_as_on_the_command_line(home: Home) -> None:
    send(home.visitor(WRITES), OPEN, "note", text="password=hunter2hunter2")
    (note,) = home.run(OPEN).notes
    assert "hunter2" not in note.body.text


SAVED = {"view": "paper", "where": "state=running", "sort": "-step", "columns": "run,lr"}


def of_views(visitor: Visitor, act: str, **given: str) -> httpx.Response:
    """Send a form of the table of all runs."""
    own = {"Content-Type": FORM, "Origin": HERE, "Sec-Fetch-Site": "same-origin"}
    return visitor.ask("POST", f"/views/acts/{act}", own, urlencode(given))


def test_a_view_is_saved_and_removed_from_the_table_that_it_shows(home: Home) -> None:
    visitor = home.visitor(WRITES)
    page = visitor.get("/runs?where=state%3Drunning&sort=-step&columns=run,lr").text
    assert 'action="/views/acts/save"' in page
    assert '<input type="hidden" name="where" value="state=running">' in page
    assert "tracks runs --where state=running --sort -step --columns run,lr --save-view" in page
    assert 'action="/views/acts/remove"' not in page
    reply = of_views(visitor, "save", seq="0", **SAVED)
    assert reply.status_code == 303
    answer = visitor.get(reply.headers["Location"]).text
    assert "paper" in answer
    assert 'href="/runs"' in answer
    (view,) = home.views()
    assert (view.body.name, view.body.by, view.body.filter) == ("paper", person(), "state=running")
    assert (view.body.order, view.body.columns) == (("-step",), ("run", "lr"))
    page = visitor.get("/runs?view=paper").text
    assert 'action="/views/acts/save"' not in page  # it is so already
    assert "tracks runs remove-view paper --why" in page
    assert of_views(visitor, "remove", seq="1", view="paper").status_code == 400  # without a why
    removed = of_views(visitor, "remove", seq="1", view="paper", why=WHY)
    assert removed.status_code == 303
    assert home.views() == ()
    again = of_views(visitor, "save", seq="2", **SAVED)  # the same form, of a newer page
    assert again.status_code == 303
    assert [each.body.name for each in home.views()] == ["paper"]


def test_a_view_is_saved_again_with_what_is_asked_beside_it(home: Home) -> None:
    visitor = home.visitor(WRITES)
    of_views(visitor, "save", seq="0", **SAVED)
    page = visitor.get("/runs?view=paper&sort=step").text
    assert 'name="view" id="save-view" value="paper"' in page
    assert '<input type="hidden" name="sort" value="step">' in page


def test_without_write_the_table_has_the_commands_alone(home: Home) -> None:
    of_views(home.visitor(WRITES), "save", seq="0", **SAVED)
    visitor = home.visitor(Access())
    for address in ("/runs?where=state%3Drunning", "/runs?view=paper"):
        assert 'method="post"' not in visitor.get(address).text
    assert of_views(visitor, "remove", view="paper", why=WHY).status_code == 405
    assert [each.body.name for each in home.views()] == ["paper"]


@pytest.mark.parametrize(
    ("act", "given", "words"),
    [
        ("save", {**SAVED, "view": ""}, "is not a name of a view"),
        ("save", {**SAVED, "view": "a b"}, "is not a name of a view"),
        ("save", {**SAVED, "where": "lr<"}, "cannot be read"),
        ("save", {**SAVED, "sort": "-"}, "has no name"),
        ("save", {"view": "all"}, "asks for nothing"),
        ("remove", {"view": "gone", "why": WHY}, "There is no view"),
        ("stop", {"why": WHY}, "is nothing to do"),
    ],
)
def test_what_is_not_a_view_is_explained_and_not_saved(
    act: str, given: dict[str, str], words: str, home: Home
) -> None:
    reply = of_views(home.visitor(WRITES), act, **given)
    assert reply.status_code == 400
    assert words in reply.text.replace("&#39;", "'")
    assert home.views() == ()


def test_an_act_of_views_is_not_one_of_a_run(home: Home) -> None:
    assert send(home.visitor(WRITES), OPEN, "save", **SAVED).status_code == 400
    assert home.views() == ()


def test_others_may_write_only_where_a_proxy_names_them() -> None:
    check_writing("127.0.0.1", Visitors())
    check_writing("0.0.0.0", Visitors(user_header=USER))
    with pytest.raises(InvalidInput, match="--user-header"):
        check_writing("0.0.0.0", Visitors(password="x"))
    with pytest.raises(InvalidInput, match="is not an IP address"):
        check_writing("localhost", Visitors())
    with pytest.raises(InvalidInput, match="--user-header"):
        check_writing("127.0.0.1", Visitors(hosts=frozenset({"runs.example.com"})))
