"""The pages of studies: what a person reads of one, its pictures, its table, its files."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.histories import History
from tests.studies.played import LR, Played, make_study
from tests.visitors import Visitor
from tracks_dagster.settings import Settings
from tracks_dagster.studies.space import Param
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.wings.watch.board import trial_table
from tracks_dagster.wings.watch.board.effects.serving import guarded
from tracks_dagster.wings.watch.board.effects.sources import Sources
from tracks_dagster.wings.watch.board.effects.study_pictures import (
    LINES_MAX,
    pictures_of,
    scale_of,
    share_of,
)
from tracks_dagster.wings.watch.board.study import study_view
from tracks_dagster.wiring import build

SPACE = {
    **LR,
    "layers": Param(kind="int", low=2, high=4),
    "rule": Param(kind="choice", values=("adam", "<b>sgd</b>")),
    "momentum": Param(kind="uniform", low=0, high=1, when={"rule": ("<b>sgd</b>",)}),
}
HALVING = {"scheduler": {"kind": "halving", "eta": 3}, "budgets": (100, 300, 900), "trials": 27}


def curve(config: Any, steps: int) -> float | None:
    """Return a loss that a learning rate of about 0.03 makes least; a small one cannot be trained."""
    if config["lr"] < 0.0002:
        return None
    return abs(config["lr"] - 0.03) * 100 + config["layers"] / 10 + 100 / steps


def played(**changes: Any) -> Played:
    study = make_study(**{"study": "lr-depth", "params": SPACE, **HALVING, **changes})
    return Played(study, curve)


def visitor_of(tmp_path: Path, *studies: Played) -> Visitor:
    """Return who visits a home of these studies, with the run of the first trial of each."""
    settings = Settings.from_environment({"TRACKS_HOME": str(tmp_path / "home")})
    app = build(settings)
    for each in studies:
        each.write_to(app.store)
        name = each.state.declared.study
        History(f"{name}-t000-r0").declare(experiment=name).write_to(app.store)
    History("alone").declare(experiment="alone").write_to(app.store)
    app.projector.scan()
    return Visitor(guarded(Sources(settings)))


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Visitor:
    whole, begun = played(), played(study="begun", slots=3, max_device_hours=2.0)
    whole.play()
    while begun.decide():
        pass
    return visitor_of(tmp_path_factory.mktemp("studies"), whole, begun)


def text_of(html: str) -> str:
    """Return what a person reads of a page."""
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", html).split()))


def test_the_fleet_and_a_trials_run_lead_to_the_study(visitor: Visitor) -> None:
    fleet = visitor.get("/").text
    assert 'href="/studies/lr-depth"' in fleet
    assert 'href="/studies/begun"' in fleet
    assert 'href="/experiments/lr-depth"' not in fleet
    assert 'href="/experiments/alone"' in fleet
    page = visitor.get("/runs/lr-depth-t000-r0").text
    assert '<a href="/studies/lr-depth" rel="noreferrer">trial 0 of the study lr-depth</a>' in page
    assert "/studies/" not in visitor.get("/runs/alone").text


def test_all_studies_are_listed_with_their_best(visitor: Visitor) -> None:
    shown = text_of(visitor.get("/studies").text)
    assert "2 of them, 1 open" in shown
    assert re.search(r"lr-depth complete gpt loss [0-9.]+ 27 / 27 ", shown)
    assert "begun open gpt 3 / 27 0 20" in shown
    rows = visitor.get("/studies.json").json()
    assert [each["study"] for each in rows] == ["begun", "lr-depth"]
    assert next(csv.DictReader(io.StringIO(visitor.get("/studies.csv").text)))["study"] == "begun"


def test_a_home_without_a_study_says_how_to_begin_one(tmp_path: Path) -> None:
    empty = visitor_of(tmp_path)
    assert "tracks tune" in text_of(empty.get("/studies").text)
    assert "all studies" not in empty.get("/").text
    assert empty.get("/studies/nope").status_code == 404


def test_a_study_says_what_it_came_to_and_what_was_stopped_and_failed_and_why(
    visitor: Visitor,
) -> None:
    page = visitor.get("/studies/lr-depth").text
    shown = text_of(page)
    assert "trials 27 / 27 27 over" in shown
    assert "Best: trial" in shown
    assert "The least loss of gpt, by random search and halving at steps 100, 300, 900" in shown
    assert re.search(r"place \d+ of 27 at step 100; 9 go on", shown)
    assert "Without a value" in shown
    assert re.search(r"Budgets .* 100 27 9 ", shown)
    assert "Kruskal and Wallis" in shown
    assert "What two keys do together is not seen" in shown
    assert "<b>" not in page
    assert page.count('<path class="top"') == 2 + 3  # the best trial, in both pictures, of its keys
    best = re.search(r'href="(/compare\?[^"]*)" rel="noreferrer">compare the best 5<', page)
    assert best is not None
    first, *rest = parse_qs(urlsplit(unescape(best[1])).query)["run"]
    assert first.endswith("-r2")
    assert len(rest) == 4
    assert "tracks stop" not in page


def test_an_open_study_shows_what_trains_what_it_may_use_and_how_to_stop_it(
    visitor: Visitor,
) -> None:
    page = visitor.get("/studies/begun").text
    shown = text_of(page)
    assert "open now 3 of 3 slots" in shown
    assert "of at most 2" in shown
    assert 'tracks stop begun --why "…"' in shown
    assert "It is shown once ten trials of one budget have a value." in shown
    assert shown.count(" open ") >= 3
    assert "data-live" in page


def test_a_study_outside_of_its_hours_says_until_when_it_waits(tmp_path: Path) -> None:
    now, hour = datetime.now(UTC), timedelta(hours=1)
    hours = f"{now + 2 * hour:%H:%M}-{now + 3 * hour:%H:%M}"
    visitor = visitor_of(tmp_path, played(study="night", off_peak=hours))
    words = f"open No run starts before {now + 2 * hour:%Y-%m-%d %H:%M} UTC: off-peak is {hours}."
    assert f"night {words}" in text_of(visitor.get("/studies").text)
    assert words.removeprefix("open ") in text_of(visitor.get("/studies/night").text)
    assert visitor.get("/studies.json").json()[0]["off_peak"] == hours
    assert visitor.get("/studies/night.json").json()["off_peak"] == hours


def test_trials_are_chosen_and_sorted_by_links(visitor: Visitor) -> None:
    stopped = visitor.get("/studies/lr-depth?show=stopped").text
    assert set(re.findall(r'<span class="pill (\w+)">\1<', stopped)) == {"stopped"}
    ordered = visitor.get("/studies/lr-depth?sort=-lr").text
    cells = re.findall(r'<td class="number">[234]</td><td class="number">([0-9.e-]+)<', ordered)
    rates = [float(each) for each in cells]
    assert len(rates) == 27
    assert rates == sorted(rates, reverse=True)
    assert 'aria-sort="descending"' in ordered
    # What was not drawn comes last, in both orders.
    for way in ("momentum", "-momentum"):
        rows = visitor.get(f"/studies/lr-depth?sort={way}").text.split("<tr data-row")[1:]
        assert "&lt;b&gt;sgd" in rows[0]
        assert "adam" in rows[-1]
    assert visitor.get("/studies/lr-depth?sort=nothing").status_code == 400
    assert visitor.get("/studies/lr-depth?show=nothing").status_code == 400


def test_a_study_is_a_file_as_the_command_prints_it(visitor: Visitor) -> None:
    facts = visitor.get("/studies/lr-depth.json").json()
    assert (facts["study"], facts["state"], len(facts["trials"])) == ("lr-depth", "finished", 27)
    rows = list(csv.DictReader(io.StringIO(visitor.get("/studies/lr-depth.csv").text)))
    assert len(rows) == 27 + 9 + 3
    last = next(each for each in rows if each["rung"] == "2")
    assert (last["steps"], last["outcome"]) == ("900", "measured")
    assert last["source"].endswith("-r1@300")
    assert float(last["lr"]) > 0
    json.dumps(facts)


def test_weights_of_another_trial_are_named_at_the_budget_where_they_were_taken() -> None:
    study = played(scheduler={"kind": "pbt"}, budgets=(10, 20, 30), trials=8, params=LR)
    study.curve = lambda config, steps: 1 / config["lr"]
    state = study.play()
    rows = study_view(state, {}, 0, pictures_of(state)).trials.rows
    copied = [cell.soft for row in rows for cell in row.cells if cell.soft]
    assert copied
    assert all(re.fullmatch(r"from lr-depth-t\d{3}-r[01]", each) for each in copied)


def test_of_many_trials_a_bounded_part_is_drawn_and_a_page_of_them_listed() -> None:
    state = played(trials=330, slots=8).play()
    pictures = pictures_of(state)
    view = study_view(state, {}, 3, pictures)
    assert pictures.over_keys.count("<a ") == LINES_MAX
    assert f"{LINES_MAX} of" in pictures.words[-1]
    assert len(view.trials.rows) == 330 - 3 * trial_table.ROWS
    assert view.trials.shown == "Trials 301 to 330 of 330."
    assert [each.label for each in view.trials.ways] == ["before"]
    assert len(pictures.over_keys) + len(pictures.over_budgets) < 120_000
    assert pictures.history is not None
    assert len(pictures.history.svg) < 40_000


def test_a_value_that_lies_far_off_does_not_flatten_the_others() -> None:
    scale = scale_of([1.0, 2.0, 3.0, 4.0, 1e9])
    assert (scale.low, scale.high) == (1.0, 4.0)
    assert scale.share(1e9) == 1.0
    assert not scale.has(1e9)
    assert scale_of([2.0, 2.0]).share(2.0) == 0.5


def test_a_place_on_an_axis_is_by_the_way_that_its_key_is_drawn() -> None:
    lr = Param(kind="loguniform", low=1e-4, high=1e-1)
    assert share_of(lr, 1e-2) == pytest.approx(2 / 3)
    assert share_of(Param(kind="uniform", low=0, high=4), 1) == 0.25
    assert share_of(Param(kind="choice", values=("a", 1)), 1) == 0.75


def test_a_page_looks_for_the_best_as_often_for_many_rows_as_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 10 000 trials one look takes 10 ms: a hundred rows took more than a second."""
    best, looks = StudyState.best.fget, []
    assert best is not None
    monkeypatch.setattr(
        StudyState, "best", property(lambda state: (looks.append(1), best(state))[1])
    )
    counts = []
    for trials in (3, 27):
        state = played(trials=trials).play()
        pictures = pictures_of(state)
        looks.clear()
        view = study_view(state, {}, 0, pictures)
        counts.append(len(looks))
        assert sum(each.is_best for each in view.trials.rows) == 1
    assert counts[0] == counts[1]
