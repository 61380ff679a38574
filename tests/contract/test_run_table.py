"""The table of runs as the ledger gives it, beside the pure filter and order over all of its runs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.histories import BEGIN, History
from tests.seeds import fresh_seeds
from tracks_dagster.ledger.effects.database.sql_ledger import SqlLedger
from tracks_dagster.ledger.facts.fact import row
from tracks_dagster.ledger.facts.run import RUN, run_view
from tracks_dagster.ledger.ports import Cursor, Row
from tracks_dagster.review.effects import run_table as reading
from tracks_dagster.review.effects.run_table import Asked, read_table
from tracks_dagster.review.run_filter import NUMBERS, TIMES, Run, parse, pick
from tracks_dagster.review.run_filter import WORDS as FIELD_WORDS
from tracks_dagster.review.run_table import sort
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json, canonical_json, format_time

NOW = BEGIN + timedelta(days=9)
RUNS, QUESTIONS = 40, 40
KEYS = (
    *("step", "name", "lr", "optim.lr", "config.lr", "last.loss", "größe"),
    *("0", "-x", "a/b", "@", "null", "heldout"),
)
WORDS = ("ann", "running", "wi", "40", "paper", "yes")
METRICS = ("loss", "lr", "acc.top-5", "eval.heldout.acc")
VALUES: tuple[Json, ...] = (
    *(0, 1, -3, 10**20, 0.1, 1e-3, 2.0, 1e300),
    *(
        "1e3",
        "nan",
        "inf",
        " 7 ",
        "1_0",
        "adam",
        "Adam",
        "É",
        "é",
        "k",
        "\N{KELVIN SIGN}",
        "",
        "10",
    ),
    *(True, False, None, [1, "a"], {"lr": 0.1, "x": None}, 'a "word"', "50%", "2026-11-02"),
)


def column(value: Json) -> str:
    return canonical_json(value).decode()


class Made:
    """A ledger with random runs, and the same runs as a filter has them."""

    def __init__(
        self, ledger: SqlLedger, rng: random.Random, *, archived: tuple[Any, ...] = (BEGIN,)
    ) -> None:
        self.archived = archived
        self.ledger = ledger
        self.rng = rng
        self.base = row(RUN, run_view(History("base").declare().open().state))
        self.rows = [self._row(number) for number in range(RUNS)]
        ledger.apply(
            "runs/base",
            expected=None,
            advanced=Cursor(seq=0, sha256="0"),
            rows={"training_runs": self.rows},
        )
        newest = sorted(self.rows, key=lambda each: str(each["run_id"]))
        newest.sort(key=lambda each: each["declared_at"], reverse=True)
        self.runs = [as_run(each) for each in newest]

    def some(self, names: tuple[str, ...], values: tuple[Json, ...]) -> dict[str, Json]:
        return {name: self.rng.choice(values) for name in names if self.rng.random() < 0.6}

    def _row(self, number: int) -> Row:
        choose = self.rng.choice
        numbers = tuple(each for each in VALUES if type(each) in (int, float))
        return {
            **self.base,
            "run_id": f"r-{number:02d}",
            "declared_at": BEGIN + timedelta(hours=choose((0, 1, 1, 2)), microseconds=number % 3),
            "finished_at": choose((None, BEGIN + timedelta(hours=choose((3, 30.5))))),
            "state": choose(("running", "succeeded")),
            "owner": choose(("ann", "Ann", "bob", "10", "É")),
            "experiment": choose((None, "wide", "Deep")),
            "step": choose((None, 0, 40, 100)),
            "device_seconds": choose((0.0, 0.1, 3600.0)),
            "alias": choose((None, "best")),
            "called": choose((None, "The wide one")),
            "tags_json": column(choose(((), ("paper",), ("paper", "10")))),
            "archived_at": choose((None, None, *self.archived)),
            "newest_config_json": column(self.some(KEYS, VALUES)),
            "newest_metrics_json": column(self.some(METRICS, numbers)),
            "measured_json": column(
                {suite: self.some(METRICS, numbers) for suite in ("heldout", "größe.x")}
            ),
        }

    def question(self) -> tuple[str, tuple[str, ...]]:
        """Return a filter and an order."""
        choose, names = self.rng.choice, [*self.names(), "run", "state", "owner", "experiment"]
        names += ["step", "hours", "started", "finished", "device_hours", "alias", "tag", "name"]
        names += ["archived"] * 2
        conditions = []
        for _ in range(self.rng.randrange(3)):
            name = choose(names)
            times = [BEGIN.isoformat()[:length] for length in (4, 10, 13, 16, 32)]
            value = choose(times if name in TIMES else (*VALUES, *WORDS, times[2]))
            if name in NUMBERS:
                value = choose((0, 1, -3, 10**20, 0.1, 40, "1e3", "10"))
            elif name in FIELD_WORDS:
                value = choose([*FIELD_WORDS[name], FIELD_WORDS[name][0].upper()])
            text = str(value).replace('"', "") or "x"
            sign = choose(("<", "<=", ">", ">=", "=", "!=", ":", "~"))
            conditions.append(f'{name}{sign}"{text}"')
        if self.rng.random() < 0.2:
            conditions.append(choose(("wide", "r-1")))
        order = tuple(choose(("", "-")) + choose(names) for _ in range(self.rng.randrange(3)))
        return " ".join(conditions), order

    def names(self) -> list[str]:
        """Return the names of values, whole and short."""
        found = {key for run in self.runs for key in run.values if "." in key}
        short = {key.partition(".")[2] for key in found} | {"acc", "top-5"}
        known = {key for key in found | short if any(run.get(key) is not None for run in self.runs)}
        return sorted(known)


def as_run(stored: Row) -> Run:
    """Return the run of a row, made without the reader."""

    def prefixed(name: str, prefix: str) -> Mapping[str, Json]:
        return {f"{prefix}.{key}": each for key, each in parse_json(stored[name]).items()}

    declared, finished = stored["declared_at"], stored["finished_at"]
    values: dict[str, Json] = {
        "run": stored["run_id"],
        "state": stored["state"],
        "project": stored["model_family"],
        "owner": stored["owner"],
        "team": stored["team"],
        "class": stored["workload_class"],
        "experiment": stored["experiment"],
        "stage": stored["stage"],
        "intent": stored["intent"],
        "started": format_time(declared),
        "finished": None if finished is None else format_time(finished),
        "hours": max(0.0, ((finished or NOW) - declared).total_seconds() / 3600),
        "step": stored["step"],
        "steps": stored["max_steps"],
        "attempts": stored["attempt_count"],
        "ranks": stored["ranks"],
        "reason": stored["newest_reason"],
        "why": stored["state_why"],
        "device_hours": stored["device_seconds"] / 3600,
        "dataset": stored["dataset"],
        "commit": stored["git_commit"],
        "alias": stored["alias"],
        "name": stored["called"],
        "tag": parse_json(stored["tags_json"]) or None,
        "archived": "no" if stored["archived_at"] is None else "yes",
        **prefixed("newest_config_json", "config"),
        **prefixed("newest_metrics_json", "last"),
    }
    for suite, metrics in parse_json(stored["measured_json"]).items():
        values |= {f"eval.{suite}.{key}": each for key, each in metrics.items()}
    return Run(values={key: each for key, each in values.items() if each is not None})


def names_of(runs: Any) -> list[str]:
    return [run.name for run in runs]


def test_the_ledger_and_the_filter_over_all_runs_agree_on_random_tables(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (seed,) = fresh_seeds(1)
    rng = random.Random(seed)
    monkeypatch.setattr(reading, "GROWTH", rng.choice((1, 2, 4)))
    monkeypatch.setattr(reading, "WHOLE_MAX", 9)
    made = Made(ledger, rng)
    for _ in range(QUESTIONS):
        where, order = made.question()
        of_all = "archived" in f"{where} {' '.join(order)}"
        known = [run for run in made.runs if of_all or run.values["archived"] == "no"]
        expected = sort(pick(known, parse(where)), order)
        skip, limit = rng.choice((0, 5)), rng.choice((1, 8, 100))
        asked = Asked(where=where, order=order, limit=limit, skip=skip)
        refused = ""
        try:
            table = read_table(ledger, asked, now=NOW)
        except InvalidInput as error:
            refused = str(error)
        if refused:  # a text beside numbers, which is so of no run
            assert (expected, "is a number, and" in refused) == ([], True), (where, order)
            continue
        assert table.rows == tuple(expected[skip : skip + limit]), (where, order)
        assert table.is_more is (len(expected) > skip + limit)
        names = ("lr", "größe", "eval.heldout.loss", "hours")
        chosen = read_table(ledger, replace(asked, names=names), now=NOW)
        assert [[run.get(name) for name in ("run", *names)] for run in chosen.rows] == [
            [run.get(name) for name in ("run", *names)] for run in table.rows
        ]


def test_a_table_that_stopped_at_its_bound_says_so(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(ledger, random.Random(1), archived=())
    monkeypatch.setattr(reading, "READ_MAX", RUNS)
    whole = read_table(ledger, Asked(order=("run",)), now=NOW)
    assert (whole.read, whole.is_cut) == (RUNS, False)
    monkeypatch.setattr(reading, "READ_MAX", RUNS - 1)
    cut = read_table(ledger, Asked(order=("run",)), now=NOW)
    assert (cut.read, cut.is_cut) == (RUNS - 1, True)
    assert names_of(cut.rows) == sorted(names_of(made.runs[:-1]))
    early = read_table(ledger, Asked(where="r-", limit=2), now=NOW)
    assert (early.is_cut, early.is_more) == (False, True)  # the newest that fit are known


def test_a_name_that_only_an_old_run_has_is_not_a_mistake(
    ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    Made(ledger, random.Random(2))
    monkeypatch.setattr(reading, "READ_MAX", 0)
    assert read_table(ledger, Asked(where="größe!=9"), now=NOW).rows == ()
    monkeypatch.setattr(reading, "READ_MAX", RUNS)
    with pytest.raises(InvalidInput, match="did you mean"):
        read_table(ledger, Asked(where="loses<1"), now=NOW)
