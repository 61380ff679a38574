"""Every page of the board over a home with a run that trains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.bodies import CONFIG
from tests.fakes import FakeObjectStore
from tests.histories import History
from tests.live_runs import LiveRun, loss_of
from tests.stories import Story
from tests.visitors import Visitor
from tests.wings.watch.board.conftest import LIVE, OVER, REFUSED, SECOND, Home, applied, make_home
from tracks_dagster.attempts.effects.heartbeat import write_heartbeat, write_launches
from tracks_dagster.attempts.launch import PendingLaunch
from tracks_dagster.review.effects.saved_views import remove_view, save_view
from tracks_dagster.settings import Settings
from tracks_dagster.track.bodies import ViewSaved
from tracks_dagster.track.names import LAUNCH_ATTEMPTS
from tracks_dagster.wings.watch.board.effects import app as app_module
from tracks_dagster.wings.watch.board.effects import fresh, pages, sources
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wiring import build


@pytest.fixture
def visitor(home: Home, monkeypatch: pytest.MonkeyPatch) -> Visitor:
    """One who sees the whole fleet at the first look, however busy this machine is."""
    monkeypatch.setattr(sources, "FLEET_S_MAX", 60.0)
    return home.visitor()


def text_of(html: str) -> str:
    """Return what a person reads of a page."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_the_fleet_lists_what_needs_a_person_first(visitor: Visitor) -> None:
    page = visitor.get("/").text
    groups = re.findall(r'scope="rowgroup">([^<]*) <', page)
    assert groups == ["Needs a person", "Training", "Ended in the last 24 hours"]
    order = [page.index(f"/runs/{run_id}") for run_id in (REFUSED, LIVE, OVER)]
    assert order == sorted(order)


def test_a_run_that_trains_shows_lights_progress_pace_time_left_and_money(visitor: Visitor) -> None:
    page = visitor.get("/").text
    row = page[page.index(f'id="run-{LIVE}"') :].partition("</tr>")[0]
    shown = text_of(row)
    assert row.count("<use ") == 3
    assert "180 / 400" in shown
    assert '<path d="M0 ' in row
    assert 200 * len(row) <= 150_000  # of bytes: so many runs are read every two seconds
    assert "steps/s" in shown or "s/step" in shown
    assert "3.7 min" in shown  # that are left; every step took the same, so no interval
    assert "EUR" in shown


