"""`tracks runs`: the table of all runs in a terminal, as CSV, as JSON, in groups."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.histories import History
from tracks_dagster.review.effects.saved_views import save_view
from tracks_dagster.settings import Settings
from tracks_dagster.stores.journals import journal_prefix
from tracks_dagster.track.bodies import ViewSaved
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import canonical_json
from tracks_dagster.wiring import App, build


@pytest.fixture
def app(home: Path) -> App:
    """Six runs of two sizes, the newest without a checkpoint."""
    app = build(Settings.from_environment())
    for number in range(6):
        history = History(f"r-{number}").declare(config={"lr": number / 100, "wide": number % 2})
        history.open().supervise().place().restore()
        if number < 5:
            history.commit(40, metrics={"loss": float(number)})
        if number == 0:
            history.end("completed", last_step=40).finish()
        history.write_to(app.store)
    app.projector.scan()
    return app


def test_a_filter_an_order_and_columns_choose_what_is_printed(app: App, call: Call) -> None:
    shown = call("runs", "--where", "lr<0.03", "--sort", "-lr", "--columns", "run,loss", "--csv")
    assert shown.stdout == "run,loss\nr-2,2.0\nr-1,1.0\nr-0,0.0\n"
    found = json.loads(call("runs", "--where", "loss=4", "--json").stdout)
    assert [run["run"] for run in found] == ["r-4"]
    assert "5 runs of more; --limit" in call("runs", "--limit", "5").stdout
    cut = call("runs", "--limit", "5", "--json")
    assert len(json.loads(cut.stdout)) == 5
    assert "5 runs of more; --limit" in cut.stderr


def test_a_filter_that_the_ledger_decides_alone_does_not_say_that_there_is_no_run(
    app: App, call: Call
) -> None:
    for where in ("state=cancelled", "lr>9"):
        assert call("runs", "--where", where).stdout == "No run is so.\n"


def test_groups_are_of_all_runs_and_say_how_many_have_the_value(app: App, call: Call) -> None:
    shown = call("runs", "--group", "wide", "--columns", "loss", "--limit", "1", "--json")
    groups = {each["wide"]: each for each in json.loads(shown.stdout)}
    assert (groups["0"]["runs"], groups["1"]["runs"]) == (3, 3)
    assert groups["0"]["columns"]["loss"] == {
        "count": 3,
        "mean": 2.0,
        "deviation": pytest.approx(2.0),
        "least": 0.0,
        "most": 4.0,
    }
    assert "(2 of 3)" in call("runs", "--group", "wide", "--columns", "loss").stdout


def test_a_group_has_neither_its_own_key_nor_a_seed_among_its_columns(app: App, call: Call) -> None:
    for number in range(2):
        history = History(f"s-{number}").declare(config={"lr": 0.1, "data_seed": number})
        history.open().place().restore().commit(40).write_to(app.store)
    app.projector.scan()
    shown = call("runs", "--group", "lr", "--where", "s-", "--json")
    (found,) = json.loads(shown.stdout)
    assert "last.loss" in found["columns"]
    assert {"config.lr", "config.data_seed"}.isdisjoint(found["columns"])
    asked = call("runs", "--group", "lr", "--columns", "data_seed", "--where", "s-", "--json")
    (found,) = json.loads(asked.stdout)
    assert found["columns"]["data_seed"]["mean"] == 0.5  # somebody chose it


def test_a_run_has_the_state_that_status_shows(app: App, call: Call) -> None:
    History("r-late").declare().open().write_to(app.store)  # no daemon starts it
    app.projector.scan()
    states = {
        command: {line[key]: line["state"] for line in json.loads(call(command, "--json").stdout)}
        for command, key in (("runs", "run"), ("status", "run_id"))
    }
    assert states["runs"] == states["status"]
    assert (states["runs"]["r-late"], states["runs"]["r-1"]) == ("waiting", "running")


def test_a_run_that_trains_has_what_it_reported_last_with_its_step(app: App, call: Call) -> None:
    """Its record has its newest checkpoint, of step 40 and without a validation, or none yet."""
    step = {"kind": "step", "t": "2026-01-31T02:00:00.000000Z", "step_s": 0.5, "data_s": 0.1}
    lines = [
        {"kind": "evaluated", "t": step["t"], "step": 42, "metrics": {"val_loss": 0.5}},
        {**step, "step": 45, "loss": 0.25, "metrics": {}},
    ]
    launch_id = History("r-5").declare().open().launch_id
    for run_id in ("r-0", "r-4", "r-5"):  # r-0 has ended
        prefix = journal_prefix(AttemptRef(run_id, 1), launch_id, 0)
        app.store.put(f"{prefix}{0:012d}.jsonl", b"".join(canonical_json(x) + b"\n" for x in lines))
    columns = "run,step,loss,at.loss,best.loss,val_loss,at.val_loss"
    shown = call("runs", "--where", "lr!=0.01", "--columns", columns, "--sort", "lr", "--csv")
    assert shown.stdout.splitlines()[1:] == [
        "r-0,40,0.0,40,0.0,,",
        "r-2,40,2.0,40,2.0,,",
        "r-3,40,3.0,40,3.0,,",
        "r-4,45,0.25,45,4.0,0.5,42",
        "r-5,45,0.25,45,,0.5,42",
    ]


def test_hours_have_a_head_that_fits_their_words(app: App, call: Call) -> None:
    rows = call("runs", "--columns", "run,hours").stdout
    assert rows.split()[:2] == ["run", "duration"]
    groups = call("runs", "--group", "wide", "--columns", "hours").stdout
    assert groups.split()[:3] == ["wide", "runs", "duration"]
    refused = call("runs", "--sort", "duration")
    assert (refused.exit_code, "write hours" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "option",
    ["--sort=-", "--sort=--", "--sort=loss,-", "--sort=,", "--columns=,", "--columns= , "],
)
def test_names_without_a_name_are_wrong_use(option: str, app: App, call: Call) -> None:
    refused = call("runs", option)
    assert refused.exit_code == 2
    assert "has no name" in refused.stderr


@pytest.mark.parametrize("command", ["runs", "status"])
def test_a_filter_that_cannot_be_read_is_wrong_use(command: str, app: App, call: Call) -> None:
    for wrong in ("lr<", "nonsens=1"):
        refused = call(command, "--where", wrong)
        assert refused.exit_code == 2, wrong
        assert wrong.rstrip("<=1") in refused.stderr


def test_status_has_the_same_filters(app: App, call: Call) -> None:
    def found(where: str) -> list[str]:
        shown = call("status", "--where", where, "--json")
        assert shown.exit_code == 0, shown.stderr
        return [line["run_id"] for line in json.loads(shown.stdout)]

    assert sorted(found("lr<0.03")) == ["r-0", "r-1", "r-2"]
    assert found("state=succeeded") == ["r-0"]
    assert call("status", "--where", "lr>9").stdout == "No run is so.\n"
    assert call("status", "r-1", "--where", "lr<1").exit_code == 2
    call("runs", "archive", "r-0", "--why", "It was a try.", "--by", "ann")
    assert found("lr<0.02") == ["r-1"]
    assert found("archived=yes") == ["r-0"]


def test_tags_a_name_and_the_archive_are_records_of_the_run(app: App, call: Call) -> None:
    assert call("runs", "tag", "r-1", "paper", "old", "--by", "ann").exit_code == 0
    shown = call("runs", "tag", "r-1", "-old", "hot", "--by", "ann")
    assert shown.stdout == "r-1: hot, paper: record 7.\n"
    assert "as it was already" in call("runs", "tag", "r-1", "hot").stdout
    call("runs", "rename", "r-1", "The wide one", "--by", "ann")
    call("runs", "archive", "r-0", "--why", "It was a try.", "--by", "ann")

    def found(where: str) -> list[str]:
        table = call("runs", "--where", where, "--json")
        return [run["run"] for run in json.loads(table.stdout)]

    assert found("tag:paper") == found("tag=hot") == found('"wide one"') == ["r-1"]
    assert found("tag:pap") == []
    assert "r-0" not in found("")
    assert found("archived=yes") == ["r-0"]
    assert "r-0" not in call("status").stdout
    assert "tagged hot; no longer tagged old by ann" in call("explain", "r-1", "--records").stdout
    call("runs", "archive", "r-0", "--back", "--why", "It is needed.", "--by", "ann")
    assert "r-0" in found("")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tag", "r-1", "a b"), "is not a tag"),
        (("tag", "r-1", "x", "-x"), "given and taken away"),
        (("tag", "none", "x"), "none"),
        (("rename", "r-1", "x" * 121), "at most 120"),
        (("archive", "r-1", "--why", "x y"), "trains"),
    ],
)
def test_a_label_that_cannot_be_is_refused_and_nothing_is_written(
    arguments: tuple[str, ...], words: str, app: App, call: Call
) -> None:
    before = len(app.tracks.records("runs/r-1"))
    refused = call("runs", *arguments, "--by", "ann")
    assert refused.exit_code != 0
    assert words in refused.stderr
    assert len(app.tracks.records("runs/r-1")) == before


def test_a_saved_view_is_shown_to_everybody_until_it_is_removed(app: App, call: Call) -> None:
    asks = ("--where", "lr<0.03", "--sort", "-lr", "--columns", "run,loss")
    saved = call("runs", *asks, "--save-view", "small", "--csv")
    assert saved.stdout == "run,loss\nr-2,2.0\nr-1,1.0\nr-0,0.0\n"
    assert saved.stderr == "The view small is saved: record 0.\n"
    assert "as it was already" in call("runs", *asks, "--save-view", "small").stderr
    assert call("runs", "--view", "small", "--csv").stdout == saved.stdout
    beside = call("runs", "--view", "small", "--where", "lr=0.02", "--columns", "run", "--csv")
    assert beside.stdout == "run\nr-2\n"
    call("runs", "--view", "small", "--group", "wide", "--save-view", "grouped")
    assert call("runs", "--view", "grouped", "--json").stdout.count('"wide"') == 2
    listed = json.loads(call("runs", "views", "--json").stdout)
    assert [view["name"] for view in listed] == ["grouped", "small"]
    assert "--where 'lr<0.03' --sort -lr --columns run,loss" in call("runs", "views").stdout
    assert "view_saved" not in call("explain", "r-1", "--records").stdout

    removed = call("runs", "remove-view", "small", "--why", "It is done.", "--by", "ann")
    assert removed.stdout == "the view small is removed: record 2.\n"
    gone = call("runs", "--view", "small")
    assert gone.exit_code == 2
    assert "ann removed the view 'small' on" in gone.stderr
    assert "(It is done.)" in gone.stderr
    assert "did you mean grouped?" in call("runs", "--view", "groupd").stderr
    assert call("runs", "--where", "lr<1", "--save-view", "small").exit_code == 0
    assert len(call("runs", "--view", "small", "--csv").stdout.splitlines()) == 7


@pytest.mark.parametrize(
    ("view", "rows", "words"),
    [
        (ViewSaved(name="v", by="ann", columns=("run", "gone")), 6, "none of these runs has gone"),
        (ViewSaved(name="v", by="ann", order=("gone",)), 6, "No run has a 'gone'"),
        (ViewSaved(name="v", by="ann", filter="gone<1"), 0, "No run has a 'gone'"),
    ],
)
def test_a_view_of_what_no_run_has_any_more_names_it(
    view: ViewSaved, rows: int, words: str, app: App, call: Call
) -> None:
    save_view(app.tracks, view)
    shown = call("runs", "--view", "v", "--json")
    assert shown.exit_code == 0
    assert len(json.loads(shown.stdout)) == rows
    assert words in shown.stderr
    assert "The view 'v'" in shown.stderr


@pytest.mark.parametrize(
    ("name", "asks", "words"),
    [
        ("a b", (), "is not a name of a view"),
        ("wrong", ("--where", "lr<"), "cannot be read"),
        ("wrong", ("--sort", "nonsens"), "nonsens"),
        ("long", ("--columns", "x" * 1001), "at most 1000"),
    ],
)
def test_a_view_that_cannot_be_is_not_saved(
    name: str, asks: tuple[str, ...], words: str, app: App, call: Call
) -> None:
    refused = call("runs", *asks, "--save-view", name)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert app.tracks.find_views() is None


def test_no_view_is_saved_beyond_the_bound(
    app: App, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.review.effects.saved_views.VIEWS_MAX", 1)
    assert call("runs", "--save-view", "one").exit_code == 0
    assert "remove one first" in call("runs", "--save-view", "two").stderr
    assert call("runs", "--where", "lr<1", "--save-view", "one").exit_code == 0
