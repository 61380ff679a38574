"""The page of all runs: its address is its state, and every choice is a link."""

from __future__ import annotations

from collections.abc import Mapping
from html import unescape
from urllib.parse import parse_qsl, urlsplit

from tracks_dagster.review.run_filter import Run, parse, pick
from tracks_dagster.track.records import Json
from tracks_dagster.wings.watch.board.all_runs import AllRuns, Part, all_runs_view, groups_view
from tracks_dagster.wings.watch.board.effects.pages import render_part


def run(run_id: str, state: str = "succeeded", **values: Json) -> Run:
    config = {f"config.{key}": each for key, each in values.items() if key in ("lr", "seed")}
    others = {key: each for key, each in values.items() if f"config.{key}" not in config}
    return Run(values={"run": run_id, "state": state, **config, **others})


RUNS = [
    run("r-0", lr=0.1, seed=1, **{"last.loss": 2.0}),
    run("r-1", lr=0.1, seed=2, **{"last.loss": 3.0}),
    run("r-2", "running", lr=0.2, name="<b>wide</b>", tag=["a", "b"]),
]
COLUMNS = ("run", "state", "config.lr", "config.seed", "last.loss")


def view(asked: Mapping[str, str] | None = None, runs: list[Run] = RUNS) -> AllRuns:
    return all_runs_view(runs, COLUMNS, asked or {}, Part(size=100))


def asks(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query))


def test_one_link_compares_what_is_listed() -> None:
    runs = [Run(values={"run": f"r{n}", "state": "succeeded"}) for n in range(60)]
    for listed, label in ((runs[:20], "compare these 20"), (runs, "compare the first 50")):
        link = view(runs=listed).choices[-1]
        assert link.label == label
        assert len(parse_qsl(urlsplit(link.address).query)) == min(50, len(listed))
    assert [each.label for each in view(runs=runs[:1]).choices] == ["only what differs"]


def test_a_head_sorts_by_its_column_alone_and_with_shift_after_the_others() -> None:
    asked = {"where": "lr<1", "sort": "-lr,seed"}
    lr, seed, loss = view({"where": "lr<1", "sort": "-config.lr,config.seed"}).titles
    assert (lr.mark, seed.mark, loss.mark) == ("▼1", "▲2", "")
    assert asks(lr.address) == {"where": "lr<1", "sort": "config.lr"}
    assert asks(lr.then)["sort"] == "config.lr,config.seed"
    assert asks(loss.address)["sort"] == "last.loss"  # the best at the top
    assert asks(loss.then)["sort"] == "-config.lr,config.seed,last.loss"
    assert "by lr, the largest first, then by seed" in view(asked).summary


def test_columns_are_moved_taken_away_and_added_by_links() -> None:
    _, seed, _ = view().titles
    ways = {each.label: asks(each.address)["columns"] for each in seed.ways}
    assert ways["move left"] == "config.seed,config.lr,last.loss"
    assert ways["take away"] == "config.lr,last.loss"
    offered = {each.label: asks(each.address)["columns"] for each in view().offered}
    assert offered == {"tag": "config.lr,config.seed,last.loss,tag"}


def test_what_is_the_same_in_all_rows_is_left_out_where_that_is_asked_for() -> None:
    shown = view({"differ": "1"}, RUNS[:2])
    assert [each.name for each in shown.titles] == ["seed", "last loss"]
    assert shown.same == ("lr 0.1",)
    assert shown.choices[0].is_chosen
    assert "differ" not in asks(shown.choices[0].address)


def test_groups_have_means_with_spread_and_lead_to_their_runs() -> None:
    found = groups_view(RUNS, ("config.lr", "last.loss"), {"group": "lr", "where": "r-"})
    first, second = found.groups
    assert (first.name, first.count, first.cells) == ("0.1", 2, ("2.5 ± 0.71",))
    assert asks(first.address) == {"where": 'r- lr="0.1"'}
    assert second.cells == ("",)
    assert "0.1" in render_part("runs.html", found)
    for by in ("lr", "config.lr"):  # its own key is not a column of a group
        shown = groups_view(RUNS, COLUMNS, {"group": by}).titles
        assert [each.name for each in shown] == ["seed", "last loss"]


def test_a_group_leads_to_its_own_runs_or_nowhere() -> None:
    """A filter takes capitals as small letters, and a part of a list as the list."""
    values: tuple[Json, ...] = (
        *(None, "", 'a "b"', "A", "a", "one", 1, [1, 2], 1.0, 2, True, {"k": 1}, ["x"], ["x", "y"]),
        *("x, y", "two words", 0.1, 1e30, "3"),
    )
    runs = [Run(values={"run": f"g-{n}", "config.k": each}) for n, each in enumerate(values)]
    groups = {each.name: each for each in groups_view(runs, (), {"group": "k"}).groups}
    linked = {name: each for name, each in groups.items() if each.address}
    for name, each in linked.items():
        assert len(pick(runs, parse(asks(each.address)["where"]))) == each.count, name
    assert {"one", "two words", "0.1", "3"} <= {*linked}
    assert not {"–", "A", "a", "1", "[1, 2]", 'a "b"'} & {*linked}


def test_a_hostile_name_is_text_and_says_which_run_it_is_of() -> None:
    html = render_part("runs.html", view())
    assert "<b>" not in html
    assert "<b>wide</b>" in unescape(html)
    assert "r-2 ·" in html