def test_an_ordinary_wait_for_devices_is_in_the_queue_and_no_alarm(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    now = datetime.now(UTC)
    History("queued", begin=now).declare().open().write_to(app.store)
    app.projector.scan()
    why = "0 of 2 devices free; after gpt-7/a02, about 14 min"
    write_heartbeat(app.store, now, {})
    waits = PendingLaunch(key="queued/a01", failed_count=0, why=why, waits=True)
    write_launches(app.store, LAUNCH_ATTEMPTS, [waits])
    visitor = Visitor(guarded(Sources(settings)))
    page = visitor.get("/").text
    row = page[page.index('id="run-queued"') :].partition("</tr>")[0]
    assert re.findall(r'scope="rowgroup">([^<]*) <', page) == ["Waiting for devices"]
    assert f"waiting: {why}" in text_of(row)
    assert 'class="bad"' not in row
    assert f"waiting: {why}" in text_of(visitor.get("/runs/queued").text)


def test_a_run_has_its_curves_with_ends_remedies_and_commits_on_the_axis(visitor: Visitor) -> None:
    page = visitor.get(f"/runs/{LIVE}").text
    names = re.findall(r'<figcaption><span><span class="name">([^<]*)</span>', page)
    assert names[0] == "loss"
    assert {"accuracy", "validation_loss", "lr", "grad_norm", "step_s"} <= set(names)
    assert "a01 preempted" in page
    assert "a02 gpu_oom" in page
    assert "micro_batch 4 → 2" in page
    assert "checkpoint of step 110" in page


def test_the_page_of_a_run_has_its_whole_record(visitor: Visitor) -> None:
    page = visitor.get(f"/runs/{LIVE}").text
    anchors = re.findall(r'<section id="([a-z]+)"', page)
    assert anchors == ["acts", "config", "checkpoints", "code"]
    shown = text_of(page)
    assert f"Compared with {SECOND}" in shown or f"Compared with {OVER}" in shown
    assert "which was declared before it" in shown
    assert f"tracks checkpoints verify {LIVE} --step 150" in shown
    assert "a resume starts from it" in shown
    assert all(f'href="#{anchor}"' in page for anchor in anchors if anchor != "acts")


def test_a_run_that_skipped_a_gate_says_so(visitor: Visitor) -> None:
    words = "Declared without canary, by ann: A demo in an hour."
    assert words in text_of(visitor.get(f"/runs/{OVER}").text)
    assert "Declared without" not in visitor.get(f"/runs/{LIVE}").text


def test_a_part_of_the_curves_can_be_looked_at(visitor: Visitor) -> None:
    page = visitor.get(f"/runs/{LIVE}?steps=120-150").text
    assert {float(x) for x in re.findall(r'data-x1="([^"]*)"', page)} == {150.0}
    assert "steps 120 to 150: show all" in page


def test_a_run_that_was_retried_shows_its_progress_against_its_burn(tmp_path: Path) -> None:
    page = over(tmp_path, "first").get("/runs/first").text
    drawn = page.split('class="name">kept steps<')[1]
    assert 'class="name">device-hours<' in drawn
    assert "data-x0" not in drawn.split("</figure>")[0]  # no step is under the pointer there


def over(tmp_path: Path, *run_ids: str) -> Visitor:
    """Return who visits a home of such runs: the same code, over after 40 steps, with journals."""
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    for number, run_id in enumerate(run_ids):
        story = Story(app.store, run_id)
        code = f"runs/{run_id}/trainer/{'c0de' * 16}.tar"
        story.attempt("preempted", last_step=23, commits=(20,), trainer=code)
        story.attempt("completed", last_step=40, commits=(40,), trainer=code)
        history = story.history
        opened = history.open_eval(history.state.resumable[-1]).state.evals[-1].opened
        history.end_eval(opened, metrics={"loss": 3.5 + number}).finish().write_to(app.store)
    app.projector.scan()
    return Visitor(guarded(Sources(settings)))


def test_an_answer_is_compressed_for_who_takes_it_so(tmp_path: Path) -> None:
    visitor = over(tmp_path, "first")
    part = {"X-Part": "main"}  # without the time of day
    packed = visitor.get("/runs", {**part, "Accept-Encoding": "gzip"})
    plain = visitor.get("/runs", {**part, "Accept-Encoding": "identity"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in packed.headers["Vary"]
    assert int(packed.headers["Content-Length"]) < len(packed.content) / 2
    assert "Content-Encoding" not in plain.headers
    assert plain.text == packed.text


def test_columns_that_no_run_has_are_named(tmp_path: Path) -> None:
    page = text_of(over(tmp_path, "first").get("/runs?columns=run,moneyy,owner").text)
    assert "None of these runs has moneyy." in page


def test_no_number_of_a_run_depends_on_the_part_of_its_curves_that_is_shown(tmp_path: Path) -> None:
    visitor = over(tmp_path, "first", "second")
    for path in ("/runs/first?", "/compare?run=first&run=second&"):
        whole, part = (visitor.get(f"{path}{query}").text for query in ("", "steps=5-10"))
        for page in (whole, part):
            assert "training loss" in text_of(page)
            assert "0.1250 at 40" in text_of(page).replace("at step", "at"), path
    assert re.findall(r'data-value="0.125[^"]*"', part) == []  # of two runs there is none


def test_a_comparison_names_evals_apart_and_equal_code_is_the_same(tmp_path: Path) -> None:
    shown = text_of(over(tmp_path, "first", "second").get("/compare?run=first&run=second").text)
    assert "eval heldout-loss loss 3.500 at 40 4.500 at 40" in shown
    assert "training loss 0.1250 at 40 0.1250 at 40" in shown
    assert "c0dec0de" not in shown
    assert re.search(r"The same in all of them: [^.]*code", shown)


def test_curves_may_be_logarithmic_and_averaged_without_a_script(visitor: Visitor) -> None:
    page = visitor.get(f"/runs/{LIVE}").text
    assert 'href="?y=log"' in page
    assert 'href="?smooth=100"' in page
    assert "data-log" not in page
    other = visitor.get(f"/runs/{LIVE}?y=log&smooth=100").text
    assert "data-log" in other
    assert 'class="line a0 raw"' in other
    assert 'href="?y=log&amp;smooth=0"' in other  # the way back keeps the rest
    both = visitor.get(f"/compare?run={LIVE}&run={SECOND}&y=log&smooth=10").text
    assert re.search(r'class="line r[0-9]+ s0 raw"', both)


def test_a_slow_rank_is_named_with_its_device(visitor: Visitor) -> None:
    shown = text_of(visitor.get(f"/runs/{LIVE}").text)
    assert "rank 5 (node-0, cuda:5): 2.00 × the gang&#39;s median over its newest" in shown


def test_words_from_outside_are_escaped_and_control_no_terminal(visitor: Visitor) -> None:
    page = visitor.get(f"/runs/{LIVE}").text
    assert "longer warm-up &lt;helps&gt;." in page
    assert "<helps>" not in page


def test_no_page_has_an_inline_style_or_script(visitor: Visitor) -> None:
    for path in ("/", f"/runs/{LIVE}", f"/compare?run={LIVE}&run={OVER}", "/experiments/gpt"):
        page = visitor.get(path).text
        assert " style=" not in page, path
        assert re.findall(r"<script(?![^>]* src=)", page) == [], path
        assert re.findall(r" on[a-z]+=", page) == [], path


def test_a_part_is_sent_once_and_then_only_when_something_changed(
    home: Home, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FRESH_S", 0.0)
    part = {"X-Part": "main"}
    first = visitor.get(f"/runs/{REFUSED}", part)
    assert not first.text.startswith("<!doctype")
    again = {**part, "If-None-Match": first.headers["ETag"]}
    assert visitor.get(f"/runs/{REFUSED}", again).status_code == 304


def test_what_an_open_page_is_sent_does_not_grow_with_the_steps_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FRESH_S", 0.0)
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    now = datetime.now(UTC)
    runs = [LiveRun(app.store, f"run-{n}", now=now, ranks=1, steps=n).write() for n in (204, 2040)]
    app.projector.scan()
    visitor = Visitor(guarded(Sources(settings)))
    sent_bytes = []
    for run in runs:
        path = f"/runs/{run.run_id}"
        first = visitor.get(path, {"X-Part": "main"})
        run.grow(2)
        grown = visitor.get(path, part_since(first))
        assert grown.headers["Content-Type"] == "application/json"
        assert version_of(applied(grown.json(), first.text)) == grown.headers["ETag"]
        sent_bytes.append(len(grown.content))
        assert len(first.content) > 30_000
    assert max(sent_bytes) < 5000, (
        sent_bytes
    )  # a few numbers, and how long ago what is: by the clock


def test_a_page_whose_version_is_forgotten_is_sent_whole_and_a_refusal_too(
    visitor: Visitor,
) -> None:
    lost = {"X-Part": "difference", "If-None-Match": '"0123456789abcdef"'}
    assert visitor.get(f"/runs/{REFUSED}", lost).text.startswith("<div")
    shown = visitor.get(f"/runs/{REFUSED}", {"X-Part": "main"})
    refused = visitor.get("/runs/nobody", part_since(shown))
    assert refused.status_code == 404
    assert "<h1>" in refused.text


def test_a_run_that_rewinds_is_drawn_as_by_a_page_that_was_opened_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FRESH_S", 0.0)
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    run = LiveRun(app.store, "rewinds", now=datetime.now(UTC), ranks=1).write()
    app.projector.scan()
    visitor = Visitor(guarded(Sources(settings)))
    before = visitor.get("/runs/rewinds", {"X-Part": "main"})
    run.rewind().grow(5)
    sent = visitor.get("/runs/rewinds", part_since(before))
    shown = applied(sent.json(), before.text)
    assert "a04 open" in text_of(shown)
    assert version_of(shown) == sent.headers["ETag"]


def test_curves_that_are_open_are_sent_from_where_they_were_on(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    now = datetime.now(UTC)
    run = LiveRun(app.store, "grows", now=now, ranks=1, steps=1820).write()
    LiveRun(app.store, "also", now=now, ranks=1, steps=1500).write()
    app.projector.scan()

    def ask(run_ids: Sequence[str], name: str, cursor: str) -> tuple[dict[str, Any], int]:
        """Return a metric, and how many bytes the answer has; nothing is fresh enough to be reused."""
        asked = [*(("run", each) for each in run_ids), ("metric", name), ("since", cursor)]
        answer = Visitor(guarded(Sources(settings))).get(f"/compare.json?{urlencode(asked)}")
        return answer.json()["metrics"][name], len(answer.content)

    for name in ("loss", "validation_loss"):
        before, whole_bytes = ask(["grows"], name, "")
        assert before["after"] == 0
        run.grow(20)
        new, new_bytes = ask(["grows"], name, before["cursor"])
        assert new_bytes < whole_bytes / (10 if name == "loss" else 3)
        whole, _ = ask(["grows"], name, "")
        assert new["x"] == whole["x"][new["after"] :]
        assert before["x"][: new["after"]] == whole["x"][: new["after"]]
        for key in ("at", "mean"):
            is_old = [at < new["after"] for at in before["runs"]["grows"]["at"]]
            known = [v for v, old in zip(before["runs"]["grows"][key], is_old, strict=True) if old]
            assert known + new["runs"]["grows"][key] == whole["runs"]["grows"][key]
    both, _ = ask(["grows", "also"], "loss", "")
    assert int(both["cursor"].partition(".")[2]) <= 480 * 1500 // 1800  # of the one that is behind
    assert ask(["grows", "also"], "loss", whole["cursor"])[0]["after"] == 0  # of other runs
    run.rewind().grow(5)
    assert ask(["grows"], "loss", ask(["grows"], "loss", "")[0]["cursor"])[0]["after"] > 0
    assert ask(["grows"], "loss", before["cursor"])[0]["after"] == 0  # of before the resume
    for odd in ("x", f"{both['cursor']}9999", "a.b", "."):
        assert ask(["grows"], "loss", odd)[0]["after"] == 0


def test_a_comparison_is_over_when_no_attempt_can_follow(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    begin = datetime.now(UTC) - timedelta(minutes=30)
    runs = {
        name: LiveRun(app.store, name, now=begin, ranks=1) for name in ("paused", "refused", "over")
    }
    for run in runs.values():
        run.history.end("preempted", last_step=run.step)
    runs["refused"].history.refuse()  # a person may retry it
    runs["over"].history.finish()
    for run in runs.values():
        run.write()
    History("new", begin=begin).declare().write_to(app.store)
    app.projector.scan()
    visitor = Visitor(guarded(Sources(settings)))
    found = {
        name: visitor.get(f"/compare.json?run={name}&metric=loss").json()["is_over"]
        for name in (*runs, "new")
    }
    assert found == {"paused": False, "refused": False, "over": True, "new": False}


def test_a_page_and_its_numbers_name_the_same_metrics_until_there_are_others(
    tmp_path: Path,
) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    run = LiveRun(FakeObjectStore(), "new", now=datetime.now(UTC), ranks=1)
    run.history.write_to(app.store, count=1)

    def names() -> set[str]:
        """Return what the page, its panels and its numbers name; each time nothing was read yet."""
        app.projector.scan()
        visitor = Visitor(guarded(Sources(settings)))
        parts = [visitor.get(f"/compare{path}?run=new").text for path in ("", "/curves")]
        found = {each for part in parts for each in re.findall('data-names="(.*?)"', part)}
        return found | {visitor.get("/compare.json?run=new").json()["names"]}

    (before,) = names()
    run.store = app.store
    run.write().grow(1)
    (after,) = names()
    run.grow(1)
    assert names() == {after} != {before}


def version_of(part: str) -> str:
    """Return the version of a page with this in its `main`."""
    return f'"{pages.digest(part)}"'


def part_since(shown: httpx.Response) -> dict[str, str]:
    """Return what a page asks with that shows this answer."""
    return {"X-Part": "difference", "If-None-Match": shown.headers["ETag"]}


def test_comparing_shows_what_differs_and_nothing_that_is_the_same(visitor: Visitor) -> None:
    shown = text_of(visitor.get(f"/compare?run={LIVE}&run={OVER}").text)
    assert "steps 400 40" in shown
    assert "micro_batch 2 4" in shown
    assert "seed" not in shown  # 7 in both


def test_a_run_can_be_hidden_or_left_out_of_a_comparison(visitor: Visitor) -> None:
    page = visitor.get(f"/compare?run={LIVE}&run={OVER}&run={REFUSED}&by=step").text
    boxes = re.findall(r'type="checkbox" id="(show-s[0-2])" checked', page)
    assert len(set(boxes)) == len(boxes) == 3
    assert f'href="?run={LIVE}&amp;run={REFUSED}&amp;by=step"' in page
    two = visitor.get(f"/compare?run={LIVE}&run={OVER}").text
    assert "leave out" not in two


def test_the_numbers_of_a_comparison_are_on_one_axis_and_lost_steps_are_not_among_them(
    visitor: Visitor,
) -> None:
    address = f"/compare.json?run={LIVE}&run={SECOND}&run={OVER}&metric=loss&metric=nothing"
    found = visitor.get(f"{address}&x=50..61").json()
    assert (found["x_label"], found["within"], found["is_over"]) == ("step", [50, 61], False)
    assert list(found["metrics"]) == ["loss"]
    loss = found["metrics"]["loss"]
    assert loss["x"] == list(range(50, 62))
    assert set(loss["runs"]) >= {LIVE, SECOND}
    for run_id in (LIVE, SECOND):
        line = loss["runs"][run_id]
        assert [loss["x"][at] for at in line["at"]] == list(range(50, 62))
        assert line["mean"][11] == pytest.approx(loss_of(61), rel=1e-5)
        assert "first" not in line  # a step has one value, though two attempts ran it


def test_of_many_points_a_place_keeps_the_smallest_and_the_largest(visitor: Visitor) -> None:
    found = visitor.get(f"/compare.json?run={LIVE}&metric=loss&buckets=10").json()
    (line,) = found["metrics"]["loss"]["runs"].values()
    ends = [value for pair in zip(line["first"], line["second"], strict=True) for value in pair]
    assert len(line["at"]) == 10
    assert min(ends) == pytest.approx(min(map(loss_of, range(1, 181))), rel=1e-5)
    assert max(ends) == pytest.approx(loss_of(1), rel=1e-5)


def test_fifty_runs_are_compared_and_the_fifty_first_is_named(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    for n in range(51):
        config = {**CONFIG, "seed": n % 2, "lr": 0.001 * (n // 2)}
        History(f"run-{n:02}").declare(config=config).open().write_to(app.store)
    app.projector.scan()
    visitor = Visitor(guarded(Sources(settings)))
    query = "&".join(f"run=run-{n:02}" for n in range(51))
    page = visitor.get(f"/compare?{query}").text
    assert "<h1>50 runs compared</h1>" in page
    assert "Only 50 runs are shown; left out: run-50." in page
    assert len(re.findall(r'data-run="run-[0-9]{2}"', page)) == 50
    assert len(set(re.findall(r'data-band="([0-9]+)"', page))) == 25


def test_runs_that_differ_only_in_the_seed_are_one_band_without_a_script(visitor: Visitor) -> None:
    """`LIVE` and `SECOND` have one config, `OVER` has another."""
    address = f"/compare?run={LIVE}&run={SECOND}&run={OVER}"
    apart = visitor.get(address).text
    assert "<polygon" not in apart
    assert re.search(r'<label><input name="bands"', apart)  # it needs no script
    loss = visitor.get(f"{address}&bands=1").text.partition('data-metric="loss"')[2]
    loss = loss.partition("</figure>")[0]
    assert len(re.findall(r'<polygon class="spread r[0-9]+', loss)) == 1
    assert f"mean of {LIVE}, {SECOND}" in loss
    assert not re.search(r'class="line r[0-9]+[^"]* s[01]"', loss)  # nobody's own line
    hidden = visitor.get(f"{address}&bands=1&off={SECOND}").text
    assert "<polygon" not in hidden
    assert "mean of" not in hidden


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("x=5", "x='5' is not a part of an axis"),
        ("x=9..2", "is not a part of an axis"),
        ("find=(", "find='(' is not a regular expression"),
        ("buckets=0", "buckets='0' is not a number"),
        ("by=days", "by='days' is not an axis"),
    ],
)
def test_what_a_comparison_cannot_read_says_what_is_valid(
    query: str, words: str, visitor: Visitor
) -> None:
    path = "/compare.json" if query.startswith("buckets") else "/compare"
    reply = visitor.get(f"{path}?run={LIVE}&run={OVER}&{query}")
    assert reply.status_code == 400
    assert words in unescape(reply.text)


def test_a_run_whose_eval_failed_for_good_waits_on_the_board_as_in_the_status(
    tmp_path: Path,
) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    history = History("exhausted", begin=datetime.now(UTC)).declare().open().supervise().place()
    history.restore().commit(40).end("completed", last_step=40)
    for _ in range(3):
        opened = history.open_eval(history.state.checkpoints[-1].ref).state.evals[-1].opened
        history.end_eval(opened, "evaluator_error", message="KeyError: 'width'")
    history.write_to(app.store)
    app.projector.scan()
    write_heartbeat(app.store, datetime.now(UTC), {})
    visitor = Visitor(guarded(Sources(settings)))
    page = visitor.get("/runs/exhausted").text
    assert 'class="pill waiting">waiting<' in page
    assert "waiting for a person: heldout-loss@40: failed 3 times" in text_of(page)
    assert "state waiting" in text_of(visitor.get("/compare?run=exhausted&run=exhausted").text)


def test_an_address_that_would_fill_the_page_with_itself_is_refused(visitor: Visitor) -> None:
    columns = ",".join(f"c{n}" for n in range(3200))
    for path in (f"/runs?columns={columns}", f"/runs?sort={columns}"):
        answer = visitor.get(path)
        assert answer.status_code == 400
        assert "has 3200 names; choose at most 100." in unescape(answer.text)
    answer = visitor.get("/compare?" + "&".join(f"star={n:090}" for n in range(400)))
    assert answer.status_code == 400
    assert "at most 32768 are read" in answer.text
    assert len(answer.text) < 10_000


def test_hostile_names_of_metrics_are_text_everywhere(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>/\"'"
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    live = LiveRun(app.store, "live", now=datetime.now(UTC), metrics={name: 1.0}).write()
    app.projector.scan()
    visitor = Visitor(guarded(Sources(settings)))
    page = visitor.get(f"/compare?run={live.run_id}").text
    assert escape(name, quote=False).replace('"', "&#34;").replace("'", "&#39;") in page
    assert "<img" not in page
    numbers = visitor.get(f"/compare.json?{urlencode({'run': 'live', 'metric': name})}")
    assert list(numbers.json()["metrics"]) == [name]
    assert numbers.headers["X-Content-Type-Options"] == "nosniff"
    assert numbers.headers["Content-Type"] == "application/json"


def test_stars_hidden_and_folded_panels_are_in_the_address(visitor: Visitor) -> None:
    base = f"/compare?run={LIVE}&run={SECOND}"
    page = visitor.get(f"{base}&star=lr&hide=grad_norm&fold=speed&find=loss|lr|grad|step").text
    figures = re.findall(r'data-metric="([^"]*)"', page)
    assert figures[0] == "lr"
    assert "grad_norm" not in figures
    assert "step_s" not in figures
    assert "Show grad_norm" in page  # the way back
    part = visitor.get(f"/compare/curves?run={LIVE}&run={SECOND}&find=^loss$").text
    assert re.findall(r'data-metric="([^"]*)"', part) == ["loss"]
    assert "<svg" not in part.partition("<section")[2]  # its script draws


def test_an_experiment_has_a_baseline_and_what_each_run_changed(visitor: Visitor) -> None:
    page = visitor.get("/experiments/gpt").text
    shown = text_of(page)
    assert f"Baseline: {OVER}" in shown or f"Baseline: {LIVE}" in shown
    chosen = text_of(visitor.get(f"/experiments/gpt?baseline={OVER}").text)
    assert f"Baseline: {OVER} , as you chose" in chosen
    assert "steps 40 → 400" in chosen
    refused = visitor.get("/experiments/gpt?baseline=no-such-run")
    assert refused.status_code == 400
    assert "no-such-run: outside of the experiment gpt" in text_of(refused.text)


def test_a_page_that_lists_a_part_of_the_runs_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "EXPERIMENT_RUNS_MAX", 1)
    monkeypatch.setattr(sources, "FOUND_MAX", 1)
    monkeypatch.setattr(app_module, "FOUND_MAX", 1)
    visitor = home.visitor()
    assert "the newest 1 of 3 runs" in text_of(visitor.get("/experiments/gpt").text)
    found = text_of(visitor.get("/find?run=run").text)
    assert "1 run, the newest first; there are more: write more of the text." in found
    assert visitor.get(f"/find?run={OVER}").headers["Location"] == f"/runs/{OVER}"


def test_the_fleet_lists_the_experiments_that_runs_were_declared_with(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    history = History("lr-1").declare(experiment="rates", team="vision").open().place().restore()
    history.commit(40).end("completed", last_step=40).finish().write_to(app.store)  # long ago
    app.projector.scan()
    visitor = Visitor(guarded(Sources(settings)))
    assert 'href="/experiments/rates"' in visitor.get("/").text
    for text in ("rates", "lr-", "vision", "micro_batch"):
        assert visitor.get(f"/find?run={text}").headers["Location"] == "/runs/lr-1", text


def test_a_run_whose_ranks_are_not_together_yet_does_not_train(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    history = History("early", begin=datetime.now(UTC)).declare().open().supervise()
    history.write_to(app.store)
    app.projector.scan()
    write_heartbeat(app.store, datetime.now(UTC), {})
    visitor = Visitor(guarded(Sources(settings)))
    assert 'class="pill starting">starting<' in visitor.get("/runs/early").text
    assert re.findall(r'scope="rowgroup">([^<]*) <', visitor.get("/").text) == ["Starting"]


def test_a_store_that_is_away_is_not_a_live_page(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    History("one").declare().open().write_to(app.store)
    app.projector.scan()
    visitor = Visitor(guarded(Sources(settings)))
    assert '<span id="pulse">as of' in visitor.get("/runs/one").text
    (tmp_path / "home" / "store").rename(tmp_path / "away")
    away = Visitor(guarded(Sources(settings))).get("/runs/one")
    assert away.status_code == 503
    assert '<span id="pulse" class="late">not live' in away.text
    assert "it was moved, removed or unmounted." in text_of(away.text)


def test_a_run_is_found_by_a_part_of_what_it_is_for(visitor: Visitor) -> None:
    assert visitor.get("/find?run=refused-").headers["Location"] == f"/runs/{REFUSED}"
    several = text_of(visitor.get("/find?run=-run").text)
    assert all(run_id in several for run_id in (LIVE, OVER, REFUSED))
    assert "No run has" in visitor.get("/find?run=100%25").text  # no sign of a pattern


def test_curves_are_given_to_programs_too(visitor: Visitor) -> None:
    found = visitor.get(f"/curves.json?run={LIVE}&metric=loss").json()
    (loss,) = found["metrics"]
    kept = [p[0] for series in loss["series"] if series["is_kept"] for p in series["points"]]
    assert kept == sorted(set(kept))
    assert kept[-1] == 180
    assert {"end", "remedy", "commit"} == {each["kind"] for each in found["marks"]}


def test_the_report_is_served_as_it_is_written(visitor: Visitor) -> None:
    reply = visitor.get(f"/runs/{OVER}/report")
    assert "Why each attempt ended" in reply.text
    assert "script" not in reply.headers["Content-Security-Policy"]


def test_the_table_of_all_runs_has_finished_ones_and_filters_sorts_and_pages(
    home: Home,
) -> None:
    board = home.visitor()
    page = board.get("/runs").text
    assert all(f'href="/runs/{name}"' in page for name in (LIVE, SECOND, OVER, REFUSED))
    found = board.get("/runs?where=state%3Dsucceeded&sort=-hours").text
    assert OVER in found
    assert REFUSED not in found
    assert 'aria-sort="descending"' in found
    assert "sort=hours" in found  # the other way round
    lines = board.get("/runs.csv?where=lr%3C1&columns=run,lr").text.splitlines()
    assert lines[0] == "run,lr"
    assert board.get("/runs.json?where=state%3Dsucceeded").json()["runs"][0]["run"] == OVER
    for wrong in ("where=lr%3C", "where=nonsens%3D1", "sort=nonsens", "page=x", "page=99999"):
        assert board.get(f"/runs?{wrong}").status_code == 400
    hostile = board.get("/runs?where=%3Cscript%3E&columns=%22%3E%3Cscript%3E").text
    assert "<script>" not in hostile


def test_a_saved_view_is_a_link_of_the_table_and_names_what_is_gone(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    tracks = build(home.settings).tracks
    board = home.visitor()
    asked = "where=state%3Dsucceeded&sort=-hours&columns=run,lr"
    command = "tracks runs --where state=succeeded --sort -hours --columns run,lr --save-view NAME"
    assert command in board.get(f"/runs?{asked}").text
    saved = ViewSaved(
        name="done", by="ann", filter="state=succeeded", order=("-hours",), columns=("run", "lr")
    )
    save_view(tracks, saved)
    for name, change in {
        "column": replace(saved, columns=("run", "gone")),
        "order": replace(saved, order=("gone",)),
        "filter": replace(saved, filter="gone<1"),
    }.items():
        save_view(tracks, replace(change, name=name))
    page = board.get("/runs?view=done").text
    assert 'href="/runs?view=done" aria-current="true"' in page
    assert 'value="state=succeeded"' in page
    assert OVER in page
    assert REFUSED not in page
    assert board.get("/runs.csv?view=done").text.startswith("run,lr\n")
    assert REFUSED in board.get("/runs?view=done&where=state%3Drefused").text
    for name, is_shown in {"column": True, "order": True, "filter": False}.items():
        reply = board.get(f"/runs?view={name}")
        assert reply.status_code == 200, name
        assert f"The view '{name}'" in unescape(reply.text), name
        assert "gone" in reply.text
        assert (f'href="/runs/{OVER}"' in reply.text) is is_shown
        file = board.get(f"/runs.csv?view={name}")
        assert (file.status_code, OVER in file.text) == (200, is_shown), name
    assert board.get("/runs?view=done&where=gone%3C1").status_code == 400  # it is asked for now
    remove_view(tracks, "done", by="bo", why="It is done.")
    gone = board.get("/runs?view=done")
    assert gone.status_code == 400
    assert "bo removed the view" in gone.text
    assert "view=done" not in board.get("/runs").text


def test_a_file_of_runs_says_whether_all_of_them_are_in_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = home.visitor()
    for bound, is_complete in ((100, True), (2, False)):
        monkeypatch.setattr("tracks_dagster.wings.watch.board.effects.table_pages.READ_MAX", bound)
        for query in ("", "?where=r", "?sort=-run"):
            table, rows = board.get(f"/runs.json{query}"), board.get(f"/runs.csv{query}")
            assert table.json()["is_complete"] is is_complete, query
            for reply in (table, rows):
                assert reply.headers["Tracks-Complete"] == ("yes" if is_complete else "no")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/runs/no-such-run", 404, "no-such-run"),
        ("/runs/%00", 404, ""),
        (f"/runs/{LIVE}?by=colour", 400, "use step, tokens, samples, hours, wall"),
        (f"/runs/{LIVE}?rank=-1", 400, "a whole number"),
        (f"/runs/{LIVE}?steps=200-100", 400, "steps=100-200"),
        (f"/runs/{LIVE}?y=cubic", 400, "linear, log"),
        (f"/runs/{LIVE}?smooth=-1", 400, "smooth=100"),
        (f"/runs/{LIVE}?smooth=99999999999", 400, "at most 1000000"),
        (f"/runs/{LIVE}?smooth={'0' * 4400}1", 400, "at most 1000000"),
        (f"/runs/{LIVE}?rank={'9' * 4400}", 400, "is not a rank"),
        (f"/runs/{LIVE}?steps={'9' * 4400}-1", 400, "not a range of steps"),
        (f"/curves.json?run={LIVE}&metric=los", 400, "loss"),
        ("/experiments/none", 404, "none"),
        ("/runbooks/../../README", 404, ""),
        ("/runbooks/none", 404, "slow_rank"),
        (f"/compare?run={LIVE}&run=nobody", 404, "nobody"),
        ("/favicon.ico", 404, ""),
    ],
)
def test_what_is_not_there_is_said_with_what_is(
    path: str, status: int, words: str, visitor: Visitor
) -> None:
    reply = visitor.get(path)
    assert reply.status_code == status
    assert words in text_of(reply.text)


def test_a_home_without_a_record_says_how_one_begins(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "none")})
    board = Visitor(guarded(Sources(settings)))
    reply = board.get("/")
    assert reply.status_code == 200
    assert "tracks run" in reply.text
    assert not (tmp_path / "none").exists()  # it only reads


def test_a_reading_that_came_after_a_look_is_read_again_once_it_is_old(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FLEET_FRESH_S", 0.0)
    monkeypatch.setattr(fresh, "LONGER_S_MAX", 0.0)
    monkeypatch.setattr(sources, "FLEET_S_MAX", 60.0)
    read = Sources(home.settings)
    with monkeypatch.context() as first:
        first.setattr(sources, "wait", lambda *_, **__: None)  # none is there in time
        read.fleet()
    wait(read._pending.values(), timeout=60.0)
    later = read.now()
    monkeypatch.setattr(sources, "LATE_S_MAX", 0.0)
    readings = read.fleet().readings
    assert {LIVE, SECOND} <= set(readings)
    assert all(each.now >= later for run_id, each in readings.items() if run_id in (LIVE, SECOND))

    class Never:
        """Threads that do not come to it."""

        def submit(self, *_: object) -> Future[object]:
            return Future()

    monkeypatch.setattr(read, "_threads", Never())
    monkeypatch.setattr(sources, "FLEET_S_MAX", 0.0)
    assert {LIVE, SECOND} <= set(read.fleet().readings)
    monkeypatch.setattr(sources, "SHOWN_S_MAX", 0.0)
    assert read.fleet().readings == {}


def test_metrics_are_of_open_attempts_with_bounded_labels(visitor: Visitor) -> None:
    pytest.importorskip("prometheus_client", reason="an extra")
    text = visitor.get("/metrics").text
    assert f'tracks_run_step{{family="gpt",run="{LIVE}",team="research"}} 180.0' in text
    assert OVER not in text
    assert "rank" not in text
