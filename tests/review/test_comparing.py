"""Two attempts or checkpoints side by side: what differs, what is shared, what may be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tracks_dagster.review.comparing import (
    Difference,
    Measured,
    Score,
    Side,
    compare,
    compare_scores,
)
from tracks_dagster.track.states.checkpoints import CheckpointRef

CONFIG = {"lr": 0.003, "seed": 7, "global_batch": 24}


def ref(step: int, *, run_id: str = "r-1", attempt_id: int = 1) -> CheckpointRef:
    return CheckpointRef(run_id, attempt_id, step, f"{run_id}/{step}/", f"{run_id}-{step}")


def side(name: str = "r-1/a01", **changes: Any) -> Side:
    fields: dict[str, Any] = {
        "name": name,
        "steps": {"last_step": 40},
        "dataset": "aws-docs",
        "snapshot_id": "s1",
        "cursor_from": 0,
        "cursor_to": 960,
        "config": CONFIG,
        "roles": {},
        "code": {"commit": "c0ffee", "dirty": False},
        "environment": {"python": "3.11", "torch": "2.5"},
        "placement": {"nodes": ["node-1"]},
    }
    return Side(**fields | changes)


def score(seed: int = 7, loss: float = 2.5, **changes: Any) -> Score:
    fields: dict[str, Any] = {
        "suite": "heldout-loss",
        "suite_version": "2",
        "snapshot_id": "h" * 64,
        "seed": seed,
        "step": 40,
        "environment_sha256": "e1",
        "metrics": {"loss": loss},
    }
    return Score(**fields | changes)


def test_only_what_differs_is_shown_of_config_code_environment_and_place() -> None:
    result = compare(
        side(),
        side(
            "r-1/a02",
            config={**CONFIG, "lr": 0.001, "layers": 4},
            code={"commit": "c0ffee", "dirty": True},
            environment={"python": "3.11", "torch": "2.6", "numpy": "2.1"},
        ),
    )
    assert result.config == (
        Difference(name="lr", a=0.003, b=0.001),
        Difference(name="layers", a=None, b=4),
    )
    assert result.code == (Difference(name="dirty", a=False, b=True),)
    assert [line.name for line in result.environment] == ["torch", "numpy"]
    assert result.placement == ()
    assert result.refused == ()


# What the order of samples gives both: (changes of A, changes of B) → samples, why begins with.
SHARED: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "the shorter of two": ({}, {"cursor_to": 480}, 480, "the same snapshot in the same order"),
    "another snapshot": ({}, {"snapshot_id": "s2"}, 0, "different snapshots"),
    "another seed": ({}, {"config": {**CONFIG, "seed": 8}}, 0, "the same snapshot in different"),
    "an end that nobody knows": ({}, {"cursor_to": None}, 0, "how far one of them went"),
    # Block 11 is the first that only one of them leaves out: 10 blocks of 24 samples are alike.
    "one window": (
        {},
        {"config": {**CONFIG, "skip_windows": [[11, 15]]}},
        240,
        "from there on they skipped",
    ),
    "one window, by the names of a project's own keys": (
        {"config": {"s": 7, "batch": 24}, "roles": {"seed": "s", "global_batch": "batch"}},
        {
            "config": {"s": 7, "batch": 24, "skip_windows": [[11, 15]]},
            "roles": {"seed": "s", "global_batch": "batch"},
        },
        240,
        "from there on they skipped",
    ),
    "another seed, by the name of a project's own key": (
        {"config": {"s": 7}, "roles": {"seed": "s"}},
        {"config": {"s": 8}, "roles": {"seed": "s"}},
        0,
        "the same snapshot in different",
    ),
    "the same window": (
        {"config": {**CONFIG, "skip_windows": [[11, 15]]}},
        {"config": {**CONFIG, "skip_windows": [[11, 15]]}},
        960,
        "the same snapshot in the same order",
    ),
    # 11 to 15 against 11 to 12: block 13 is the first that only one of them sees.
    "a longer window": (
        {"config": {**CONFIG, "skip_windows": [[11, 15]]}},
        {"config": {**CONFIG, "skip_windows": [[11, 12]]}},
        288,
        "from there on they skipped",
    ),
    "a window after both ends": (
        {},
        {"config": {**CONFIG, "skip_windows": [[99, 100]]}},
        960,
        "the same snapshot in the same order",
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_the_common_prefix_of_data_is_reported_with_the_reason(name: str) -> None:
    a, b, samples, why = SHARED[name]
    for result in (compare(side(**a), side(**b)), compare(side(**b), side(**a))):
        assert result.shared_data.samples == samples
        assert result.shared_data.why.startswith(why)


def test_what_a_common_ancestor_consumed_is_shared_whatever_came_after() -> None:
    cursors = {"r-1-20": 480}
    a = side(descent=(ref(40), ref(20)), ancestor_cursors=cursors)
    b = side(
        "b-1/a01",
        steps={"last_step": 60},
        snapshot_id="s2",
        descent=(ref(60, run_id="b-1"), ref(20), ref(10)),
        ancestor_cursors=cursors,
    )
    result = compare(a, b)
    assert result.descent.ancestor == ref(20)
    assert (result.descent.a_steps, result.descent.b_steps) == (20, 40)
    assert result.shared_data.samples == 480
    assert "both descend from" in result.shared_data.why


def test_two_that_share_no_checkpoint_have_no_ancestor() -> None:
    result = compare(side(descent=(ref(40),)), side(descent=(ref(40, run_id="r-2"),)))
    assert result.descent.ancestor is None
    assert result.descent.a_steps is None


# --- metrics --------------------------------------------------------------------------------------


def test_one_seed_each_the_same_is_compared_and_nobody_knows_the_spread() -> None:
    [line] = compare_scores([score(loss=2.5)], [score(loss=2.25)])
    assert line.label == ""
    assert line.a == Measured(mean=2.5, spread=None, seeds=(7,))
    assert line.difference == -0.25
    assert line.is_within_spread is None


REFUSED: dict[str, tuple[list[Score], str]] = {
    "another version": ([score(suite_version="3")], "not comparable: suite v2 against v3"),
    "another eval snapshot": (
        [score(snapshot_id="i" * 64)],
        "not comparable: eval snapshot hhhhhhhhhhhh… against iiiiiiiiiiii…",
    ),
    "another single seed": ([score(seed=8)], "not comparable: seed 7 against 8"),
    "one seed against several others": (
        [score(seed=8), score(seed=9)],
        "not comparable: seed 7 against 8, 9",
    ),
    "all at once": (
        [score(seed=8, suite_version="v3", snapshot_id="i" * 64)],
        "not comparable: suite v2 against v3, eval snapshot hhhhhhhhhhhh… against iiiiiiiiiiii…, "
        "seed 7 against 8",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_not_measured_alike_is_refused_with_the_reason_and_no_value(name: str) -> None:
    others, label = REFUSED[name]
    result = compare(side(scores=(score(),)), side("r-1/a02", scores=tuple(others)))
    [line] = result.evals
    assert (line.label, line.a, line.b, line.difference) == (label, None, None, None)
    assert result.refused == (f"heldout-loss: {label}.",)


@pytest.mark.parametrize("name", REFUSED)
def test_forced_it_is_shown_with_the_reason_on_its_line(name: str) -> None:
    others, label = REFUSED[name]
    result = compare(side(scores=(score(),)), side(scores=tuple(others)), is_forced=True)
    [line] = result.evals
    assert line.label == label
    assert line.a is not None
    assert line.b is not None
    assert line.difference == 0.0
    assert line.is_within_spread is None
    assert result.refused == ()


def test_of_what_may_not_be_compared_nothing_is_said_about_its_size() -> None:
    a = [score(seed=1, loss=1.0), score(seed=2, loss=1.1)]
    b = [score(suite_version="3", seed=each.seed, loss=9.0) for each in a]
    [line] = compare_scores(a, b, is_forced=True)
    assert line.label == "not comparable: suite v2 against v3"
    assert line.difference is not None
    assert line.is_within_spread is None


def test_an_eval_that_only_one_has_is_shown_and_nothing_is_refused() -> None:
    result = compare(side(scores=(score(),)), side())
    [line] = result.evals
    assert line.a is not None
    assert (line.b, line.difference, line.label) == (None, None, "")
    assert result.refused == ()


def test_several_seeds_are_averaged_over_those_that_both_have_with_their_spread() -> None:
    a = [score(seed=1, loss=1.0), score(seed=2, loss=2.0), score(seed=3, loss=3.0)]
    b = [score(seed=1, loss=2.0), score(seed=2, loss=4.0), score(seed=9, loss=99.0)]
    [line] = compare_scores(a, b)
    assert line.a is not None
    assert line.b is not None
    # Seeds 1 and 2: means 1.5 and 3; spreads √(0.5²+0.5²) = 0.707 and √(1²+1²) = 1.414.
    assert (line.a.mean, line.b.mean, line.difference) == (1.5, 3.0, 1.5)
    assert line.a.spread == pytest.approx(0.7071, abs=1e-4)
    assert line.b.spread == pytest.approx(1.4142, abs=1e-4)
    # √(0.5/2 + 2/2) = 1.118: 1.5 is less than twice that.
    assert line.is_within_spread is True
    assert "evaluated with seeds 1, 2, 3 and 1, 2, 9" in line.remark


def test_a_difference_beyond_what_seeds_make_is_reported() -> None:
    a = [score(seed=n, loss=1.0 + n / 100) for n in range(4)]
    b = [score(seed=n, loss=2.0 + n / 100) for n in range(4)]
    [line] = compare_scores(a, b)
    assert line.is_within_spread is False


def test_of_several_versions_the_one_that_both_have_is_compared() -> None:
    a = [score(suite_version="2", loss=2.5), score(suite_version="3", loss=9.0)]
    b = [score(suite_version="2", loss=2.0)]
    for first, second in ((a, b), (b, a)):
        [line] = compare_scores(first, second)
        assert line.label == ""
        assert line.a is not None
        assert line.b is not None
        assert {line.a.mean, line.b.mean} == {2.5, 2.0}


def test_evaluators_that_differ_are_remarked() -> None:
    [line] = compare_scores([score()], [replace(score(), environment_sha256="e2")])
    assert line.label == ""
    assert line.remark == "the evaluators' environments differ"
