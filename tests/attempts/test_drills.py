"""Drills as a person writes them."""

from __future__ import annotations

import pytest

from tracks_dagster.attempts.drills import KINDS, Action, fit_drill, parse_drill
from tracks_dagster.track.bodies import Drill
from tracks_dagster.track.errors import InvalidInput

CONFIG = {"steps": 40, "micro_batch": 4}


@pytest.mark.parametrize(
    ("text", "drill"),
    [
        ("preempt@23", Drill(kind="preempt", step=23, grace_s=30.0)),
        ("preempt@23,grace=0", Drill(kind="preempt", step=23, grace_s=0.0)),
        ("preempt@1,grace=2.5", Drill(kind="preempt", step=1, grace_s=2.5)),
        ("gpu_oom@31", Drill(kind="gpu_oom", step=31)),
        ("code_error@0", Drill(kind="code_error", step=0)),
        ("bad_snapshot@0", Drill(kind="bad_snapshot", step=0)),
        ("hang@12", Drill(kind="hang", step=12)),
        ("hang@12,rank=1,how=loader", Drill(kind="hang", step=12, rank=1, how="loader")),
        ("spike@7,steps=3", Drill(kind="spike", step=7, steps=3)),
        ("sigkill@9,rank=0", Drill(kind="sigkill", step=9, rank=0)),
        ("slow@20,rank=5,factor=3", Drill(kind="slow", step=20, rank=5, factor=3.0)),
        ("slow@20", Drill(kind="slow", step=20, rank=None, factor=2.0)),
        ("data_slow@20,factor=1.5", Drill(kind="data_slow", step=20, factor=1.5)),
        ("flat_validation@7", Drill(kind="flat_validation", step=7)),
        ("idle_device@7", Drill(kind="idle_device", step=7)),
    ],
)
def test_a_drill_says_what_fails_and_at_which_step(text: str, drill: Drill) -> None:
    assert parse_drill(text) == drill


@pytest.mark.parametrize(
    "text",
    [
        "",
        "preempt",
        "preempt@",
        "preempt@-1",
        "preempt@0",  # nothing is reported before the first step
        "preempt@2.5",
        "preempt@²",  # a digit to str.isdigit, none to int
        "preempt@23,",
        "preempt@23,grace",
        "preempt@23,grace=soon",
        "preempt@23,grace=-1",
        "preempt@23,grace=nan",
        "preempt@23,grace=inf",
        "preempt@23,patience=3",
        "preempt@23,rank=1",
        "gpu_oom@31,grace=0",
        "gpu_oom@0",
        "hang@3,how=forever",
        "hang@3,rank=-1",
        "spike@3,steps=0",
        "spike@3,steps=²",
        "slow@3,factor=1",  # nothing would be slower
        "slow@3,factor=100.5",
        "slow@3,factor=nan",
        "idle_device@3,rank=1",
        "meteor@3",
    ],
)
def test_anything_else_is_refused_with_an_example_of_what_is_valid(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_drill(text)


def test_every_kind_can_be_written_and_says_what_should_come_of_it() -> None:
    for name, kind in KINDS.items():
        assert parse_drill(f"{name}@{kind.first_step}").kind == name
        assert kind.plays
        assert (kind.reason is None) == (kind.action is Action.CONTINUES), name


@pytest.mark.parametrize(
    ("micro_batch", "limit"),
    [(2, 1), (3, 1), (4, 2), (40, 20)],  # half, rounded down: what the remediation halves to
)
def test_an_oom_drill_stops_once_the_micro_batch_is_halved(micro_batch: int, limit: int) -> None:
    config = {"steps": 40, "micro_batch": micro_batch}
    drill = fit_drill(parse_drill("gpu_oom@31"), config, {}, ranks=1)
    assert drill.micro_batch_max == limit


def test_an_oom_drill_on_a_micro_batch_of_one_could_not_be_remedied() -> None:
    with pytest.raises(InvalidInput, match="and it is 1: set it to 2 or more"):
        fit_drill(parse_drill("gpu_oom@31"), {"steps": 40, "micro_batch": 1}, {}, ranks=1)


def test_a_drill_after_the_last_step_would_never_fire() -> None:
    assert fit_drill(parse_drill("preempt@40"), CONFIG, {}, ranks=1).step == 40
    with pytest.raises(InvalidInput, match="40 steps"):
        fit_drill(parse_drill("preempt@41"), CONFIG, {}, ranks=1)


def test_a_drill_of_a_rank_that_the_run_does_not_have_is_refused() -> None:
    assert fit_drill(parse_drill("hang@4,rank=1"), CONFIG, {}, ranks=2).rank == 1
    with pytest.raises(InvalidInput, match="0 to 0"):
        fit_drill(parse_drill("hang@4,rank=1"), CONFIG, {}, ranks=1)
    with pytest.raises(InvalidInput, match="--ranks 2"):
        fit_drill(parse_drill("rank_crash@4"), CONFIG, {}, ranks=1)
