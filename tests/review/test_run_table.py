"""The table of all runs: the language that picks some, their order, groups; and the ledger's rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import BEGIN, History
from tracks_dagster.ledger.effects.projector import Projector
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.review.effects import run_table as reading
from tracks_dagster.review.effects.run_table import Asked, read_table
from tracks_dagster.review.run_filter import Run, parse, pick, refuse_unknown
from tracks_dagster.review.run_table import (
    Spread,
    default_columns,
    differing,
    group,
    names_of,
    shown_spread,
    sort,
    table_csv,
    title,
)
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Json, Kind

RUNS = [
    Run(
        values={
            "run": "gpt-1",
            "state": "succeeded",
            "owner": "ann",
            "intent": "A wide model.",
            "started": "2026-11-01T10:00:00Z",
            "config.lr": 0.01,
            "config.layers": 2,
            "last.loss": 2.5,
            "eval.heldout.accuracy": 0.8,
        }
    ),
    Run(
        values={
            "run": "gpt-2",
            "state": "running",
            "owner": "bob",
            "intent": "A deep one.",
            "started": "2026-11-20T10:00:00Z",
            "config.lr": 0.001,
            "config.layers": 2,
            "last.loss": 2.0,
        }
    ),
    Run(values={"run": "tab-1", "state": "succeeded", "owner": "ann", "experiment": "wide"}),
]


def named(where: str) -> list[str]:
    return [run.name for run in pick(RUNS, parse(where))]


@pytest.mark.parametrize(
    ("where", "runs"),
    [
        ("", ["gpt-1", "gpt-2", "tab-1"]),
        ("lr<0.01", ["gpt-2"]),
        ("lr <= 1e-2", ["gpt-1", "gpt-2"]),
        ("config.lr>=0.01 state=succeeded", ["gpt-1"]),
        ("state=SUCCEEDED", ["gpt-1", "tab-1"]),
        ("state!=succeeded", ["gpt-2"]),
        ("lr!=0.01", ["gpt-2", "tab-1"]),  # of what is not known only this is so
        ("owner:an", ["gpt-1", "tab-1"]),
        ("intent~DEEP", ["gpt-2"]),
        ("wide", ["gpt-1", "tab-1"]),  # of intent, and of experiment
        ('"deep one"', ["gpt-2"]),
        ('intent="A deep one."', ["gpt-2"]),
        ("loss<2.2", ["gpt-2"]),
        ("accuracy>0.5", ["gpt-1"]),
        ("eval.heldout.accuracy>0.5", ["gpt-1"]),
        ("started>2026-11-10", ["gpt-2"]),
        ("started>2026-11-10 started<2026-11-19", []),
        ('started>"2026-11-20 12:00"', []),  # as tables show a time
        ("started>=2026", ["gpt-1", "gpt-2"]),
        ("layers=2.0", ["gpt-1", "gpt-2"]),
        ("owner<5", []),
    ],
)
def test_a_filter_picks_the_runs_of_which_every_condition_is_so(
    where: str, runs: list[str]
) -> None:
    assert named(where) == runs


EARLY, DAY, LATE = (
    "2026-01-30T23:59:00.000000Z",
    "2026-01-31T10:05:33.000000Z",
    "2026-02-01T00:00:00Z",
)
OF_TIMES = [Run(values={"run": each, "started": each}) for each in (EARLY, DAY, LATE)]


@pytest.mark.parametrize(
    ("where", "times"),
    [
        ("started=2026-01-31", [DAY]),
        ("started!=2026-01-31", [EARLY, LATE]),
        ("started<=2026-01-31", [EARLY, DAY]),
        ("started>2026-01-31", [LATE]),
        ("started>=2026-01-31", [DAY, LATE]),
        ("started<2026-01-31", [EARLY]),
        ('started="2026-01-31 10:05"', [DAY]),  # as tables show a time
        ("started>2026-01-31T10:05", [LATE]),
        ("started=2026-01-31T10:05:33", [DAY]),
        (f"started={DAY}", [DAY]),
        ("started=2026-01-31T10:05:33.1", []),
        ("started=2026-01-31T12:05+02:00", [DAY]),
        ("started=2026-01-31T05:05-0500", [DAY]),
        ("started=2026-02", [LATE]),
        ("started>2026", []),
        ("started<=2026-01", [EARLY, DAY]),
        ("started=9999", []),
        ("finished!=2026", [EARLY, DAY, LATE]),
        ("finished<2027", []),
        ("started~10:05", [DAY]),  # a part of the text
    ],
)
def test_a_time_is_as_long_as_it_was_written(where: str, times: list[str]) -> None:
    assert [run.name for run in pick(OF_TIMES, parse(where))] == times


@pytest.mark.parametrize(
    "time",
    [
        *("yesterday", "2026-1-30", "31.01.2026", "7d", "2026-02-30", "2026-01-31T25", "0000"),
        *("2026-01-31+02:00", "2026-01-31T10:05+99:00", "2026-01-31T10:05:33.1234567"),
        "2026-01-31T10:05X",
    ],
)
def test_a_time_that_is_not_one_is_refused_with_what_is_valid(time: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a time; write .*2026-01-31T10:05\+02:00"):
        parse(f"state=running started<{time}")


def test_a_text_is_equal_as_a_text_though_it_looks_like_a_number() -> None:
    texts = (("12.5", ["1.0"], "01"), ("12.50", ["1"], "1"))
    runs = [
        Run(values={"run": run, "tag": tags, "experiment": experiment, "steps": 40})
        for run, tags, experiment in texts
    ]

    def found(where: str) -> list[str]:
        return [run.name for run in pick(runs, parse(where))]

    assert found("run=12.5") == found("tag:1.0") == found("experiment=01") == ["12.5"]
    assert found("run!=12.5") == found("tag=1") == found("experiment=1") == ["12.50"]
    assert found("steps=40.0") == found("steps=4e1") == ["12.5", "12.50"]


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("lr<", "'lr<'"),
        ('intent="open', "'intent=\"open'"),
        ("a=b <5", "'<5'"),
        (" ".join(f"a{n}=1" for n in range(33)), "more than 32 conditions at 'a32=1'"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused_at_its_place(where: str, place: str) -> None:
    with pytest.raises(InvalidInput, match=r"lr<0\.01, state=succeeded") as error:
        parse(where)
    assert place in str(error.value)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("lr<<0.1", r"cannot be read at 'lr<<0\.1'; .*in quotes"),
        ("lr>=", "cannot be read at 'lr>='"),
        ("lr<0.1,state=running", "cannot be read at 'lr<0.1,state=running'"),
        ("state=running or state=refused", "'or' joins no conditions: all of them have to be so"),
        ("not state=running", "'not' joins no conditions"),
        ("state=runing", "state is never 'runing'; did you mean running"),
        ("stage!=ful", "stage is never 'ful'; did you mean full"),
        ("archived=1", "archived is never '1'; there are yes, no"),
        ("step<abc", "step is a number, and 'abc' is not one"),
        ("hours=nan", "hours is a number, and 'nan' is not one"),
    ],
)
def test_a_filter_that_could_fit_no_run_is_refused(where: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse(where)


def test_conditions_may_be_joined_by_and() -> None:
    assert parse("lr<1 and state=running AND wide") == parse("lr<1 state=running wide")
    assert [each.value for each in parse('"and" "or" intent~"a<b"')] == ["and", "or", "a<b"]


def test_a_text_is_compared_with_texts_and_with_what_no_run_has(ledger: Ledger) -> None:
    for where in ("alias<abc", "owner>b", "name<z"):
        assert isinstance(read_table(ledger, Asked(where=where), now=NOW).rows, tuple)


@pytest.mark.parametrize("where", ["lr<abc", "lr>nan", "loss<=low"])
def test_a_number_is_compared_with_numbers_alone(ledger: Ledger, where: str) -> None:
    with pytest.raises(InvalidInput, match=r"Of these runs (lr|loss) is a number"):
        read_table(ledger, Asked(where=where), now=NOW)


def test_a_name_that_no_run_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"No run has a 'layer'; did you mean layers"):
        refuse_unknown("layer", RUNS)


def test_runs_that_lack_the_value_come_last_either_way() -> None:
    assert [run.name for run in sort(RUNS, ["lr"])] == ["gpt-2", "gpt-1", "tab-1"]
    assert [run.name for run in sort(RUNS, ["-lr"])] == ["gpt-1", "gpt-2", "tab-1"]
    assert [run.name for run in sort(RUNS, ["owner", "-run"])] == ["tab-1", "gpt-1", "gpt-2"]


def test_without_a_choice_the_keys_that_differ_are_columns() -> None:
    assert differing(RUNS[:2]) == ["config.lr"]
    columns = default_columns(RUNS[:2])
    assert columns[-3:] == ("last.loss", "eval.heldout.accuracy", "config.lr")
    assert "config.layers" not in columns
    assert "experiment" not in columns  # neither has one
    assert [title(name) for name in columns[-3:]] == [
        "last loss",
        "heldout accuracy",
        "lr",
    ]


def test_imported_runs_show_why_they_ended_and_what_was_validated() -> None:
    values = {"run": "ml.1", "state": "imported", "reason": "completed", "last.loss": 1.0}
    runs = [Run(values={**values, "last.tokens": 9.0, "last.validation_loss": 1.1})]
    columns = default_columns(runs)
    assert columns == ("run", "state", "reason", "last.loss", "last.validation_loss")


def test_a_group_has_mean_and_deviation_of_what_is_a_number() -> None:
    groups = group(RUNS, "config.layers", ["last.loss", "owner"])
    assert list(groups) == ["2", ""]
    runs, spreads = groups["2"]
    assert [run.name for run in runs] == ["gpt-1", "gpt-2"]
    assert list(spreads) == ["last.loss"]
    spread = spreads["last.loss"]
    assert (spread.count, spread.mean, spread.least, spread.most) == (2, 2.25, 2.0, 2.5)
    assert spread.deviation == pytest.approx(0.3535, abs=1e-4)
    assert groups[""][1] == {}


def test_the_duration_of_a_group_is_in_words_as_that_of_a_run() -> None:
    hours = Spread(count=2, mean=40 / 3600, deviation=5 / 3600, least=0.01, most=0.02)
    assert shown_spread("hours", hours, 3) == "40 s ± 5.0 s (2 of 3)"
    assert shown_spread("loss", hours, 2) == "0.01111 ± 0.0014"


@pytest.mark.parametrize(
    "values",
    [(0.000100001, 0.000100002), (100001.0, 100002.0), ([1, 2], [2, 3]), ({"a": 1}, {"a": 2})],
)
def test_values_that_a_cell_shows_alike_are_groups_of_their_own(values: tuple[Json, ...]) -> None:
    runs = [Run(values={"run": f"r-{n}", "config.x": value}) for n, value in enumerate(values)]
    assert len(group(runs, "x", [])) == 2


def test_a_whole_number_is_one_group_however_it_was_written() -> None:
    runs = [Run(values={"run": f"r-{n}", "x": value}) for n, value in enumerate((100000, 1e5))]
    assert list(group(runs, "x", [])) == ["100000"]


def test_a_group_of_very_large_numbers_has_a_mean() -> None:
    runs = [Run(values={"run": f"r-{n}", "last.loss": 1.5e308}) for n in range(3)]
    _, spreads = group(runs, "owner", ["loss"])[""]
    assert spreads["loss"].mean == 1.5e308


def test_csv_has_every_value_whole() -> None:
    assert table_csv(RUNS[1:2], ["run", "lr", "alias"]) == "run,lr,alias\ngpt-2,0.001,\n"


NOW = BEGIN + timedelta(hours=3)
OF_METRICS = ("last", "at", "best", "best_at")


@pytest.fixture
def ledger(store: FakeObjectStore, ledger: Ledger) -> Ledger:
    """A ledger with a finished run, one that trains and one that was refused."""
    over = History("over").declare(intent="Be over.", config={"lr": 0.1}).open().supervise().place()
    over.restore().commit(40).end("completed", last_step=40).finish()
    trains = History("trains").declare(config={"lr": 0.2}, owner="bob").open().supervise().place()
    refused = History("refused").declare(config={"lr": 0.3}).open().supervise().place()
    refused.end("code_error").refuse()
    for history in (over, trains, refused):
        history.write_to(store)
        Projector(store, ledger).project(run_track(history.run_id))
    return ledger


def test_finished_and_refused_runs_are_in_the_table_with_what_the_record_has(
    ledger: Ledger,
) -> None:
    table = read_table(ledger, Asked(order=("lr",)), now=NOW)
    assert [run.name for run in table.rows] == ["over", "trains", "refused"]
    over, trains, refused = (run.values for run in table.rows)
    assert (over["state"], over["step"], over["config.lr"]) == ("succeeded", 40, 0.1)
    assert "last.loss" in over
    assert (trains["state"], trains["owner"]) == ("running", "bob")
    assert trains["hours"] == pytest.approx(3.0)
    assert (refused["state"], refused["reason"]) == ("refused", "code_error")
    assert (table.read, table.is_more) == (3, False)


def test_a_page_of_the_table_is_a_part_of_the_same_order(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "GROWTH", 1)  # the table is read in small parts
    whole = [run.name for run in read_table(ledger, Asked(), now=NOW).rows]
    parts = [read_table(ledger, Asked(limit=2, skip=skip), now=NOW) for skip in (0, 2)]
    assert [run.name for part in parts for run in part.rows] == whole
    assert [part.is_more for part in parts] == [True, False]
    found = read_table(ledger, Asked(where="lr>0.15", limit=1), now=NOW)
    assert (len(found.rows), found.is_more) == (1, True)


def test_only_as_much_is_read_as_a_page_of_the_newest_needs(ledger: Ledger) -> None:
    assert (
        read_table(ledger, Asked(limit=1), now=NOW).read == 2
    )  # one more says that there are others


def test_a_name_in_a_filter_is_checked_against_all_runs(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="did you mean"):
        read_table(ledger, Asked(where="ownr=ann"), now=NOW)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("eval.helout.accuracy", "eval.heldout.accuracy"),
        ("eval.heldout.acuracy", "eval.heldout.accuracy"),
        ("eval.other.accuracy", "eval.heldout.accuracy"),
        ("best.accuracy", "accuracy"),  # of an eval, and of no metric
        ("last.lr", ""),  # of the config
        ("config.loss", ""),
        ("at.mse", ""),
        ("best_at.mse", ""),
    ],
)
def test_a_name_with_its_place_is_looked_for_there_alone(
    store: FakeObjectStore, ledger: Ledger, name: str, meant: str
) -> None:
    history = History("measured").declare(config={"lr": 0.4}).open().supervise().place().restore()
    history.commit(20, metrics={"loss": 2.0})
    for suite, metrics in (("heldout", {"accuracy": 0.8}), ("other", {"mse": 0.1})):
        history.open_eval(history.state.checkpoints[-1].ref, suite=suite)
        history.end_eval(history.state.evals[-1].opened, metrics=metrics)
    history.write_to(store)
    Projector(store, ledger).project(run_track("measured"))
    with pytest.raises(InvalidInput, match=f"No run has a '{name}'.*{meant}"):
        read_table(ledger, Asked(where=f"{name}<9"), now=NOW)
    for known in (
        "eval.heldout.accuracy",
        "heldout.accuracy",
        "accuracy",
        "best.loss",
        "config.lr",
    ):
        read_table(ledger, Asked(where=f"state=succeeded {known}<-9"), now=NOW)  # refuses nothing


def test_a_run_is_read_as_what_was_used_and_what_may_be_used(
    store: FakeObjectStore, ledger: Ledger
) -> None:
    """Its newest attempt's config; metrics and evals of the newest checkpoint outside of quarantine,
    whichever was recorded last."""
    history = History("r").declare().open().place().restore()
    history.commit(10, metrics={"loss": 3.0}).commit(20, metrics={"loss": 2.0}).end("gpu_oom")
    history.open(config={**history.state.declared.config, "micro_batch": 1}).place().restore()
    history.commit(30, metrics={"loss": 0.1})
    by_step = {each.ref.step: each.ref for each in history.state.checkpoints}
    for step, accuracy in ((30, 0.99), (20, 0.8), (10, 0.7)):  # the oldest is measured last
        history.open_eval(by_step[step])
        history.end_eval(history.state.evals[-1].opened, metrics={"accuracy": accuracy})
    history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, by_step[30]).write_to(store)
    Projector(store, ledger).project(run_track("r"))
    (run,) = read_table(ledger, Asked(where="run=r"), now=BEGIN + timedelta(days=1)).rows
    assert run.get("micro_batch") == 1
    assert run.get("last.loss") == 2.0
    assert run.get("accuracy") == 0.8


@pytest.mark.parametrize(
    ("prices", "over", "refused"),
    [
        (None, None, None),
        (Prices(currency="USD", per_device_hour={"cpu": 3.0}), 0.1, 0.1),
        (Prices(currency="USD", pools={"spot": {"cpu": 3.0}}), None, None),  # nobody ran there
        (Prices(currency="USD", per_device_hour={"h100": 3.0}), None, None),
    ],
)
def test_money_is_what_ended_attempts_cost_by_the_price_table(
    prices: Prices | None, over: float | None, refused: float | None, ledger: Ledger
) -> None:
    rows = read_table(ledger, Asked(), now=NOW, prices=prices).rows
    found = {run.name: run.get("money") for run in rows}
    assert found == {"over": approx(over), "trains": None, "refused": approx(refused)}
    dear = read_table(ledger, Asked(where="money>0.05"), now=NOW, prices=prices).rows
    assert {run.name for run in dear} == {name for name, cost in found.items() if cost}
    by_money = read_table(ledger, Asked(order=("money",)), now=NOW, prices=prices).rows
    assert by_money[-1].get("money") is None


def approx(value: float | None) -> Any:
    return None if value is None else pytest.approx(value)


def test_a_metric_has_its_newest_and_its_best_value_each_with_its_step(
    store: FakeObjectStore, ledger: Ledger
) -> None:
    """The newest of what was reported, by no checkpoint too; the best of a checkpoint."""
    history = History("r").declare().open().place().restore()
    history.commit(10, metrics={"loss": 2.0, "acc": 0.9}).commit(
        20, metrics={"loss": 2.5, "acc": 0.8}
    )
    metrics = {"loss": 3.0, "val_loss": 2.7}
    history.end(
        "code_error", last_step=25, metrics=metrics, metric_steps={"loss": 25, "val_loss": 15}
    )
    history.refuse().write_to(store)
    Projector(store, ledger).project(run_track("r"))
    (run,) = read_table(ledger, Asked(where="run=r"), now=NOW).rows
    found = {key: each for key, each in run.values.items() if key.partition(".")[0] in OF_METRICS}
    assert found == {
        "last.loss": 3.0,
        "at.loss": 25,
        "best.loss": 2.0,
        "best_at.loss": 10,
        "last.acc": 0.8,
        "at.acc": 20,
        "best.acc": 0.9,
        "best_at.acc": 10,
        "last.val_loss": 2.7,
        "at.val_loss": 15,
    }
    assert "last.val_loss" in default_columns([run])
    titles = ["last loss", "last loss at step", "best loss", "best loss at step"]
    assert [title(f"{each}.loss") for each in OF_METRICS] == titles
    asked = Asked(where="best.loss<2.1 at.loss=25", names=("best_at.loss",))
    (short,) = read_table(ledger, asked, now=NOW).rows
    assert short.get("best_at.loss") == 10


def test_a_choice_of_names_has_each_once_and_so_many_at_most() -> None:
    """A page has links for each column that hold all others: its size grows with their square."""
    assert names_of("loss, step,loss,,step") == ("loss", "step")
    assert len(names_of(",".join(f"m{n}" for n in range(100)))) == 100
    with pytest.raises(InvalidInput, match=r"'m0,m1.*… has 101 names; choose at most 100\."):
        names_of(",".join(f"m{n}" for n in range(101)))
